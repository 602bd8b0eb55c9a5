"""Compares memscale's AdamW with a plain loop and with torch's, bitsandbytes' and torchao's AdamW.

Run it with ``python -m memscale.benchmarks.optimizers [--millions N] [--rounds N]``, or ``make bench``.
The contenders step in turn. They share the parameters and fixed gradients; each has its own state. Figures
are the best and the median of the rounds. A claim compares two contenders by the median of their ratios in
each round. The plain loop reads four streams of the parameters' size and writes three; an fp32 AdamW can't
move fewer bytes. bitsandbytes and torchao are measured if they are installed, else listed as missing.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

SHAPE_ROWS = 2048
FP32_BYTES = 28
"""Bytes that fp32 AdamW moves per element: it reads and writes parameter and moments, and reads the gradient."""
CODES_BYTES = 16
"""Bytes that AdamW moves per element if a moment has one byte per element."""

LOOP, FUSED, OURS, OURS_8BIT, THEIRS_8BIT = (
    "plain C loop", "torch fused", "memscale", "memscale 8-bit", "bitsandbytes 8-bit",
)  # fmt: skip

_LOOP_SOURCE = """
void stream(float *restrict a, float *restrict b, float *restrict c, const float *restrict d, long n)
{
    for (long i = 0; i < n; i++) {
        float x = a[i], y = b[i], z = c[i], w = d[i];
        a[i] = x + w;
        b[i] = y + w;
        c[i] = z + w;
    }
}
"""


class Contender(NamedTuple):
    """One contender. `make` returns the function that steps the parameters."""

    make: Callable[[list[Any]], Callable[[], Any]]
    element_bytes: int | None = None
    """Bytes that a step must move, if it is one pass over memory."""
    package: str | None = None
    """The package that must be installed."""


def _parameters(elements: int) -> list[Any]:
    """Matrices of a transformer's size and a few vectors, with gradients."""
    import torch

    made = []
    left = elements
    while left > 0:
        rows = max(1, min(SHAPE_ROWS, left // 2048))
        made += [torch.randn(rows, 2048), torch.randn(2048)]
        left -= (rows + 1) * 2048
    for p in made:
        p.grad = torch.randn(p.shape) * 1e-3
    return [p.requires_grad_() for p in made]


def _plain_loop(params: list[Any]) -> Callable[[], Any]:
    """The loop over four streams of the parameters' size, compiled here."""
    import torch

    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("no C compiler")
    with tempfile.TemporaryDirectory() as directory:
        source, library = Path(directory, "stream.c"), Path(directory, "stream.so")
        source.write_text(_LOOP_SOURCE)
        subprocess.run(
            [compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(source)], check=True
        )
        stream = ctypes.CDLL(str(library)).stream
    stream.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_long]
    stream.restype = None
    elements, threads = sum(p.numel() for p in params), torch.get_num_threads()
    streams = [torch.zeros(elements) for _ in range(4)]
    share = -(-elements // threads)
    pool = ThreadPoolExecutor(threads)

    def part(begin: int) -> None:
        count = min(share, elements - begin)
        stream(*(tensor.data_ptr() + 4 * begin for tensor in streams), count)

    return lambda: list(pool.map(part, range(0, elements, share)))


def _stepping(make: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Callable[[], Any]]:
    return lambda params: make(params).step


def _theirs(package: str, module: str, name: str) -> Contender:
    """An optimizer of another package."""
    return Contender(_stepping(lambda ps: getattr(importlib.import_module(module), name)(ps)), package=package)


def contenders() -> dict[str, Contender]:
    """All contenders, installed or not, by name."""
    import torch

    from .. import optim

    return {
        LOOP: Contender(_plain_loop, FP32_BYTES),
        FUSED: Contender(_stepping(lambda ps: torch.optim.AdamW(ps, fused=True)), FP32_BYTES),
        "torch default": Contender(_stepping(lambda ps: torch.optim.AdamW(ps))),
        OURS: Contender(_stepping(lambda ps: optim.AdamW(ps)), FP32_BYTES),
        OURS_8BIT: Contender(_stepping(lambda ps: optim.AdamW8bit(ps)), CODES_BYTES),
        "memscale on disk": Contender(_stepping(lambda ps: optim.AdamW(ps, state="disk"))),
        THEIRS_8BIT: _theirs("bitsandbytes", "bitsandbytes.optim", "AdamW8bit"),
        "torchao 8-bit": _theirs("torchao", "torchao.optim", "AdamW8bit"),
    }


def measure(elements: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round's step, by contender. For a contender that can't run, prints a line and leaves it out."""
    running: dict[str, Callable[[], Any]] = {}
    params = _parameters(elements)
    for name, contender in contenders().items():
        try:
            step = contender.make(params)
            step()  # makes the state
            running[name] = step
        except ModuleNotFoundError as error:
            print(f"{name}: not installed ({error.name}); pip install {contender.package} to compare", flush=True)
        except Exception as error:  # another package may raise anything
            print(f"{name}: does not run here ({type(error).__name__}: {error})", flush=True)
    times: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, step in running.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return times


def _claims(times: dict[str, list[float]]) -> list[tuple[str, float, float]]:
    """Tuples of claim, median of the rounds' ratios, and smallest allowed ratio, for the contenders that ran."""
    wanted = [
        (f"{OURS}: share of the rate of the {LOOP}", LOOP, OURS, 0.9),
        (f"{OURS}: times as fast as {FUSED}", FUSED, OURS, 1.0),
        (f"{OURS_8BIT}: times as fast as {THEIRS_8BIT}", THEIRS_8BIT, OURS_8BIT, 3.0),
    ]
    return [
        (text, statistics.median(theirs / ours for theirs, ours in zip(times[a], times[b], strict=True)), least)
        for text, a, b, least in wanted
        if a in times and b in times
    ]


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m memscale.benchmarks.optimizers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--millions", type=float, default=124, help="million parameters (default 124)")
    parser.add_argument("--rounds", type=int, default=15, help="times that each contender steps (default 15)")
    options = parser.parse_args(arguments)
    if options.millions <= 0 or options.rounds < 1:
        parser.error("--millions and --rounds must be above zero")
    return options


def main(arguments: list[str]) -> int:
    """Prints the table and the claimed ratios."""
    import torch

    options = _parse(arguments)
    elements, rounds = int(options.millions * 1e6), options.rounds
    threads = torch.get_num_threads()
    print(f"AdamW, {elements / 1e6:.0f}M fp32 parameters, {threads} threads, {rounds} rounds", flush=True)
    times = measure(elements, rounds)
    best = {name: min(seconds) for name, seconds in times.items()}
    known = contenders()
    for name, seconds in times.items():
        moved = known[name].element_bytes
        rate = f"  {moved * elements / best[name] / 1e9:6.1f} GB/s" if moved is not None else ""
        print(
            f"{name:20} best {best[name] * 1e3:8.1f} ms  median {statistics.median(seconds) * 1e3:8.1f} ms  "
            f"{best[name] / best[FUSED]:5.2f} of {FUSED}{rate}"
        )
    for text, ratio, least in _claims(times):
        print(f"{text}: {ratio:.2f} (at least {least:.2f}: {'held' if ratio >= least else 'NOT HELD'})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
