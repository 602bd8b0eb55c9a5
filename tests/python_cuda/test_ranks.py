"""Two ranks on the double, each with its own process and device: one plan, the plain run's bits, a kept budget."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys

from conftest import FOLDER

CASE = pathlib.Path(__file__).with_name("ranks_case.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(case: str) -> list[str]:
    """The lines that both ranks print; fails if one of them fails."""
    port = str(free_port())
    started = [
        subprocess.Popen(
            [sys.executable, str(CASE), str(FOLDER), case, str(rank), port],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        ended = [process.communicate(timeout=600) for process in started]
    finally:
        for process in started:
            process.kill()
    told = [errors[-4000:] for _, errors in ended]  # a rank that fails ends the other
    assert [process.returncode for process in started] == [0, 0], "\n".join(told)
    return [printed for printed, _ in ended]


def test_ddp_keeps_budget_and_bits():
    assert all("done" in printed for printed in run_ranks("ddp"))


def test_a_model_that_moves_after_wrap_is_planned_for_its_device_on_all_ranks():
    first, second = run_ranks("moved")
    assert "plan {" in first and first == second


def test_fsdp_keeps_budgets_and_bits_with_saved_tensors_or_state_in_host_memory():
    assert all("done" in printed for printed in run_ranks("fsdp"))


def test_divided_state_in_host_memory_has_torchs_bits():
    assert all("done" in printed for printed in run_ranks("hosted"))
