"""Defines and runs training loops.

A loop is a function that trains a model as a public script does, with its own forward calls, evaluation, optimizers and
shapes. Its argument is a `Run`: the loop wraps its model with `Run.wrap()` and passes losses to `Run.note()`. Each loop
runs once unwrapped and once wrapped, in two processes; each prints a `Report`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parent.parent / "python"))

from forked_python import run_python

FAMILIES = ("vision", "language", "agents", "several", "inner", "shapes", "steps", "setups")
MEGABYTE = 1_000_000
_PATIENCE_S = 400  # a run that takes longer is taken to hang
_PLANS_MOST = 3  # for one shape; each further shape may add one
_LOOPS: dict[str, Loop] = {}


@dataclasses.dataclass(frozen=True)
class Loop:
    """One loop and memscale's promises for it.

    Attributes:
        name: the name of its function.
        train: the script; called with a `Run`.
        room_mb: the budget, in MB above the resident bytes at the wrap.
        warns: patterns of the expected warnings. Each must match exactly one warning; no other warning may come.
        may_pass: whether its peak may exceed the budget, if one of `warns` says so.
        plans_most: the most plans; None: three, and one more for each further shape.
        is_quick: whether it is part of every test run.
        lines_most: the most lines that may be logged at the default level, warnings aside: allocator, plan, tier,
            masks, the second step.
    """

    name: str
    train: Callable[[Run], None]
    room_mb: int
    warns: tuple[str, ...]
    may_pass: bool
    is_quick: bool
    lines_most: int
    plans_most: int | None


@dataclasses.dataclass
class Report:
    """The results of a loop in one process. Bytes are the process's resident bytes; `shapes` is the number of shapes
    that plans were made for."""

    digest: str
    base_bytes: int
    peak_bytes: int
    budget_bytes: int
    plans: int
    shapes: int
    steps: int
    lines: list[tuple[str, str]]
    error: str

    @property
    def warnings(self) -> list[str]:
        return [text for level, text in self.lines if level in ("WARNING", "ERROR")]

    @property
    def told(self) -> list[str]:
        return [text for level, text in self.lines if level == "INFO"]


def loop(
    room_mb: int,
    *warns: str,
    may_pass: bool = False,
    is_quick: bool = False,
    lines_most: int = 5,
    plans_most: int | None = None,
) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Decorator: makes a function a loop of the suite."""

    def register(train: Callable[[Run], None]) -> Callable[[Run], None]:
        name = train.__name__
        _LOOPS[name] = Loop(name, train, room_mb, warns, may_pass, is_quick, lines_most, plans_most)
        return train

    return register


def all_loops() -> dict[str, Loop]:
    """Every loop by name."""
    for family in FAMILIES:
        importlib.import_module(family)
    return _LOOPS


class Run:
    """The argument of a loop: wraps models, notes results, makes the report."""

    def __init__(self, chosen: Loop, is_wrapped: bool) -> None:
        self._chosen = chosen
        self._is_wrapped = is_wrapped
        self._hash = hashlib.sha256()
        self._executors: list[Any] = []
        self.base_bytes = self.budget_bytes = 0

    def wrap(self, model: Any, sample_input: Any = None, **fields: Any) -> Any:
        """Calls `memscale.wrap()` with the loop's budget; in the unwrapped run it returns the model itself."""
        import memscale
        from memscale.tracing.profiler import load_tracer

        load_tracer()  # now, so that its libraries don't count in the loop's memory
        self.base_bytes = self.base_bytes or _status_bytes("VmRSS")
        self.budget_bytes = self.base_bytes + self._chosen.room_mb * MEGABYTE
        if not self._is_wrapped:
            _reset_peak()
            return model
        config = memscale.Config(memory_budget_gb=self.budget_bytes / 1e9, **fields)
        wrapped = memscale.wrap(model, config, sample_input)
        inner = getattr(wrapped, "model", wrapped) if not isinstance(wrapped, torch.nn.Module) else wrapped
        self._executors.append(inner._memscale_executor)
        return wrapped

    def note(self, *values: Any) -> None:
        """Adds tensors or numbers to the bits that must be equal."""
        for value in values:
            tensor = value.detach() if isinstance(value, torch.Tensor) else torch.tensor(value)
            self._hash.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())

    def refuses(self, forward: Callable[[], Any]) -> None:
        """Checks that memscale refuses `forward` because of the budget. Does nothing in the unwrapped run."""
        if not self._is_wrapped:
            return
        import memscale

        try:
            forward()
        except memscale.BudgetInfeasibleError:
            return
        raise AssertionError("a shape that fits no plan was not refused")

    def report(self, lines: list[tuple[str, str]], error: str) -> Report:
        plans = [executor.run_watch.plan_count for executor in self._executors]
        shapes = [len(executor._planner._plans_made) for executor in self._executors]
        steps = [executor.counters()["steps"] for executor in self._executors]
        return Report(
            self._hash.hexdigest(),
            self.base_bytes,
            _status_bytes("VmHWM"),
            self.budget_bytes,
            max(plans, default=0),
            max(shapes, default=0),
            max(steps, default=0),
            lines,
            error,
        )


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelname, record.getMessage()))


def _status_bytes(field: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return 0 if found is None else int(found[1]) * 1024


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def run_here(name: str, is_wrapped: bool) -> Report:
    """Runs one loop in this process, which should be a fresh one."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    chosen = all_loops()[name]
    handler = _Lines()
    logging.getLogger("memscale").addHandler(handler)
    run = Run(chosen, is_wrapped)
    error = ""
    try:
        chosen.train(run)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
        if os.environ.get("LOOPS_RAISE"):
            raise
    return run.report(handler.lines, error)


def run_apart(name: str, is_wrapped: bool) -> Report:
    """Runs one loop in a process of its own."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    how = "wrapped" if is_wrapped else "plain"
    done = run_python("-W", "ignore", __file__, name, how, env=environment, timeout=_PATIENCE_S)
    if done.returncode != 0:
        raise RuntimeError(f"{name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    fields = json.loads(done.stdout.splitlines()[-1])
    return Report(**{**fields, "lines": [(level, text) for level, text in fields["lines"]]})


def complaints(chosen: Loop, plain: Report, wrapped: Report) -> list[str]:
    """The promises that a loop broke."""
    found = [f"raised {wrapped.error}"] if wrapped.error else []
    if plain.error:
        found.append(f"unwrapped, it raised {plain.error}")
    if plain.digest != wrapped.digest:
        found.append("the bits differ")
    over = wrapped.peak_bytes - wrapped.budget_bytes
    if over > 0 and not chosen.may_pass:
        found.append(f"the peak passed the budget by {over / MEGABYTE:.1f} MB")
    if wrapped.plans > (chosen.plans_most or _PLANS_MOST + max(0, wrapped.shapes - 1)):
        found.append(f"{wrapped.plans} plans for {wrapped.shapes} shapes")
    if len(wrapped.told) > chosen.lines_most:
        found.append(f"{len(wrapped.told)} lines at the default level")
    for pattern in chosen.warns:
        count = sum(re.search(pattern, text) is not None for text in wrapped.warnings)
        if count != 1:
            found.append(f"{count} warnings match {pattern!r}, not 1")
    other = [text for text in wrapped.warnings if not any(re.search(pattern, text) for pattern in chosen.warns)]
    return [*found, *(f"warned {text!r}" for text in other)]


def _main() -> None:
    frame = importlib.import_module("frame")  # loops register with the module `frame`; this is the module `__main__`
    report = frame.run_here(sys.argv[1], sys.argv[2] == "wrapped")
    print(json.dumps(dataclasses.asdict(report)))


if __name__ == "__main__":
    _main()
