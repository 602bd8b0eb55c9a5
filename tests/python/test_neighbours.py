"""What else lives beside a wrapped run: a home that can't be written, another wrapped run on the same disk and caches,
and a program that takes the process's place in the middle of a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from process_support import environment_of_tests
from time_limits import HANG_SECONDS

# Trains a small model under the smallest budget named, on the disk that is given; prints losses and warnings.
_TRAINING = """
    import logging, sys
    import torch
    import memscale

    warnings = []

    class Heard(logging.Handler):
        def emit(self, record):
            warnings.append(record.getMessage())

    logging.getLogger("memscale").addHandler(Heard(logging.WARNING))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers = [torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Sigmoid()) for _ in range(4)]
    model = torch.nn.Sequential(*layers)
    rows = torch.randn(2048, 512)
    if sys.argv[1] != "unwrapped":
        config = memscale.Config(force_optimize=True, disk_offload_dir=sys.argv[1], verify_correctness=True)
        memscale.wrap(model, config)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(4):
        loss = model(rows).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    import json
    print(json.dumps({"losses": losses, "warnings": warnings}))
"""


def _start(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *arguments],
        env=environment_of_tests(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _answer(process: subprocess.Popen[str]) -> dict[str, list[str]]:
    out, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def unwrapped() -> list[str]:
    return _answer(_start(_TRAINING, "unwrapped"))["losses"]


def test_a_home_that_cannot_be_written_draws_one_warning_and_changes_no_bit(
    tmp_path: Path, unwrapped: list[str]
) -> None:
    home = tmp_path / "home"
    home.write_text("")  # no folder can be made below a file, whoever asks
    seen = _answer(_start(_TRAINING, str(tmp_path), HOME=str(home), XDG_CACHE_HOME=""))
    assert seen["losses"] == unwrapped
    assert len([line for line in seen["warnings"] if str(home) in line]) == 1, seen["warnings"]
    assert home.read_text() == "" and os.listdir(tmp_path) == ["home"]


def test_two_runs_share_a_disk_and_caches(tmp_path: Path, unwrapped: list[str]) -> None:
    caches, disk = tmp_path / "caches", tmp_path / "disk"
    disk.mkdir()
    both = [_start(_TRAINING, str(disk), XDG_CACHE_HOME=str(caches)) for _ in range(2)]
    for seen in map(_answer, both):
        assert seen["losses"] == unwrapped
    files = [path for path in caches.rglob("*") if path.is_file()]
    assert files, "the runs saved what they measured"
    for path in files:
        json.loads(path.read_text())  # whole, although both wrote it
    assert os.listdir(disk) == []
    third = _answer(_start(_TRAINING, str(disk), XDG_CACHE_HOME=str(caches)))
    assert third["losses"] == unwrapped and third["warnings"] == []


# Stores a layer's tensors on disk, and then becomes another program, which prints the files that it finds open.
_REPLACED = """
    import os, sys
    import torch
    from execute_support import executing, uniform

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh()) for _ in range(4)))
    with executing(model, uniform(model, "offload_disk", write_window=1 << 30), sys.argv[1]) as executor:
        loss = model(torch.randn(4096, 512)).square().mean()
        names = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        assert any(sys.argv[1] in name for name in names), names  # the file of spilled tensors
        listing = "import os; print([os.path.realpath('/proc/self/fd/' + fd) for fd in os.listdir('/proc/self/fd')])"
        os.execv(sys.executable, [sys.executable, "-c", listing])
"""


def test_a_program_that_takes_the_process_s_place_finds_no_file_of_ours(tmp_path: Path) -> None:
    process = _start(_REPLACED, str(tmp_path))
    out, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, err
    assert "pipe:" in out and str(tmp_path) not in out and "memscale" not in out
    assert os.listdir(tmp_path) == []
