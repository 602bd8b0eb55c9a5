"""The documented place of `ExecutionPlan`, which lives in `memscale.planning.execution_plan`."""

from __future__ import annotations

from ..planning.execution_plan import ExecutionPlan

__all__ = ["ExecutionPlan"]
