"""Trainers that own the training loop."""

from __future__ import annotations

from .lightning import MemScaleCallback

__all__ = ["MemScaleCallback"]
