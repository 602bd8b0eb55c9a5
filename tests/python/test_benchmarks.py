"""The benchmark suite: the published cases, and a table that names the machine of its measurements."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from memscale.benchmarks import BENCHMARK_MODELS
from memscale.benchmarks.allocators import installed
from memscale.benchmarks.cases import GRID
from memscale.benchmarks.runner import Run
from memscale.benchmarks.suite import Suite
from memscale.benchmarks.table import markdown

pytest.importorskip("transformers")


def _suite(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "memscale.benchmarks", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def test_the_canonical_cases_and_their_grid() -> None:
    shapes = {name: (case.batch, case.sequence) for name, case in BENCHMARK_MODELS.items()}
    assert shapes == {
        "bert-base": (16, 128),
        "bert-large": (16, 128),
        "gpt2-medium": (4, 512),
        "gpt2-large": (2, 512),
        "gpt2-xl": (1, 512),
    }
    assert len(GRID) == 25
    for name, (batch, sequence) in shapes.items():
        assert f"{name}-{batch}x{sequence}" in GRID
    sizes = {name: case.config().num_hidden_layers for name, case in BENCHMARK_MODELS.items()}
    assert sizes == {"bert-base": 12, "bert-large": 24, "gpt2-medium": 24, "gpt2-large": 36, "gpt2-xl": 48}


def test_a_quick_table_is_written_with_machine_and_versions(tmp_path: pathlib.Path) -> None:
    found, page = tmp_path / "table.json", tmp_path / "table.md"
    methods = ("unmodified", "memscale-75%", "hf-checkpointing-offload", "closed-aggressive")
    _suite(
        "--quick",
        "--case",
        "bert-base-quick",
        *(part for name in methods for part in ("--method", name)),
        "--closed-python",
        sys.executable,
        "--output",
        str(found),
        "--markdown",
        str(page),
    )
    document = json.loads(found.read_text())
    assert document["versions"]["torch"] and document["versions"]["memscale"]
    assert document["machine"]["cpu"]["usable_cpus"] >= 1
    [case] = document["cases"]
    rows = {row["method"]: row for row in case["runs"]}
    assert {name: row["status"] for name, row in rows.items()} == {
        "unmodified": "ok",
        "memscale-75%": "ok",
        "hf-checkpointing-offload": "not applicable",
        "closed-aggressive": "not installed",
    } or rows["memscale-75%"]["status"] == "infeasible"
    assert rows["unmodified"]["ratio"] == 1.0
    if rows["memscale-75%"]["status"] == "ok":
        assert rows["memscale-75%"]["peak_bytes"] <= rows["memscale-75%"]["budget_bytes"]
        assert rows["memscale-75%"]["same_bits"]
    text = page.read_text()
    total = document["machine"]["ram"]["total_bytes"]
    ram = {"total_bytes": total, "limit_bytes": 3e9}
    limited = markdown(document | {"machine": document["machine"] | {"ram": ram}})
    assert f"{total / 1e9:.1f} GB (limited to 3.0 GB)" in limited
    assert "## bert-base-quick" in text
    assert text.count("\n| ") == 1 + len(methods)


def test_a_budget_is_compared_with_the_fastest_unmodified_run_in_turn(tmp_path: pathlib.Path) -> None:
    found = tmp_path / "suite.json"
    shown = _suite("--case", "gpt2-tiny", "--no-overheads", "--steps", "2", "--output", str(found)).stdout
    rows = json.loads(found.read_text())["cases"]["gpt2-tiny"]
    assert {row["run"] for row in rows} >= {"unmodified", "HF", "memscale", *(f"unmodified, {a}" for a in installed())}
    assert all(row["held"] and row["same_bits"] for row in rows), shown
    assert min(row["ratio"] for row in rows if row["run"].startswith("unmodified")) <= 1.0
    [ours] = [row for row in rows if row["run"] == "memscale"]
    assert ours["peak_bytes"] <= ours["budget_gb"] * 1e9
    rivals = [row for row in rows if row["run"].startswith("HF") and row["peak_bytes"] <= ours["budget_gb"] * 1e9]
    is_slower = ours["ratio"] > 1.02 or any(ours["ratio"] > rival["ratio"] for rival in rivals)
    assert ("MISSED" in shown) == is_slower, shown


def test_what_cannot_be_measured_is_refused() -> None:
    assert "belongs to a table" in _suite("--case", "gpt2-xl", status=2).stderr
    assert "is not in this suite" in _suite("--suite", "canonical", "--case", "gpt2", status=2).stderr
    import torch

    if not torch.cuda.is_available():
        assert "sees no GPU" in _suite("--quick", "--device", "cuda", status=2).stderr


def test_optimizers_are_compared_in_one_run_and_missing_peers_are_named() -> None:
    command = [sys.executable, "-m", "memscale.benchmarks.optimizers", "--millions", "0.2", "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    for name in ("plain C loop", "torch fused", "torch default", "memscale", "memscale 8-bit", "memscale on disk"):
        assert f"\n{name:20} best" in done.stdout, done.stdout
    for name in ("bitsandbytes", "torchao"):
        measured = f"\n{name} 8-bit{'':{14 - len(name)}} best" in done.stdout
        told = f"{name} 8-bit: not installed" in done.stdout or f"{name} 8-bit: does not run here" in done.stdout
        assert measured != told, done.stdout
    for claim in ("memscale: share of the rate of the plain C loop", "memscale: times as fast as torch fused"):
        assert claim in done.stdout


def test_memscale_demo_holds_its_claims_and_draws_them(tmp_path: pathlib.Path) -> None:
    program = pathlib.Path(sys.executable).with_name("memscale")
    report = tmp_path / "run.html"
    command = [str(program), "demo", "--steps", "2", "--report", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("[########################] 2/2") == 2
    assert done.stdout.count(": yes") == 2
    plain, wrapped = (line for line in done.stdout.splitlines() if "█" in line)
    assert plain.count("█") > wrapped.count("█") > 0
    assert report.read_text().startswith("<!doctype html>")


def test_a_row_whose_unmodified_run_was_killed_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [{"seconds": 1.0, "loss": 2.0, "digest": "d", "peak_bytes": 10**9}]
    ours = Run("memscale", 0, steps, {"peak_bytes": 10**9, "step_seconds": 1.0})
    killed = Run("plain", -9, stderr="out of memory")
    row = Suite("gpt2-tiny", 1)._note(ours, killed, "memscale", 1.5)
    assert not row["held"] and "ratio" not in row
    assert "the unmodified run beside it did not finish (status -9)\nout of memory" in capsys.readouterr().out
