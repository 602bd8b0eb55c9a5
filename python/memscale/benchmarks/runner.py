"""Starts one training run in a child process, optionally under a kernel memory limit.

The demo and the suite use it. `Run` is a finished child's report.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Run:
    """A child's report.

    Attributes:
        variant: one of `child.VARIANTS`.
        exit_code: 0 if it finished; negative, or 137, if it was killed.
        steps: one dict for each step, with seconds, loss, digest (first and last step) and peak_bytes.
        result: the closing dict; empty if the child did not finish.
        stderr: the end of its standard error.
    """

    variant: str
    exit_code: int
    steps: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    stderr: str = ""

    @property
    def finished(self) -> bool:
        return self.exit_code == 0 and bool(self.result)

    @property
    def was_killed(self) -> bool:
        return self.exit_code in (-9, 137)


def run(
    case: str,
    variant: str,
    *,
    budget_gb: float | None = None,
    force: bool = False,
    config: dict[str, Any] | None = None,
    steps: int = 4,
    learning_rate: float = 1e-4,
    device: str = "cpu",
    threads: int = 0,
    interpreter: str | None = None,
    group: Path | None = None,
    on_step: Callable[[dict[str, Any]], None] | None = None,
) -> Run:
    """Trains `steps` steps of a case in a child process and collects its report.

    Args:
        device: "cpu" or "cuda".
        threads: torch's number of threads; 0 leaves it to torch.
        interpreter: another Python that runs the child as a file, with its own packages; None for
            this one.
        group: a memory cgroup's directory that the child joins before it starts Python.
        on_step: called with each step's dict as it arrives.
    """
    start = [sys.executable, "-m", "memscale.benchmarks.child"]
    if interpreter is not None:
        start = [interpreter, str(Path(__file__).with_name("child.py"))]
    command = [
        *start,
        "--case",
        case,
        "--variant",
        variant,
        "--steps",
        str(steps),
        "--device",
        device,
        "--threads",
        str(threads),
    ]
    command += ["--learning-rate", repr(learning_rate)]
    if budget_gb is not None:
        command += ["--budget-gb", repr(budget_gb)]
    if force:
        command.append("--force")
    if config:
        command += ["--config", json.dumps(config)]
    if group is not None:
        command = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group), *command]
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as child:
            outcome = Run(variant, 0)
            _collect(child.stdout, outcome, on_step)
        outcome.exit_code = child.returncode
        errors.seek(0)
        outcome.stderr = errors.read()[-4000:]
    return outcome


def _collect(lines: Any, outcome: Run, on_step: Callable[[dict[str, Any]], None] | None) -> None:
    for line in lines:
        if not line.startswith("{"):
            continue
        message = json.loads(line)
        if message["event"] == "step":
            outcome.steps.append(message)
            if on_step is not None:
                on_step(message)
        elif message["event"] == "done":
            outcome.result = message


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path | None]:
    """A memory cgroup with a limit, removed afterwards; None if none can be made."""
    group = _make_group(limit_bytes)
    try:
        yield group
    finally:
        if group is not None:
            with contextlib.suppress(OSError):
                group.rmdir()


def _make_group(limit_bytes: int) -> Path | None:
    name = f"memscale-{os.getpid()}"
    for root, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root) / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / file).write_text(str(limit_bytes))
            return group
        except OSError:
            group.rmdir()
    return None
