"""Stage 2: from graph and hardware to the execution plan, by rules and a solver in C.

A thin face of the C pipeline; it holds the configuration and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _core
from ..config import check_config
from .execution_plan import ExecutionPlan

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["DecisionEngine"]


class DecisionEngine:
    """Decides what is done at every layer: rule-based and deterministic.

    The same graph, hardware and configuration give the same plan, byte for byte, in any
    process.

    Args:
        config: what the user asked for; `Config()` if None. Read when the engine is
            made; later changes to it have no effect.

    Raises:
        TypeError: `config` is no `Config`.

    Example:
        >>> graph = MemoryProfiler(config).trace(model, (batch,))
        >>> plan = DecisionEngine(config).plan(graph, hardware_json)
    """

    def __init__(self, config: Config | None = None) -> None:
        self._config_json = check_config(config).to_json()

    def plan(self, graph_json: str, hardware_json: str) -> ExecutionPlan:
        """The fastest plan whose predicted peak fits.

        Args:
            graph_json: a graph document (docs/formats/graph.schema.json).
            hardware_json: a hardware description (docs/formats/hardware.schema.json).

        Raises:
            BudgetInfeasibleError: no plan fits the byte budget; names the smallest that does.
            MemScaleError: a document is malformed; names the place.
        """
        return ExecutionPlan(_core.plan_make(graph_json, hardware_json, self._config_json), hardware_json)

    def uniform(self, graph_json: str | None, hardware_json: str, technique: str | None = None) -> ExecutionPlan:
        """A plan with one technique wherever mode and flags admit it, as a yardstick.

        Args:
            graph_json: as for `plan`; None gives a plan for layers not yet known.
            hardware_json: as for `plan`.
            technique: one of ``memscale._core.TECHNIQUES``; None is the one that frees most.

        Raises:
            ValueError: there is no such technique.
            MemScaleError: a document is malformed; names the place.
        """
        text = _core.plan_uniform(graph_json, hardware_json, self._config_json, technique)
        return ExecutionPlan(text, hardware_json)
