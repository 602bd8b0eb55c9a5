"""Nasty layers and loops train to the same bits as unwrapped, or are refused by name. An interrupt anywhere in our
hooks and replays leaves the model intact. These tests run a sample; `make nasty` runs all."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from time_limits import HANG_SECONDS

NASTY = pathlib.Path(__file__).resolve().parent / "nasty"


def run(program: str, *arguments: str) -> str:
    """Runs the program in a new process, because the cases change the process's state and fork."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(NASTY / program), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    ("first", "configuration"), enumerate(["recompute", "selective", "offload", "segments", "smallest"])
)
def test_nasty_layers_are_exact_or_refused_by_name(first, configuration, tmp_path):
    said = run("run.py", "--config", configuration, "--every", "25", "--first", str(5 * first))
    assert " exact" in said


@pytest.mark.parametrize(
    ("technique", "stride"),
    [
        *(("recompute", 397), ("recompute_segment", 593), ("recompute_joined", 401)),
        *(("recompute_offload_input", 397), ("selective_4", 97), ("selective_4_offload_disk", 97), ("offload_disk", 5)),
        ("wrapped", 9001),
    ],
)
def test_an_interrupt_anywhere_leaves_the_model_whole(technique, stride, tmp_path):
    run("interrupts.py", "--technique", technique, "--stride", str(stride), "--directory", str(tmp_path))
