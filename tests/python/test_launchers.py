"""`accelerate launch` and Ray Train with two workers on a CPU host: a loop with the one line added trains as without
it, under one plan on both workers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from process_support import environment_of_tests
from time_limits import HANG_SECONDS

_CASE = Path(__file__).with_name("launcher_case.py")


def _start(folder: Path, *command: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*command, str(folder)],
        env=environment_of_tests(OMP_NUM_THREADS="1", **environment),
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _answers(folder: Path, *processes: subprocess.Popen[str]) -> list[list[dict[str, Any]]]:
    """The answers of rank 0 and of rank 1: of the run without memscale, then of the wrapped one."""
    for process in processes:
        _, errors = process.communicate(timeout=HANG_SECONDS)
        assert process.returncode == 0, errors[-4000:]
    return [[json.loads(line) for line in (folder / str(rank)).read_text().splitlines()] for rank in range(2)]


def _judge(answers: list[list[dict[str, Any]]]) -> None:
    plans = []
    for plain, wrapped in answers:
        assert wrapped["losses"] == plain["losses"]
        assert wrapped["parameters"] == plain["parameters"]
        assert wrapped["recomputed"] > 0
        plans.append(wrapped["plan"])
    assert plans[0] == plans[1]
    assert answers[0][0]["parameters"] == answers[1][0]["parameters"]
    assert answers[0][0]["losses"] != answers[1][0]["losses"]


def test_accelerate_launch(tmp_path: Path) -> None:
    """On CPU hosts it starts one process for each machine; ranks come from what started it there."""
    pytest.importorskip("accelerate")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--cpu",
        "--num_machines",
        "2",
        "--num_processes",
        "2",
    ]
    launch += ["--main_process_ip", "127.0.0.1", "--main_process_port", port, "--mixed_precision", "no"]
    launch += ["--dynamo_backend", "no", str(_CASE), "accelerate"]
    ranks = [_start(tmp_path, *launch, WORLD_SIZE="2", RANK=str(rank), LOCAL_RANK="0") for rank in range(2)]
    _judge(_answers(tmp_path, *ranks))


def test_ray_train(tmp_path: Path) -> None:
    pytest.importorskip("ray.train.torch")
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # its sockets lie there, and their names have a limit
        own = {"RAY_TMPDIR": short, "RAY_USAGE_STATS_ENABLED": "0"}
        _judge(_answers(tmp_path, _start(tmp_path, sys.executable, str(_CASE), "ray", **own)))
