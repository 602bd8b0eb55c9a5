"""Modules of torch.nn under the smallest budget that memscale names for them.

`python bench/modules.py` makes a stack of each module, asks for the smallest budget, and trains the stack under it for
four steps, each in a process that has run no step before. It prints, as Markdown, the budget, the process's peak after
`wrap()` and what is over, and fails if a run exceeds its budget by more than 2 MB. One thread.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
from child import in_child
from torch import nn

import memscale
from memscale import BudgetInfeasibleError, Config, _core

_OVER_MOST_BYTES = 2_000_000
_STEPS = 4

_rows = (4096, 256)
_image = (8, 32, 64, 64)
_line = (8, 32, 4096)
_solid = (4, 16, 16, 32, 32)
_words = (16, 128, 128)

Made = Callable[[], nn.Module]

CASES: dict[str, tuple[Made, tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(256, 256), _rows),
    "Bilinear": (lambda: _Twice(nn.Bilinear(32, 32, 32)), (4096, 32)),
    "Conv1d": (lambda: nn.Conv1d(32, 32, 5, padding=2), _line),
    "Conv2d": (lambda: nn.Conv2d(32, 32, 3, padding=1), _image),
    "Conv2d 7x7": (lambda: nn.Conv2d(32, 32, 7, padding=3), _image),
    "Conv2d depthwise": (lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32), _image),
    "Conv2d dilated": (lambda: nn.Conv2d(32, 32, 3, padding=2, dilation=2), _image),
    "Conv3d": (lambda: nn.Conv3d(16, 16, 3, padding=1), _solid),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(32, 32, 3, padding=1), _line),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(32, 32, 3, padding=1), _image),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(16, 16, 3, padding=1), _solid),
    "LSTM": (lambda: _First(nn.LSTM(128, 128, batch_first=True)), _words),
    "GRU": (lambda: _First(nn.GRU(128, 128, batch_first=True)), _words),
    "RNN": (lambda: _First(nn.RNN(128, 128, batch_first=True)), _words),
    "MultiheadAttention": (lambda: _Thrice(nn.MultiheadAttention(128, 4, batch_first=True)), _words),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), _words),
    "TransformerDecoderLayer": (lambda: _Twice(nn.TransformerDecoderLayer(128, 4, 256, batch_first=True)), _words),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(32), _line),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(32), _image),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(16), _solid),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(32, affine=True), _image),
    "GroupNorm": (lambda: nn.GroupNorm(4, 32), _image),
    "LayerNorm": (lambda: nn.LayerNorm(256), _rows),
    "RMSNorm": (lambda: nn.RMSNorm(256), _rows),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(4), _image),
    "CrossMapLRN2d": (lambda: nn.CrossMapLRN2d(4), _image),
    **{
        name: (lambda name=name: getattr(nn, name)(), _rows)  # type: ignore[misc]
        for name in (
            *("ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Sigmoid", "Tanh"),
            *("Softplus", "Softsign", "Softshrink", "Hardshrink", "Hardtanh", "Hardswish", "Hardsigmoid"),
            *("LogSigmoid", "Tanhshrink", "PReLU", "RReLU", "Dropout", "AlphaDropout", "FeatureAlphaDropout"),
        )
    },
    "Softmax": (lambda: nn.Softmax(-1), _rows),
    "LogSoftmax": (lambda: nn.LogSoftmax(-1), _rows),
    "Softmin": (lambda: nn.Softmin(-1), _rows),
    "Softmax2d": (nn.Softmax2d, _image),
    "Dropout2d": (nn.Dropout2d, _image),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 1, 1), _image),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 1, 1), _image),
    "LPPool2d": (lambda: nn.Sequential(nn.Softplus(), nn.LPPool2d(2, 3, 1), nn.ZeroPad2d(1)), _image),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(64), _image),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(64), _image),
    "Upsample": (lambda: nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.AvgPool2d(2)), _image),
    "PixelShuffle": (lambda: nn.Sequential(nn.PixelShuffle(2), nn.PixelUnshuffle(2)), _image),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(4), _image),
    "ReflectionPad2d": (lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.AvgPool2d(3, 1)), _image),
    "Fold": (lambda: nn.Sequential(nn.Unfold(3, padding=1), nn.Fold(64, 3, padding=1)), _image),
    "CosineSimilarity": (lambda: _Similar(), _words),
    "mixed types": (lambda: _Mixed(), _rows),
}


class _First(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0]  # type: ignore[no-any-return]


class _Twice(_First):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x)  # type: ignore[no-any-return]


class _Thrice(_First):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]


class _Similar(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * nn.functional.cosine_similarity(x, x.roll(1, -1), -1).unsqueeze(-1)


class _Mixed(nn.Module):
    """Half-precision numbers, masks and integers beside single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranks = torch.arange(x.numel()).view_as(x) % 7
        return x.half() * (x * self.scale) + (x > 0) * x + ranks / 7


class _Residual(nn.Module):
    """x, a linear step of x that needs gradients, and the module of it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.weight = inner, nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x * self.weight)


def _stack(make: Made) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(_Residual(make()) for _ in range(8)))


def _wrapped(make: Made, size: tuple[int, ...], budget_bytes: float) -> Any:
    config = Config(memory_budget_gb=budget_bytes / 1e9, enable_logging=False)
    return memscale.wrap(_stack(make), config, sample_input=torch.zeros(size))


def _smallest(make: Made, size: tuple[int, ...]) -> int:
    try:
        _wrapped(make, size, 1e6)
    except BudgetInfeasibleError as error:
        return error.smallest_budget_bytes
    raise RuntimeError("1 MB was enough")


def _peak(make: Made, size: tuple[int, ...], budget_bytes: int) -> int:
    model = _wrapped(make, size, budget_bytes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    _core.reset_peak_rss()
    for _ in range(_STEPS):
        model(torch.randn(size)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return int(_core.process_memory()["peak_rss_bytes"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only modules whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    print("| module | smallest budget MB | peak MB | over MB |\n|---|---|---|---|")
    for name, (make, size) in CASES.items():
        if options.only not in name:
            continue
        budget = in_child(lambda make=make, size=size: _smallest(make, size))
        peak = in_child(lambda make=make, size=size, budget=budget: _peak(make, size, budget)) if budget else None
        if budget is None or peak is None:
            print(f"| {name} | failed | | |", flush=True)
            failed += 1
            continue
        over = peak - budget
        failed += over > _OVER_MOST_BYTES
        print(f"| {name} | {budget / 1e6:.1f} | {peak / 1e6:.1f} | {max(over, 0) / 1e6:.1f} |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
