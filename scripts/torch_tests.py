"""Runs tests of torch's own with every module wrapped, and prints those that pass only without memscale.

`python scripts/torch_tests.py TREE [--technique recompute ...] [--file test_nn.py ...] [-k WORDS] [--resume]`. TREE is
a source tree of torch; its version may differ from the installed one. Each file runs plainly first. The tests that
passed and that call a module with gradients enabled run again with the modules in the holders that a wrap needs
("held"), but unwrapped; those that still pass run once for each technique. `torch_tests_plugin.py` does the wrapping
and writes the outcomes below build/torch_tests. A test that kills its process, or takes more than ten minutes, counts
as failed, and the others go on. `--resume` continues a run that was stopped.

For each file and technique a line says how many tests were run, how many had a wrapped module, in how many of them a
plan did something (a layer ran again, a tensor was recomputed, a storage was offloaded), and how many failed. Then come
the failures, with the error's first line. Every one of them needs a reason: docs/results has those of the last run. The
tests need the packages expecttest and hypothesis; run `make build` first.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "build" / "torch_tests"
TECHNIQUES = ("recompute", "selective_4", "offload_disk", "recompute_segment")

# Files below the tree's folder "test", or classes in them, whose tests call modules.
FILES = (
    "test_utils.py::TestCheckpoint",
    "test_autograd.py",
    "nn/test_module_hooks.py",
    "test_module_tracker.py",
    "test_flop_counter.py",
    "test_stateless.py",
    "test_optim.py",
    "test_nn.py",
    "nn/test_convolution.py",
    "nn/test_dropout.py",
    "nn/test_embedding.py",
    "nn/test_lazy_modules.py",
    "nn/test_load_state_dict.py",
    "nn/test_multihead_attention.py",
    "nn/test_parametrization.py",
    "nn/test_pooling.py",
    "nn/test_pruning.py",
    "test_expanded_weights.py",
    "test_native_mha.py",
    "test_modules.py",
)
HELD = "held"
_ACTS = ("recomputed_layers", "remade_tensors", "offloaded_storages")

Outcomes = dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Run:
    """One file of tests, plainly (without a technique) or wrapped."""

    tree: pathlib.Path
    file: str
    technique: str
    words: str

    @property
    def record(self) -> pathlib.Path:
        name = self.file.replace("/", "_").replace(":", "_")
        return OUTPUT / (self.technique or "plain") / f"{name}.jsonl"

    def outcomes(self) -> Outcomes:
        """The last line of each test; without an outcome, if the test killed its process."""
        lines = self.record.read_text(encoding="utf-8").splitlines() if self.record.exists() else []
        return {entry["test"]: entry for entry in map(json.loads, lines)}

    def finish(self, only: list[str] | None = None) -> Outcomes:
        """Runs the tests that have no line yet, in new processes until none is killed."""
        self.record.parent.mkdir(parents=True, exist_ok=True)
        names = self.record.with_suffix(".only")
        names.write_text("\n".join(only or []), encoding="utf-8")
        while not self._done.exists():
            before = len(self.outcomes())
            self._pytest(["--only", str(names)] if only is not None else [])
            found = self.outcomes()
            if len(found) == before or "outcome" in list(found.values())[-1]:
                self._done.touch()
        return self.outcomes()

    def forget(self) -> None:
        self.record.unlink(missing_ok=True)
        self._done.unlink(missing_ok=True)

    @property
    def _done(self) -> pathlib.Path:
        return self.record.with_suffix(".done")

    def _pytest(self, more: list[str]) -> None:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--tb=short",
            "--noconftest",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore",
        ]
        command += ["-p", "torch_tests_plugin", "--tree", str(self.tree), "--record", str(self.record)]
        command += ["--technique", self.technique, "-k", self.words, str(self.tree / "test" / self.file), *more]
        paths = os.pathsep.join(filter(None, (str(ROOT / "scripts"), os.environ.get("PYTHONPATH"))))
        with self.record.with_suffix(".log").open("a", encoding="utf-8") as log:
            environment = {**os.environ, "PYTHONPATH": paths}
            subprocess.run(
                command, cwd=self.record.parent, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )


def first_line(entry: dict[str, Any]) -> str:
    if "outcome" not in entry:
        return "the process ended, or the test took too long"
    lines = [line[2:].strip() for line in entry.get("error", "").splitlines() if line.startswith("E ")]
    return (lines or [entry.get("outcome", "")])[0][:150]


def passed(outcomes: Outcomes) -> list[str]:
    """The tests that passed and that call a module."""
    return [name for name, entry in outcomes.items() if entry.get("outcome") == "passed" and entry.get("calls")]


def compare(file: str, technique: str, wrapped: Outcomes) -> int:
    """Prints the line of one file and technique, and its failures; returns their number."""
    failed = [entry for entry in wrapped.values() if entry.get("outcome") != "passed"]
    has_wrap = sum(entry.get("wrapped", 0) > 0 for entry in wrapped.values())
    acted = sum(any(entry.get(act) for act in _ACTS) for entry in wrapped.values())
    counts = f"{len(wrapped):5} tests {has_wrap:5} wrapped {acted:5} acted {len(failed):4} failed"
    print(f"{technique:18} {file:34} {counts}", flush=True)
    for entry in failed:
        print(f"    {entry['test'].split('::', 1)[1]}: {first_line(entry)}", flush=True)
    return len(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=pathlib.Path, help="source tree of torch, with its folder test")
    parser.add_argument("--technique", action="append", help="as in a plan; may be repeated")
    parser.add_argument("--file", action="append", help="as in FILES; may be repeated")
    parser.add_argument("-k", dest="words", default="", help="only tests that pytest's -k selects")
    parser.add_argument("--resume", action="store_true", help="keep outcomes of an earlier run")
    options = parser.parse_args()
    failed = 0
    for file in options.file or FILES:
        runs = [Run(options.tree.resolve(), file, name, options.words) for name in options.technique or TECHNIQUES]
        plain, held = (Run(options.tree.resolve(), file, name, options.words) for name in ("", HELD))
        for run in () if options.resume else (plain, held, *runs):
            run.forget()
        outcomes = plain.finish()
        called = passed(outcomes)
        chosen = passed(held.finish(called)) if called else []
        all_passed = sum(entry.get("outcome") == "passed" for entry in outcomes.values())
        counts = f"{all_passed} passed, {len(called)} of them call a module, {len(chosen)} pass in a holder too"
        print(f"{'plain':18} {file:34} {len(outcomes):5} tests, {counts}", flush=True)
        for run in runs if chosen else ():
            found = run.finish(chosen)
            failed += compare(file, run.technique, {name: found[name] for name in chosen if name in found})
    print(f"{failed} failed only wrapped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
