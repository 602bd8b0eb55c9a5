"""`memscale.optim` on parameters that FSDP2 or tensor parallelism divides among two processes (gloo, CPU): the bits of
the same optimizer on each rank's parts, torch's distributed checkpoints, and plans that put the state on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from forked_python import run_python
from test_distributed import told_in

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")

FORMS = ("fp32", "fp32 on disk", "8 bits", "8 bits on disk", "amsgrad", "bf16 split", "bf16 split on disk",
         "bf16 master, 8 bits")  # fmt: skip
SHAPES = {"0.0.weight": [1025, 259], "0.2.bias": [259], "3.weight": [1, 4100], "3.bias": [1]}


def _run(case: str, folder: Path) -> dict[str, list[list[Any]]]:
    here = Path(__file__).parent
    done = run_python(here / "forked_ranks.py", "2", str(here / "divided_state_case.py"), case, folder, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return told_in(folder)


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[Any]]]:
    return _run("forms", tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[Any]]]:
    return _run("planned", tmp_path_factory.mktemp("ranks"))


def _both(told: dict[str, list[list[Any]]], what: str) -> list[Any]:
    """The values that both ranks told under this name, in order."""
    first, second = told[what]
    assert first and len(first) == len(second)
    return [*first, *second]


@pytest.mark.parametrize("form", FORMS)
def test_each_rank_updates_its_parts_as_if_they_were_parameters(stepped: Any, form: str) -> None:
    on_disk = form.endswith("on disk")
    expected = {"parameters": True, "state": True, "versions": True, "moved": on_disk}
    assert _both(stepped, form) == [expected, expected]


@pytest.mark.parametrize("form", ["fp32", "disk", "8 bits"])
def test_a_run_goes_on_from_a_distributed_checkpoint(stepped: Any, form: str) -> None:
    assert _both(stepped, f"goes on {form}") == [True, True]


def test_a_gathered_state_has_the_names_and_shapes_of_the_whole(stepped: Any) -> None:
    (gathered,) = stepped["gathered"][0]
    assert {name: gathered[name] for name in SHAPES} == {name: [shape] for name, shape in SHAPES.items()}


def test_a_run_goes_on_from_the_whole_state_through_torchs_functions(stepped: Any) -> None:
    assert _both(stepped, "goes on from the whole") == [True, True]


def test_8_bit_state_of_another_division_is_refused_and_its_fp32_form_is_not(stepped: Any) -> None:
    for (said,) in stepped["other division"]:
        assert len(said) == 2 and all("another division among ranks" in text for text in said)
    assert _both(stepped, "fp32 form") == [True, True]


def test_a_whole_state_is_refused_with_the_way_to_load_it(stepped: Any) -> None:
    assert all("set_optimizer_state_dict" in text for text in _both(stepped, "whole"))


def test_a_gradient_that_is_not_divided_is_refused(stepped: Any) -> None:
    assert all("parameter 0 of group 0" in text for text in _both(stepped, "plain gradient"))


def test_sums_of_tensor_parallelism_are_made_before_the_update(stepped: Any) -> None:
    assert _both(stepped, "pending") == [True, True]
    assert max(_both(stepped, "apart")) < 1e-6  # of parameters that three steps of 1e-2 moved


def test_a_plan_puts_divided_state_on_disk_with_the_same_bits_and_takes_it_back(planned: Any) -> None:
    assert _both(planned, "comfortable") == [[], []]
    for what in ("fits", "nothing fits"):
        assert all(found["equal"] and "state_on_disk" in found["chosen"] for found in _both(planned, what))
    assert _both(planned, "moved") == [True] * 4
    assert _both(planned, "in memory again") == [True] * 4


def test_state_of_an_earlier_run_is_a_part_of_what_the_process_holds(planned: Any) -> None:
    (first,), (second,) = planned["made"]
    assert first[0] == min(first[1], second[1]) > 0  # as ranks agree: what the one with less has


@pytest.mark.parametrize("form", ["fp32", "amsgrad", "8 bits"])
def test_the_first_plan_counts_fp32_state_of_layers_that_compute_in_bf16(planned: Any, form: str) -> None:
    ((counted, made),) = planned[f"traced {form}"][0]  # the first rank traces
    assert made > 1000 and abs(counted - made) <= made * 0.02  # the ranks' parts differ by a row


def test_no_plan_releases_gradients_that_other_processes_add_to(planned: Any) -> None:
    assert _both(planned, "release") == ["gradients_needed"] * 2
