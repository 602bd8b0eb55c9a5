"""Nasty layers and loops train to the bits of the unwrapped run, or memscale refuses them by name. An interrupt
anywhere in memscale's hooks and replays leaves the model intact. These tests run a sample; `make nasty` runs all."""

from __future__ import annotations

import os
import pathlib

import pytest
from forked_python import run_python

NASTY = pathlib.Path(__file__).resolve().parent / "nasty"


def run(program: str, *arguments: str) -> str:
    """Runs the program in a new process, because cases change the process's state and fork."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = run_python("-W", "ignore", str(NASTY / program), *arguments, env=environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(
    ("first", "configuration"), enumerate(["recompute", "selective", "offload", "segments", "smallest"])
)
def test_nasty_layers_are_exact_or_refused_by_name(first, configuration, tmp_path):
    said = run("run.py", "--config", configuration, "--every", "25", "--first", str(5 * first))
    assert " exact" in said


# Layers that were trained wrongly once, or stopped by an error that named nothing.
CURED = (
    ("a_copy_of_the_whole_layer_that_replaces_its_average", "recompute"),
    ("lazy_buffers_that_the_first_step_makes", "recompute"),
    *((f"a_count_in_{place}", "recompute") for place in ("a_list_of_thousands", "a_descriptor", "a_replaced_call")),
    *((f"a_count_in_{place}", "recompute") for place in ("the_forward_of_a_parent", "the_array_below", "a_chain_of")),
    ("a_count_in_a_tensor_of_a_dataclass", "segments"),
    ("a_count_in_the_class_of_all_modules", "segments"),
)


@pytest.mark.parametrize(("name", "configuration"), CURED)
def test_layers_that_were_wrong_once_are_exact_or_refused(name, configuration):
    said = run("run.py", "--config", configuration, "--case", name)
    assert "1 cases" in said


# Layers that an error stopped in a backward, because only a replay showed what they depend on.
STOPPED = (
    "a_count_in_an_operator_of_the_users",
    "a_count_in_the_optimizer_that_forward_reads",
    "a_large_tensor_of_a_closed_object",
    "a_layer_that_looks_at_its_callers",
    "another_working_directory_around_forward",
    "a_parametrization_that_the_layer_changes_half_way",
    "autocast_left_on_by_the_first_layer",
)


@pytest.mark.parametrize("name", STOPPED)
def test_layers_that_were_stopped_once_are_exact(name):
    assert "1 exact" in run("run.py", "--config", "recompute", "--case", name)


@pytest.mark.parametrize(
    ("technique", "stride"),
    [
        *(("recompute", 397), ("recompute_segment", 593), ("recompute_joined", 401)),
        *(("recompute_offload_input", 397), ("selective_4", 97), ("selective_4_offload_disk", 97), ("offload_disk", 5)),
        ("wrapped", 9001),
    ],
)
def test_an_interrupt_anywhere_leaves_the_model_intact(technique, stride, tmp_path):
    run("interrupts.py", "--technique", technique, "--stride", str(stride), "--directory", str(tmp_path))
