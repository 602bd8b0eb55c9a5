"""DDP, FSDP2 and pipelines on two processes (gloo, CPU): gradients equal the unwrapped run's, ranks that meet in
collectives have one plan, the smaller budget applies, and no rank waits for one that failed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_python import run_python

import memscale

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")

_CASE = "distributed_case.py"


def _launch(
    case: str, folder: Path, timeout: float = 900, file: str = _CASE, under_torchrun: bool = False
) -> tuple[int, dict[str, list[list[Any]]]]:
    """The exit status and, for each name that the case reported, the values of rank 0 and of rank 1."""
    program = str(Path(__file__).with_name(file))
    if under_torchrun:
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = subprocess.run(
            [sys.executable, "-m", *torchrun, program, case, str(folder)],
            capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
    else:
        ranks = Path(__file__).with_name("forked_ranks.py")
        done = run_python(ranks, "2", program, case, folder, timeout=timeout)
    sys.stderr.write(done.stderr[-4000:])  # shown if a test fails
    told = told_in(folder)
    assert told or case == "dies"
    return done.returncode, told


def told_in(folder: Path) -> dict[str, list[list[Any]]]:
    """For each name that the case reported into `folder`, the values of rank 0 and of rank 1."""
    told: dict[str, list[list[Any]]] = {}
    for rank in range(2):
        lines = folder / str(rank)
        for line in lines.read_text().splitlines() if lines.exists() else ():
            entry = json.loads(line)
            told.setdefault(entry["what"], [[], []])[rank].append(entry["value"])
    return told


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[Any]]]:
    status, told = _launch("train", tmp_path_factory.mktemp("ranks"))
    assert status == 0
    return told


def test_gradients_and_parameters_are_those_of_the_unwrapped_distributed_run(trained: Any) -> None:
    assert trained["equal"] == [[True] * 7] * 2
    for rank in trained["recomputed"]:
        assert all(rank[:6])


def test_every_rank_follows_the_same_plan(trained: Any) -> None:
    first, second = trained["plan"]
    assert len(first) == 7
    assert first == second
    assert any(entry["technique"] != "keep" for entry in json.loads(first[0])["entries"])


def test_saved_tensors_move_where_parameters_are_sharded_and_gathered_parameters_stay(trained: Any) -> None:
    for rank in trained["moved"]:
        stored_bytes, fetched_bytes = rank[6]
        assert stored_bytes == fetched_bytes > 0  # FSDP gathers a weight anew, so a stored one would not be fetched


def test_a_sharded_model_is_planned_at_its_first_forward(trained: Any) -> None:
    plans = [json.loads(text) for text in trained["plan"][0]]
    for of_the_trace_before, of_the_trace_after in zip(plans[3]["entries"], plans[2]["entries"], strict=True):
        assert of_the_trace_before["technique"] == of_the_trace_after["technique"]
    assert plans[2]["predicted"]["peak_bytes"] > 0
    for rank in trained["comfortable"]:
        assert rank[0]["plan"]["skipped"] and rank[0]["recomputed"] == 0
        assert rank[0]["equal"] and rank[0]["hooks"]


def test_a_budget_that_nothing_fits_is_said_of_a_sharded_model_and_measured(trained: Any) -> None:
    for rank in trained["tight"]:
        assert rank[0]["equal"] and rank[0]["plan"]["pressure"]["allowed_bytes"] == 10_000_000
    texts = trained["tight"][0][0]["told"]
    assert "smallest budget" in texts[0] and "all that FSDP may gather" in texts[0]
    assert any("the run goes on with the plan it has" in text for text in texts[1:])  # peaks are still compared


def test_mixed_precision_is_traced_in_its_types(trained: Any) -> None:
    for rank in trained["mixed"]:
        in_fp32, in_bf16 = rank[0]["live"]
        assert rank[0]["equal"]
        assert in_bf16 < 0.7 * in_fp32


def test_the_smaller_budget_holds_for_all(trained: Any) -> None:
    assert trained["allowed"] == [[3_000_000_000], [3_000_000_000]]


def test_what_one_rank_is_refused_is_raised_on_all(tmp_path: Path) -> None:
    status, told = _launch("refused", tmp_path)
    assert status == 0
    (own, wrapped), (other, infeasible) = told["error"][1], told["error"][0]
    assert own[0] == "ConfigError"
    assert other[0] == "IntegrationError" and "rank 1 failed with ConfigError" in other[1]
    assert infeasible[0] == "BudgetInfeasibleError"
    assert wrapped[0] == "IntegrationError" and "rank 0 failed with BudgetInfeasibleError" in wrapped[1]


def test_stages_of_a_pipeline_follow_plans_of_their_own_under_every_schedule(tmp_path: Path) -> None:
    status, told = _launch("pipelines", tmp_path)
    assert status == 0
    for rank in told["schedule"]:
        assert len(rank) >= 5
        for name, is_same, recomputed in rank:
            assert is_same and recomputed > 0, name


def test_a_rank_that_fails_in_a_step_ends_the_run(tmp_path: Path) -> None:
    status, _ = _launch("dies", tmp_path)  # shorter than the process group's own limit of half an hour
    assert status != 0


def test_a_distributed_module_is_refused_with_the_right_order(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        with pytest.raises(memscale.IntegrationError, match="wrap the module first, then construct"):
            memscale.wrap(model)
    finally:
        torch.distributed.destroy_process_group()


def test_a_trainer_on_ranks_keeps_its_budget_in_every_step(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    (tmp_path / "refused").mkdir()
    (tmp_path / "trained").mkdir()
    _, told = _launch("100000000", tmp_path / "refused", file="trainer_case.py", under_torchrun=True)
    smallest = told["refused"][0][0]
    status, told = _launch(str(smallest), tmp_path / "trained", file="trainer_case.py", under_torchrun=True)
    assert status == 0
    assert told["equal"] == [[True], [True]]
    for peaks, replans in zip(told["peak"], told["replans"], strict=True):
        assert len(peaks) == 5
        assert max(peaks) <= smallest  # DDP's buckets and what accelerate loads are in the plan
        assert replans[-1] <= 2
