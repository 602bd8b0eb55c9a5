"""The executors of a model that lies on several devices, as one.

`wrap()` makes one executor for each device, with a plan and a budget of its own, because a device's memory depends only
on what lies there. `DeviceExecutors` is what `wrap()` leaves on such a model in place of a single executor; it passes
calls on to them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from ..errors import BudgetInfeasibleError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..planning.execution_plan import ExecutionPlan
    from ..policy.decision import StrategyDecision
    from .executor import Executor

__all__ = ["DeviceExecutors"]

Result = TypeVar("Result")


class DeviceExecutors:
    """The executors of one model, by the names of their devices.

    Args:
        executors: at least one; the leader, which was attached last, comes first. Its numbers stand for the run if a
            caller asks for a single one.
    """

    def __init__(self, executors: Mapping[str, Executor]) -> None:
        self._executors = dict(executors)
        self._first = next(iter(self._executors.values()))
        self._can_rescue = False

    @property
    def plans(self) -> dict[str, ExecutionPlan | None]:
        """The plan in force of each device; None before the first training forward without `sample_input`."""
        return {name: executor.plan for name, executor in self._executors.items()}

    @property
    def plan(self) -> ExecutionPlan | None:
        """The first device's plan; `plans` has all."""
        return self._first.plan

    @property
    def decision(self) -> StrategyDecision:
        """As `Executor.decision`, of the first device."""
        return self._first.decision

    @property
    def is_attached(self) -> bool:
        """Whether the model is wrapped."""
        return self._first.is_attached

    def counters(self) -> dict[str, int]:
        """As `Executor.counters()`, summed over the devices, but for the number of steps."""
        found = [executor.counters() for executor in self._executors.values()]
        return {key: first if key == "steps" else sum(one[key] for one in found) for key, first in found[0].items()}

    def stats(self) -> dict[str, Any]:
        """As `Executor.stats()`, for each device by its name."""
        return {name: executor.stats() for name, executor in self._executors.items()}

    def take_peak_bytes(self) -> int | None:
        """As `Executor.take_peak_bytes()`, of the first device."""
        return self._first.take_peak_bytes()

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes a page for each device, as `Executor.report()`: for ``run.html`` these are ``run-cuda-0.html``, ...

        Raises:
            OSError: a page can't be written.
            TypeError: `path` is not a path.
        """
        given = Path(path)
        for name, executor in self._executors.items():
            executor.report(given.with_name(f"{given.stem}-{name.replace(':', '-')}{given.suffix}"))

    def show_progress(self, stream: TextIO | None = None) -> None:
        """As `Executor.show_progress()`, with the memory of the first device."""
        self._first.show_progress(stream)

    def run_step(self, step: Callable[[], Result]) -> Result:
        """As `Executor.run_step()`. If an allocation fails, the plans of all devices are tightened."""
        if not self._can_rescue:
            self._can_rescue = True
            self._first.rescue_by(self.tighten)
        return self._first.run_step(step)

    def tighten(self, attempt: int) -> None:
        """Puts the next tighter plan in force on each device that has one.

        Raises:
            BudgetInfeasibleError: none has one.
        """
        refused: BudgetInfeasibleError | None = None
        tightened = 0
        for executor in self._executors.values():
            try:
                executor.tighten(attempt)
                tightened += 1
            except BudgetInfeasibleError as error:
                refused = error
        try:
            if refused is not None and tightened == 0:
                raise refused
        finally:
            del refused  # its traceback has this frame

    def training_ended(self, error: BaseException | None = None) -> None:
        """As `Executor.training_ended()`, for each device."""
        for executor in self._executors.values():
            executor.training_ended(error)

    def detach(self) -> None:
        """Removes every hook and attribute from the model, the leader's first, as they surround the others."""
        for executor in self._executors.values():
            executor.detach()

    def __reduce__(self) -> Any:
        raise TypeError("an executor belongs to one model in one process and can't be copied or pickled")
