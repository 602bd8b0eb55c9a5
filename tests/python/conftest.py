"""Restores torch's number of threads after each test, and keeps garbage collections short."""

import gc
import os
import sys

import pytest

IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ

if IS_WORKER:
    import torch  # noqa: F401
    import transformers  # noqa: F401

    from memscale.tracing.profiler import load_tracer

    load_tracer()


@pytest.fixture(scope="module", autouse=True)
def short_collections():
    """Tests collect garbage and search it hundreds of times; without this, half of their time went into the hundreds of
    thousands of objects of torch, transformers and trainers. Only objects from before a module's first test are left
    out."""
    if IS_WORKER:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def number_of_threads():
    """Many tests set the number. A new thread adopts it only at its first operator that torch divides among threads,
    so if a test left another number behind, products before and after that operator could differ in their last
    bits."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else None
    yield
    if before is not None and torch.get_num_threads() != before:
        torch.set_num_threads(before)
