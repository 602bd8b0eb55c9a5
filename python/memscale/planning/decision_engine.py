"""Stage 2: from graph and hardware to the execution plan, by rules and a solver in C.

A thin interface to the C pipeline; it holds only the configuration.
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
    """Decides on a technique for every layer: rule-based and deterministic.

    The same graph, hardware and configuration give the same plan, byte for byte, in any
    process.

    Args:
        config: the user's configuration; `Config()` if None. Read by the constructor; later changes
            to it have no effect.

    Raises:
        TypeError: `config` is not a `Config`.

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
        """A plan with one technique at every layer where mode and flags admit it, for comparison.

        Args:
            graph_json: as for `plan`; None for layers that are not known yet.
            hardware_json: as for `plan`.
            technique: one of ``memscale._core.TECHNIQUES``; None for the one that frees most.

        Raises:
            ValueError: `technique` is not one of them.
            MemScaleError: a document is malformed; names the place.
        """
        text = _core.plan_uniform(graph_json, hardware_json, self._config_json, technique)
        return ExecutionPlan(text, hardware_json)
