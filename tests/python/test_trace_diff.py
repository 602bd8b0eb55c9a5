"""`python -m memscale.trace_diff`: a trace and a real step agree storage by storage, and if not, it says where."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch
from time_limits import HANG_SECONDS
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from memscale.trace_diff import compare


def _convolutions() -> Any:
    layers = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.GELU(), nn.BatchNorm2d(4)) for _ in range(3)]
    return nn.Sequential(*layers), torch.randn(2, 4, 32, 32)


def _decoder() -> Any:
    import transformers

    config = transformers.GPT2Config(
        n_layer=2, n_embd=64, n_head=2, vocab_size=128, bos_token_id=1, eos_token_id=1, n_positions=32
    )
    ids = torch.randint(0, 128, (2, 16))
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def _recurrent() -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTM(16, 32, num_layers=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.cell(x)[0].square().mean()

    model = Model()
    return model, torch.randn(5, 3, 16), torch.optim.SGD(model.parameters(), lr=0.1)


class _Lying(nn.Module):
    """Allocates 40,000 bytes under fake tensors only."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        if isinstance(x, FakeTensor):
            torch.zeros(10_000)
        return x.sum()


def _lying() -> Any:
    return _Lying(), torch.randn(8, 64)


@pytest.mark.parametrize("make", [_convolutions, _decoder])
def test_a_trace_has_the_storages_of_the_real_step(make: Any) -> None:
    report, differences = compare(make)
    assert differences == 0, report
    assert report.endswith("no difference\n")


def test_workspaces_that_fake_kernels_do_not_make_are_found() -> None:
    """Under fake tensors, torch's LSTM runs without its fused kernel."""
    report, differences = compare(_recurrent)
    assert differences > 0
    assert "cell, call 0\n" in report and "only in the step" in report


def test_an_allocation_of_the_trace_alone_is_named() -> None:
    report, differences = compare(_lying)
    assert differences == 2
    assert "- alloc     40.00 kB  after operator 1, only in the trace" in report
    assert "- free      40.00 kB" in report


def test_the_command_says_what_is_wrong_with_its_argument(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.py").write_text("def number():\n    return 3\n")
    for place, text in (
        ("m.py", "is not FILE.py:FUNCTION"),
        ("m.py:absent", "has no function 'absent'"),
        ("gone.py:make", "the file gone.py does not exist"),
        ("m.py:number", "must return (model, inputs)"),
    ):
        command = [sys.executable, "-m", "memscale.trace_diff", place]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS)
        assert done.returncode == 2 and text in done.stderr, done.stderr
