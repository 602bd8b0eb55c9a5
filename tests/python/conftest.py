"""What every test leaves as it found it."""

import sys

import pytest


@pytest.fixture(autouse=True)
def number_of_threads():
    """torch's, which many tests set. A thread made later takes it over at its first divided work, not
    at its first product: after another number it has two, and products with other last bits."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else None
    yield
    if before is not None and torch.get_num_threads() != before:
        torch.set_num_threads(before)
