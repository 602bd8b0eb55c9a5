"""Models with streamed parameters: equal bits, a kept budget, and errors that name the directory or the cause."""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch
from forked_python import run_python
from streamed_cases import CASES
from time_limits import HANG_SECONDS

import memscale
from memscale import _core

_SCRIPT = pathlib.Path(__file__).with_name("streamed_cases.py")
_SAVING = pathlib.Path(__file__).with_name("streamed_saving.py")
_KILLED = pathlib.Path(__file__).with_name("streamed_killed.py")


def run_case(name: str, mode: str) -> dict[str, Any]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = run_python("-W", "ignore", _SCRIPT, name, mode, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", CASES)
def test_bits_are_equal_and_the_budget_is_kept(name: str) -> None:
    if name == "adapters":
        pytest.importorskip("peft")
    plain, streamed = run_case(name, "plain"), run_case(name, "streamed")
    assert streamed["digest"] == plain["digest"]
    assert streamed["peak_bytes"] <= streamed["budget_bytes"]
    assert plain["blocks"] == 0 and streamed["blocks"] > 0
    if name == "checkpoint":  # later plans may keep all of it
        assert streamed["dropped_bytes"] > 0
    elif name != "with_neighbours":  # it also holds an average of the weights, so its window saves little
        assert streamed["dropped_bytes"] > 0
        assert streamed["window_bytes"] < streamed["total_bytes"]
        assert streamed["fetched_bytes"] > 2 * streamed["total_bytes"]


def test_a_streamed_model_has_the_plain_models_numbers_and_its_blocks_die_with_it() -> None:
    torch.manual_seed(5)
    plain = torch.nn.Linear(512, 512)
    torch.manual_seed(5)
    before = _core.streamed_stats()["blocks"]
    with memscale.stream():
        streamed = torch.nn.Linear(512, 512)
    assert torch.equal(plain.weight, streamed.weight) and torch.equal(plain.bias, streamed.bias)
    assert _core.streamed_stats()["blocks"] == before + 1  # the bias is too small for a file
    outside = torch.nn.Linear(512, 512)
    assert _core.streamed_stats()["blocks"] == before + 1
    del streamed, outside
    assert _core.streamed_stats()["blocks"] == before


def test_a_checkpoint_is_loaded_into_files(tmp_path: pathlib.Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=256, n_layer=2, n_head=4, vocab_size=500)
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    plain = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    with memscale.stream():
        streamed = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    large = [value for value in streamed.parameters() if value.nbytes >= 128 << 10]
    assert _core.streamed_bytes([value.data_ptr() for value in large]) >= sum(value.nbytes for value in large)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, streamed.state_dict()[name]), name


def test_saving_and_loading_stay_within_the_window_and_resume_exactly(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("safetensors")
    pytest.importorskip("transformers")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = run_python("-W", "ignore", _SAVING, str(tmp_path), env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["is_exact"] and found["is_saved"]
    # A window of 17 MB, the worker's 16 MB, and what is touched between two of its looks; loading makes tensors faster
    # than pages can be written, and copies them to the model and the state.
    for way, risen_bytes in found["rises"].items():
        moved_bytes = found["parameter_bytes"] * {"torch.save, optimizer": 2, "load": 6}.get(way, 1)
        assert risen_bytes < moved_bytes / 2, way


def test_a_killed_run_goes_on_from_its_last_complete_checkpoint(tmp_path: pathlib.Path) -> None:
    steps, attempts, draws = 10, 5, random.Random(0)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    kills = 0

    def lines(folder: pathlib.Path, is_killed: bool) -> list[str]:
        nonlocal kills
        command = [sys.executable, "-W", "ignore", str(_KILLED), str(folder), str(steps)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            hanging = threading.Timer(HANG_SECONDS, child.kill)
            hanging.start()
            found = [child.stdout.readline()]
            if is_killed:
                time.sleep(draws.random() * 0.4)  # in a step, in a save, or between them
                child.kill()
            found += child.stdout.readlines()
            hanging.cancel()
        assert child.returncode == 0 or is_killed
        kills += child.returncode == -signal.SIGKILL
        return [line.strip() for line in found if line]

    expected = lines(whole, is_killed=False)
    assert len(expected) == steps
    seen: list[str] = []
    for attempt in range(attempts):
        seen += lines(killed, is_killed=attempt + 1 < attempts)
    assert set(seen) == set(expected)
    assert kills >= 2
    # Files of streamed tensors and of the state have no names. A save that was killed leaves its own file.
    assert {path.name for path in killed.iterdir()} <= {"last.pt", "last.part"}


def test_directories_that_are_not_on_a_disk_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(memscale.MemScaleError), memscale.stream("/proc/no/such/place"):
        pass
    if os.path.isdir("/dev/shm"):
        with pytest.raises(memscale.ConfigError, match="memory"), memscale.stream("/dev/shm"):
            pass
    with memscale.stream(tmp_path):
        with pytest.raises(memscale.MemScaleError, match="already stream"), memscale.stream(tmp_path.parent):
            pass
        assert torch.ones(1 << 16).sum() == 1 << 16
    assert not list(tmp_path.iterdir())


def test_a_full_disk_raises_an_error_that_names_it() -> None:
    code = """
import resource, torch, memscale
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    with memscale.stream():
        torch.nn.Linear(1024, 1024)
except memscale.OffloadError as error:
    print(error)
print(torch.ones(1 << 20).sum())
"""
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "reserving 4.19 MB for a spill file" in done.stdout and "tensor(1048576.)" in done.stdout


def test_an_error_of_the_callers_own_leaves_the_block_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), memscale.stream():
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), memscale.stream():
        torch.ones(2, 3) @ torch.ones(2, 3)
    before = _core.streamed_stats()["blocks"]
    made = torch.ones(1 << 20)
    assert _core.streamed_stats()["blocks"] == before
    del made
