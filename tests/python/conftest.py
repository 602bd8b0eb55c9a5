"""Restores torch's number of threads after each test."""

import sys

import pytest


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
