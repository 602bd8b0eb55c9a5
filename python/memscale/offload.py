"""The documented place of `AsyncOffloadConfig`, which lives in `memscale.config`."""

from __future__ import annotations

from .config import AsyncOffloadConfig

__all__ = ["AsyncOffloadConfig"]
