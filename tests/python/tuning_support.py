"""Models for the tuner's trials, which import them in separate processes."""

from __future__ import annotations

import os
import signal

import torch
from torch import nn


def mlp(depth: int = 6, width: int = 256) -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)])


class Misbehaves(nn.Module):
    """Its forward fails in the way that `fault` names."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() or type(x) is not torch.Tensor:
            return self.layer(x)
        if self.fault == "raises":
            raise ValueError("no such luck")
        if self.fault == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "exits":
            os._exit(3)
        if self.fault == "hangs":
            signal.pause()
        if self.fault == "grows":
            self.held = [torch.ones(1 << 22) for _ in range(1000)]
        return self.layer(x)


def measured_peak(name: str, sender: object) -> None:
    """Builds a model, predicts its need and trains it unmodified in this process. Sends (predicted, measured)
    bytes."""
    import memscale
    from memscale import _core

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, sample = CASES[name]()
    predicted = memscale.OOMPredictor(model).predict(sample)
    optimizer = torch.optim.AdamW(model.parameters())
    _core.reset_peak_rss()
    for _ in range(2):
        output = model(**sample) if isinstance(sample, dict) else model(sample)
        loss = getattr(output, "loss", None)
        (output.square().mean() if loss is None else loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    with open("/proc/self/status", encoding="ascii") as status:
        [line] = [line for line in status if line.startswith("VmHWM:")]
    sender.send((predicted.need_bytes, int(line.split()[1]) * 1024))


def _gpt2(batch: int, sequence: int) -> tuple[nn.Module, dict]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=4096, bos_token_id=0, eos_token_id=0)
    ids = torch.zeros((batch, sequence), dtype=torch.int64)
    return GPT2LMHeadModel(config).train(), {"input_ids": ids, "labels": ids}


CASES = {
    "wide": lambda: (mlp(2, 2048), torch.ones(32, 2048)),
    "deep": lambda: (mlp(8, 256), torch.ones(8192, 256)),
    "conv": lambda: (
        nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3)),
        torch.ones(4, 3, 128, 128),
    ),
    "gpt2": lambda: _gpt2(4, 128),
}
