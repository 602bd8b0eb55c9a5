"""Makes the execution plan from graph and hardware, with the rules and the search in C.

This is a thin interface to the C pipeline. It holds only the configuration.
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
    """Decides on a technique for every layer, deterministically.

    The same graph, hardware and configuration give the same plan, byte for byte, in any
    process.

    Args:
        config: the user's configuration; `Config()` if None. The constructor reads it, so later
            changes have no effect.

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
            BudgetInfeasibleError: no plan fits the byte budget. The text names the smallest budget that
                does.
            MemScaleError: a document is malformed. The text names the place.
        """
        return ExecutionPlan(_core.plan_make(graph_json, hardware_json, self._config_json), hardware_json)

    def uniform(self, graph_json: str | None, hardware_json: str, technique: str | None = None) -> ExecutionPlan:
        """A plan for comparison, with one technique at every layer for which mode and flags admit it.

        Args:
            graph_json: as for `plan`; None for layers that are not known yet.
            hardware_json: as for `plan`.
            technique: one of ``memscale._core.TECHNIQUES``; None for the one that frees most.

        Raises:
            ValueError: `technique` is not in that list.
            MemScaleError: a document is malformed. The text names the place.
        """
        text = _core.plan_uniform(graph_json, hardware_json, self._config_json, technique)
        return ExecutionPlan(text, hardware_json)
