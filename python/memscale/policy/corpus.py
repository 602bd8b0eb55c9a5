"""Makes the rows that a policy is trained on: ``python -m memscale.policy.corpus FOLDER``.

Each run of `memscale.policy.scenarios` is planned under every strategy; its row says what each gave. The rows lie in
parts, each with a digest. A run that was stopped goes on where it was, and a damaged part is found and made again. The
same seed gives the same bytes, whatever the number of processes. ``manifest.json`` says what there is.

With ``--events FILE`` the runs are like those that telemetry tells of (`memscale.policy.events`).
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .. import _core
from .events import Events, read_events
from .scenarios import Scenario, draw

__all__ = ["main", "make_corpus", "read_rows", "row_of", "scenario_of"]

PART_ROWS = 20
_SEEDS = 1_000_000_007

Job = tuple[str, int, int, int, Events | None]  # the arguments of make_part()


def scenario_of(seed: int, index: int, events: Events | None = None) -> Scenario:
    """The run of a row."""
    return draw(seed * _SEEDS + index, events.listed if events is not None else ())


def row_of(seed: int, index: int, events: Events | None = None) -> dict[str, Any]:
    """One run under every strategy.

    Returns:
        Seed, index, the graph's digest, family, class, ranks, the context, and for each strategy
        [fits, care, step_ns, peak_bytes, replayed_events]. With `events` also the file's digest, and the sizes
        in which the run differs from its event.
    """
    scenario = scenario_of(seed, index, events)
    source = {} if events is None else {"events": events.digest[:16], "differs": list(scenario.differs)}
    context, outcomes = _core.policy_outcomes(scenario.graph, scenario.hardware, scenario.config)
    return {
        "seed": seed,
        "index": index,
        "graph": hashlib.sha256(scenario.graph.encode()).hexdigest()[:16],
        "family": scenario.family,
        "class": scenario.hardware_class,
        "ranks": scenario.ranks,
        "context": context,
        "outcomes": [[int(fits), *numbers] for fits, *numbers in outcomes],
        **source,
    }


# -- parts ------------------------------------------------------------------------------------


def _part_path(folder: Path, part: int) -> Path:
    return folder / f"part-{part:05}.jsonl"


def _read_part(path: Path) -> tuple[list[dict[str, Any]], str] | None:
    """The rows and their digest; None if the part is missing, incomplete or damaged."""
    try:
        *lines, last = path.read_bytes().splitlines(keepends=True)
        end = json.loads(last)
        digest = hashlib.sha256(b"".join(lines)).hexdigest()
        return ([json.loads(line) for line in lines], digest) if end == {"digest": digest} else None
    except (OSError, ValueError):
        return None


def make_part(folder: str, seed: int, part: int, rows: int, events: Events | None) -> int:
    """Writes one part, whole or not at all. Returns its number."""
    body = "".join(json.dumps(row_of(seed, part * PART_ROWS + i, events)) + "\n" for i in range(rows)).encode()
    end = json.dumps({"digest": hashlib.sha256(body).hexdigest()}) + "\n"
    path = _part_path(Path(folder), part)
    aside = path.with_suffix(".tmp")
    aside.write_bytes(body + end.encode())
    aside.replace(path)
    return part


def read_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """All rows, in order.

    Raises:
        ValueError: a part is damaged; making the corpus again mends it.
    """
    for path in sorted(folder.glob("part-*.jsonl")):
        read = _read_part(path)
        if read is None:
            raise ValueError(f"{path}: damaged; make the corpus again")
        yield from read[0]


# -- the whole --------------------------------------------------------------------------------


def _tell(done: int, total: int, since: float) -> None:
    """A bar, and the time left."""
    left = (time.monotonic() - since) / done * (total - done) if done else 0.0
    filled = 30 * done // total
    end = "\n" if done == total else ""
    line = f"\r[{'#' * filled}{'.' * (30 - filled)}] {done}/{total} parts, {left / 60:.1f} min left "
    print(line, end=end, file=sys.stderr, flush=True)


def _by_processes(jobs: list[Job], processes: int) -> Iterator[int]:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        for job in concurrent.futures.as_completed([pool.submit(make_part, *job) for job in jobs]):
            yield job.result()


def _by_ray(jobs: list[Job]) -> Iterator[int]:
    import ray  # only if asked for

    ray.init(ignore_reinit_error=True)
    remote = ray.remote(make_part)
    waiting = [remote.remote(*job) for job in jobs]
    while waiting:
        done, waiting = ray.wait(waiting)
        yield from ray.get(done)


def make_corpus(
    folder: Path, seed: int, rows: int, processes: int, use_ray: bool = False, events: Events | None = None
) -> dict[str, Any]:
    """Makes what is missing or damaged, and writes the manifest.

    Returns:
        The manifest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {part: min(PART_ROWS, rows - part * PART_ROWS) for part in range(-(-rows // PART_ROWS))}
    wanted: list[Job] = [(str(folder), seed, part, size, events) for part, size in sizes.items()]
    jobs = [job for job in wanted if not _is_whole(*job)]
    since = time.monotonic()
    _tell(0, max(1, len(jobs)), since)
    for done, _ in enumerate(_by_ray(jobs) if use_ray else _by_processes(jobs, processes), 1):
        _tell(done, len(jobs), since)
    manifest = _manifest(folder, seed, list(sizes), events)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def _is_whole(folder: str, seed: int, part: int, size: int, events: Events | None) -> bool:
    read = _read_part(_part_path(Path(folder), part))
    source = None if events is None else events.digest[:16]
    if read is None or len(read[0]) != size:
        return False
    return (read[0][0]["seed"], read[0][0].get("events")) == (seed, source)


def _counts(values: Iterable[Any]) -> dict[str, int]:
    return {str(key): count for key, count in sorted(collections.Counter(values).items())}


def _manifest(folder: Path, seed: int, parts: list[int], events: Events | None) -> dict[str, Any]:
    digests, rows = {}, []
    for part in parts:
        read = _read_part(_part_path(folder, part))
        if read is None:
            raise ValueError(f"{_part_path(folder, part)}: damaged while it was made")
        rows += read[0]
        digests[_part_path(folder, part).name] = read[1]
    features, strategies = _core.policy_tables()
    columns = zip(features, zip(*(row["context"] for row in rows), strict=True), strict=True)
    return {
        "version": 1,
        "seed": seed,
        "rows": len(rows),
        "rows_that_fit": sum(row["outcomes"][0][0] for row in rows),
        "digest": hashlib.sha256("".join(digests.values()).encode()).hexdigest(),
        "strategies": [list(strategy) for strategy in strategies],
        "ranges": {name: [min(column), max(column)] for name, column in columns},
        "families": _counts(row["family"] for row in rows),
        "classes": _counts(row["class"] for row in rows),
        "ranks": _counts(row["ranks"] for row in rows),
        "graphs": len({row["graph"] for row in rows}),
        "parts": digests,
        **({} if events is None else {"events": _source(events, rows)}),
    }


def _source(events: Events, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the manifest's entry for the events. `differ` counts the runs that differ from their event, by size."""
    differ = _counts(name for row in rows for name in row["differs"])
    return {"digest": events.digest, "used": len(events.listed), "skipped": events.skipped, "differ": differ}


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m memscale.policy.corpus", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", type=Path, help="receives the parts and manifest.json")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=1600, help="runs; each is planned under every strategy")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--ray", action="store_true", help="on a Ray cluster, which must be installed")
    parser.add_argument("--events", type=Path, metavar="FILE", help="runs like those of these telemetry events")
    asked = parser.parse_args(arguments)
    try:
        events = None if asked.events is None else read_events(asked.events)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    manifest = make_corpus(asked.folder, asked.seed, asked.rows, asked.processes, asked.ray, events)
    print(f"{manifest['rows']} runs, {manifest['rows_that_fit']} fit, digest {manifest['digest'][:16]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
