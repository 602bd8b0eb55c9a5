"""The documented place of `ModelGraph`, which lives in `memscale.tracing.model_graph`."""

from __future__ import annotations

from ..tracing.model_graph import ModelGraph

__all__ = ["ModelGraph"]
