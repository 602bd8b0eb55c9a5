"""Trains in child processes: one after another or step by step in turn, optionally under a kernel memory limit.

Demo, suite and `bench/frontier.py` use it. `Run` is a finished child's report.
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


class Child:
    """One training run in its own process, which starts at once.

    Args:
        case: a name in `cases.CASES`.
        variant: one of `child.VARIANTS`.
        device: "cpu" or "cuda".
        threads: torch's number of threads; 0 leaves it to torch.
        allocator: a library that the child preloads (LD_PRELOAD); None for glibc's own.
        interpreter: another Python that runs the child as a file, with its own packages; None for
            this one.
        group: a memory cgroup's directory that the child joins before it starts Python.
        takes_turns: the child begins each step when `step()` says so; see `in_turn()`.

    Attributes:
        steps: how many it takes.
    """

    def __init__(
        self,
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
        allocator: str | None = None,
        interpreter: str | None = None,
        group: Path | None = None,
        takes_turns: bool = False,
    ) -> None:
        command = [sys.executable, "-m", "memscale.benchmarks.child"]
        if interpreter is not None:
            command = [interpreter, str(Path(__file__).with_name("child.py"))]
        command += ["--case", case, "--variant", variant, "--steps", str(steps), "--device", device]
        command += ["--threads", str(threads), "--learning-rate", repr(learning_rate)]
        if budget_gb is not None:
            command += ["--budget-gb", repr(budget_gb)]
        if force:
            command.append("--force")
        if config:
            command += ["--config", json.dumps(config)]
        if takes_turns:
            command.append("--in-turn")
        if group is not None:
            command = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group), *command]
        self.steps = steps
        self._outcome = Run(variant, 0)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by end()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if takes_turns else None,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=None if allocator is None else os.environ | {"LD_PRELOAD": allocator},
        )
        if takes_turns:
            self._read("ready")

    def step(self) -> None:
        """Lets a child that takes turns take one step, and waits for its end, or the child's."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            self._read("step")

    def end(self, on_step: Callable[[dict[str, Any]], None] | None = None) -> Run:
        """Waits for the process to end, and returns its report.

        Args:
            on_step: called with each step's dict as it arrives.
        """
        self._read(None, on_step)
        self._process.communicate()
        self._outcome.exit_code = self._process.returncode
        with self._errors as errors:
            errors.seek(0)
            self._outcome.stderr = errors.read()[-4000:]
        return self._outcome

    def _read(self, event: str | None, on_step: Callable[[dict[str, Any]], None] | None = None) -> None:
        """Reads the child's lines up to one of this event, or to the last."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            message = json.loads(line)
            if message["event"] == "step":
                self._outcome.steps.append(message)
                if on_step is not None:
                    on_step(message)
            elif message["event"] == "done":
                self._outcome.result = message
            if message["event"] == event:
                return


def run(case: str, variant: str, *, on_step: Callable[[dict[str, Any]], None] | None = None, **options: Any) -> Run:
    """Trains a case in a child process and returns its report.

    Args:
        on_step: called with each step's dict as it arrives.
        options: as for `Child`.
    """
    return Child(case, variant, **options).end(on_step)


def in_turn(children: list[Child]) -> list[Run]:
    """Lets children that take turns train, one step each, in the opposite order at every second step: a machine that
    gets slower or faster changes all alike. They have the same number of steps."""
    for number in range(children[0].steps):
        for child in children if number % 2 == 0 else children[::-1]:
            child.step()
    return [child.end() for child in children]


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
