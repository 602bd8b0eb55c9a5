"""The interface that gives plans to an executor and receives its reports on steps.

A `Session` is the planner of a wrapped model. An executor whose plans are applied from outside, as in a
rehearsal, has a `NullPlanner`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import BudgetInfeasibleError, MemScaleError

if TYPE_CHECKING:
    import torch

    from ..policy.decision import StrategyDecision
    from .execution_plan import ExecutionPlan

__all__ = ["NullPlanner", "Planner"]


class Planner(Protocol):
    """Gives plans. The executor calls it on the thread that runs the model's forward."""

    follows_parts: bool
    """Whether plans are for steps in which the loop calls the layers by itself. The executor sets it."""

    @property
    def decision(self) -> StrategyDecision | None:
        """Mode and eligible techniques, and their source; None if nothing plans."""

    @property
    def documents(self) -> tuple[str | None, str | None]:
        """Graph and hardware of the plan in force as JSON, if any."""

    @property
    def disk(self) -> Mapping[str, Any]:
        """The ``dir``, ``write_bytes_per_s`` and ``read_bytes_per_s`` of the disk tier; empty if unknown."""

    @property
    def wants_live_trace(self) -> bool:
        """Whether the next forward has to be profiled while it runs."""

    def precision(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wait_until_alone: Callable[[], bool],
    ) -> AbstractContextManager[Any]:
        """The context in which a training forward with these arguments runs."""

    def plan_for(
        self,
        model: torch.nn.Module,
        signature: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wait_until_alone: Callable[[], bool],
    ) -> ExecutionPlan | None:
        """The plan for a forward of this signature."""

    def agree(self, plan: ExecutionPlan | None) -> ExecutionPlan | None:
        """Called at every training forward with its plan; returns the plan to follow."""

    def plan_applied(self, plan: ExecutionPlan | None) -> None:
        """Learns that `plan` is in force from the next forward on."""

    def refuses_hooks(self, error: BaseException) -> bool:
        """Whether a forward that raised `error` has to run without a plan. If so, the plan is requested again. Called
        for every forward that raised."""

    def forward_ended(self) -> None:
        """Learns that a training forward has ended without an error."""

    def live_trace_finished(self, graph: str | None, refused: MemScaleError | None) -> ExecutionPlan | None:
        """Receives the graph of a profiled step, or the reason why it has none. Returns a plan to follow from
        now on, if any."""

    def step_finished(self, observation: dict[str, Any]) -> ExecutionPlan | None:
        """Receives the observations of a finished step. Returns a plan to follow from now on, if any."""

    def holds_more(self, more_bytes: int, waiting_forwards: int) -> ExecutionPlan | None:
        """Receives the bytes of tensors that a forward finds beyond those that earlier steps began with, and how many
        forwards of the step wait for their backward. Returns a plan to follow from this forward on, if any."""

    def evaluation_ended(self, before_bytes: int, peak_bytes: int, rows: int) -> None:
        """Receives the memory of forwards without gradients: resident bytes before them and at their peak, and the
        rows of the largest batch."""

    def layers_held(self, names: list[str]) -> ExecutionPlan | None:
        """Receives all layers that turned out not to be recomputable. Returns a plan to follow from now on, if any."""

    def layers_changed(self) -> None:
        """Learns that layers were compiled or replaced: the step is traced again."""

    def tighten(self, attempt: int) -> ExecutionPlan:
        """The plan for the next run of a step in which an allocation failed for the `attempt`-th time (from 0).

        Raises:
            BudgetInfeasibleError: no plan fits.
        """

    def rehearsal(
        self, model: torch.nn.Module, plan: Any, args: tuple[Any, ...] | None, kwargs: dict[str, Any]
    ) -> tuple[bool, str, str] | None:
        """Prepares a comparison of `plan` with a step that keeps everything. Returns whether that step fits, the
        plan's class of exactness, and the plan to run; None if the step can't be traced."""

    def close(self) -> None:
        """Learns that the executor was detached."""


class NullPlanner:
    """Makes no plans. The plan that the executor was given stays in force."""

    decision: StrategyDecision | None = None
    documents: tuple[str | None, str | None] = (None, None)
    disk: Mapping[str, Any] = {}
    wants_live_trace = False
    follows_parts = False

    def __init__(self) -> None:
        self._given: ExecutionPlan | None = None

    def precision(self, *_: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def plan_for(self, *_: Any) -> ExecutionPlan | None:
        return self._given

    def agree(self, plan: ExecutionPlan | None) -> ExecutionPlan | None:
        return plan

    def plan_applied(self, plan: ExecutionPlan | None) -> None:
        self._given = plan

    def refuses_hooks(self, error: BaseException) -> bool:
        return False

    def forward_ended(self) -> None:
        return None

    def live_trace_finished(self, graph: str | None, refused: MemScaleError | None) -> ExecutionPlan | None:
        return None

    def step_finished(self, observation: dict[str, Any]) -> ExecutionPlan | None:
        return None

    def holds_more(self, more_bytes: int, waiting_forwards: int) -> ExecutionPlan | None:
        return None

    def evaluation_ended(self, before_bytes: int, peak_bytes: int, rows: int) -> None:
        return None

    def layers_held(self, names: list[str]) -> ExecutionPlan | None:
        return None

    def layers_changed(self) -> None:
        return None

    def tighten(self, attempt: int) -> ExecutionPlan:
        raise BudgetInfeasibleError("this executor carries out plans that it is given")

    def rehearsal(self, *_: Any) -> tuple[bool, str, str] | None:
        return None

    def close(self) -> None:
        return None
