"""The quickest loops of tests/loops keep their promises: bits, budget, log lines and number of plans.

`make loops` runs all of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "loops"))

from frame import all_loops, complaints, run_apart

QUICK = [chosen.name for chosen in all_loops().values() if chosen.is_quick]


@pytest.mark.parametrize("name", QUICK)
def test_a_loop_keeps_its_promises(name):
    chosen = all_loops()[name]
    assert complaints(chosen, run_apart(name, False), run_apart(name, True)) == []
