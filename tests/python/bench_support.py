"""Loads programs of bench/, which is not a package."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

_BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"


def load_bench(place: str) -> Any:
    """The module at `place`, a path below bench/. Each call loads a new one."""
    spec = importlib.util.spec_from_file_location(pathlib.Path(place).stem + "_bench", _BENCH / place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
