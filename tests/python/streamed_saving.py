"""Saves and loads a model whose parameters are several times the allowance. Prints one JSON line: the bytes by which
each way raised the process's peak, and whether a resumed run has the bits of one that went on.

Usage: python streamed_saving.py FOLDER
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from streamed_cases import resident

import memscale
from memscale import _core

WINDOW_BYTES = 16 << 20
WIDTH, DEPTH = 1024, 40  # 168 MB


def make() -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    with memscale.stream():
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)))
    optimizer = memscale.optim.AdamW(model.parameters(), lr=1e-3, state="disk")
    _core.streamed_set_window(WINDOW_BYTES)
    return model, optimizer


def step(model: torch.nn.Module, optimizer: Any) -> None:
    """One gradient at a time, so that only parameters and state are large."""
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, 0.01 * (number + 1))
        optimizer.step()
        parameter.grad = None


def rise(action: Callable[[], Any]) -> int:
    _core.streamed_drop()
    before = resident("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    action()
    return resident("VmHWM") - before


def load(model: torch.nn.Module, optimizer: Any) -> None:
    with memscale.stream():
        model.load_state_dict(torch.load("model.pt"))
        optimizer.load_state_dict(torch.load("optimizer.pt"))


def pretrained() -> Any:
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=512, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8, vocab_size=1000
    )
    with memscale.stream():
        return transformers.LlamaForCausalLM(config)


def main() -> None:
    import safetensors.torch

    torch.set_num_threads(1)
    os.chdir(sys.argv[1])
    model, optimizer = make()
    step(model, optimizer)
    llama = pretrained()
    resumed, later = make()
    safetensors.torch.save_file({"warm": torch.ones(4)}, "warm.safetensors")
    ways: dict[str, Callable[[], Any]] = {
        "state_dict": model.state_dict,
        "torch.save": lambda: torch.save(model.state_dict(), "model.pt"),
        "torch.save, optimizer": lambda: torch.save(optimizer.state_dict(), "optimizer.pt"),
        "save_file": lambda: safetensors.torch.save_file(model.state_dict(), "model.safetensors"),
        "save_pretrained": lambda: llama.save_pretrained("llama", max_shard_size="20MB"),
        "load": lambda: load(resumed, later),
        "load_checkpoint": lambda: memscale.load_checkpoint(make()[0], "model.safetensors"),
    }
    rises = {name: rise(way) for name, way in ways.items()}
    step(model, optimizer)
    step(resumed, later)
    pairs = zip(model.parameters(), resumed.parameters(), strict=True)
    is_exact = all(torch.equal(first, second) for first, second in pairs)
    saved = memscale.load_checkpoint(pretrained(), "llama").state_dict()
    is_saved = all(torch.equal(value, saved[name]) for name, value in llama.state_dict().items())
    print(
        json.dumps(
            {"rises": rises, "is_exact": is_exact, "is_saved": is_saved, "parameter_bytes": DEPTH * WIDTH**2 * 4}
        )
    )


if __name__ == "__main__":
    main()
