"""Stands in for torch_double if the tests run on a GPU (MEMSCALE_TESTS_ON=gpu). A GPU can't be told how long its work
takes, what it refuses, or how much memory it has: a test that asks for that is skipped. Nothing watches the order of
accesses, so only wrong values show a missing wait."""

from __future__ import annotations

from typing import Any

import pytest


def load(_: str, rocm: bool = False) -> None:
    """Does nothing: torch brings its own CUDA."""


def reset() -> None:
    """Does nothing: no failure or limit was planned."""


def violations() -> tuple[int, str]:
    """No violation, since none is counted."""
    return 0, ""


def schedule(seed: int, most_delay_ns: int, queue_limit: int = 0) -> None:
    """Does nothing: the GPU's own times are the schedule."""


def __getattr__(name: str) -> Any:
    def control(*_: Any, **__: Any) -> None:
        pytest.skip(f"a GPU has no {name}()")

    return control
