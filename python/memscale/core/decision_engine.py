"""The documented place of `DecisionEngine`, which lives in `memscale.planning.decision_engine`."""

from __future__ import annotations

from ..planning.decision_engine import DecisionEngine

__all__ = ["DecisionEngine"]
