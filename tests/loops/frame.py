"""What a stranger's loop is made of here, and how one is run.

A loop is a function that trains a model the way a public script does: its own forward calls, evaluation,
optimizers and shapes. It gets a `Run`, whose `wrap()` is the README's one line, and which notes losses. Each
loop is run in a process of its own, unwrapped and wrapped; the process prints a `Report`.
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
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

FAMILIES = ("vision", "language", "agents", "several", "inner", "shapes", "steps", "setups")
MEGABYTE = 1_000_000
# A run that takes longer hangs.
_PATIENCE_S = 400
_LOOPS: dict[str, Loop] = {}


@dataclasses.dataclass(frozen=True)
class Loop:
    """One loop and what is promised for it.

    Attributes:
        name: of its function.
        train: the script; called with a `Run`.
        room_mb: the budget, in MB above the resident bytes at the wrap.
        warns: patterns of the warnings that it must draw, each exactly once, and no other.
        may_pass: whether its peak may pass the budget; it then draws a warning that says so.
        is_quick: whether it is part of every test run.
        lines_most: lines at the default level besides warnings: allocator, plan, tier, masks, the second step.
    """

    name: str
    train: Callable[[Run], None]
    room_mb: int
    warns: tuple[str, ...]
    may_pass: bool
    is_quick: bool
    lines_most: int


@dataclasses.dataclass
class Report:
    """What a process saw of its loop. Bytes are resident, of the whole process."""

    digest: str
    base_bytes: int
    peak_bytes: int
    budget_bytes: int
    plans: int
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
    room_mb: int, *warns: str, may_pass: bool = False, is_quick: bool = False, lines_most: int = 5
) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Makes a function a loop of the suite."""

    def register(train: Callable[[Run], None]) -> Callable[[Run], None]:
        name = train.__name__
        _LOOPS[name] = Loop(name, train, room_mb, warns, may_pass, is_quick, lines_most)
        return train

    return register


def all_loops() -> dict[str, Loop]:
    """Every loop by name."""
    for family in FAMILIES:
        importlib.import_module(family)
    return _LOOPS


class Run:
    """What a loop is given."""

    def __init__(self, chosen: Loop, is_wrapped: bool) -> None:
        self._chosen = chosen
        self._is_wrapped = is_wrapped
        self._hash = hashlib.sha256()
        self._executors: list[Any] = []
        self.base_bytes = self.budget_bytes = 0

    def wrap(self, model: Any, sample_input: Any = None, **fields: Any) -> Any:
        """`memscale.wrap()` under the loop's budget; the model itself in the unwrapped run."""
        import memscale
        from memscale.tracing.profiler import load_tracer

        load_tracer()  # its libraries are no part of what a loop needs
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
        """Counts tensors or numbers among the bits that must be equal."""
        for value in values:
            tensor = value.detach() if isinstance(value, torch.Tensor) else torch.tensor(value)
            self._hash.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())

    def refuses(self, forward: Callable[[], Any]) -> None:
        """Wrapped, `forward` must be refused for the budget; unwrapped it is not called."""
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
        steps = [executor.counters()["steps"] for executor in self._executors]
        return Report(
            self._hash.hexdigest(),
            self.base_bytes,
            _status_bytes("VmHWM"),
            self.budget_bytes,
            max(plans, default=0),
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
    command = [sys.executable, "-W", "ignore", __file__, name, "wrapped" if is_wrapped else "plain"]
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    fields = json.loads(done.stdout.splitlines()[-1])
    return Report(**{**fields, "lines": [(level, text) for level, text in fields["lines"]]})


def complaints(chosen: Loop, plain: Report, wrapped: Report) -> list[str]:
    """What was promised for a loop and not kept."""
    found = [f"raised {wrapped.error}"] if wrapped.error else []
    if plain.error:
        found.append(f"unwrapped, it raised {plain.error}")
    if plain.digest != wrapped.digest:
        found.append("the bits differ")
    over = wrapped.peak_bytes - wrapped.budget_bytes
    if over > 0 and not chosen.may_pass:
        found.append(f"the peak passed the budget by {over / MEGABYTE:.1f} MB")
    if wrapped.plans > 3:
        found.append(f"{wrapped.plans} plans")
    if len(wrapped.told) > chosen.lines_most:
        found.append(f"{len(wrapped.told)} lines at the default level")
    for pattern in chosen.warns:
        count = sum(re.search(pattern, text) is not None for text in wrapped.warnings)
        if count != 1:
            found.append(f"{count} warnings of {pattern!r}, not one")
    other = [text for text in wrapped.warnings if not any(re.search(pattern, text) for pattern in chosen.warns)]
    return [*found, *(f"warned {text!r}" for text in other)]


def _main() -> None:
    frame = importlib.import_module("frame")  # loops register with the module, not with the script
    report = frame.run_here(sys.argv[1], sys.argv[2] == "wrapped")
    print(json.dumps(dataclasses.asdict(report)))


if __name__ == "__main__":
    _main()
