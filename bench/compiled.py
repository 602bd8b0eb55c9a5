"""Compiled layers under a budget: torch's own `activation_memory_budget` and memscale, side by side.

`python bench/compiled.py` trains one transformer in a process per row, its layers compiled one by one: as it is, with
torch's partitioner told to keep 0.75, 0.5 and 0.25 of the activations, and wrapped with each of the peaks that these
reached as the budget. It prints a table in Markdown: the peak, times as ratios to the first row's (a median step, its
CPU seconds, those of the first step with the compiler's), and whether losses and gradients are equal to its. `--backend
aot_eager` needs no C++ compiler. The table of one run is in docs/results/README.md. Rows run one after the other on the
same machine; compare ratios.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
import torch._functorch.config as functorch
from torch import nn

import memscale

_SHARES = (0.75, 0.5, 0.25)


class Block(nn.Module):
    """Attention and MLP with dropout, each after a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.before_attention(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(attended.transpose(1, 2).flatten(2)))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.before_mlp(x)))))


class Language(nn.Module):
    """Words, blocks, and a head with its loss."""

    def __init__(self, layers: int, width: int, words: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.words(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens.flatten())


def _status(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _cpu_seconds() -> float:
    """Processor time that this process and its compilers have taken."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _step(model: nn.Module, tokens: torch.Tensor, seed: int) -> tuple[str, float, float]:
    """Digest of loss and gradients; seconds and CPU seconds of forward and backward."""
    torch.manual_seed(seed)
    begun, used = time.perf_counter(), _cpu_seconds()
    loss = model(tokens)
    loss.backward()
    seconds, cpu = time.perf_counter() - begun, _cpu_seconds() - used
    found = hashlib.sha256(loss.detach().numpy().tobytes())
    for parameter in model.parameters():
        found.update(parameter.grad.numpy().tobytes())
        parameter.grad = None
    return found.hexdigest(), seconds, cpu


def _row(options: argparse.Namespace) -> None:
    """One process's row, as JSON."""
    torch.set_num_threads(options.threads)
    if options.share:
        functorch.activation_memory_budget = options.share
    torch.manual_seed(0)
    model = Language(options.layers, options.width, 1000)
    for block in model.blocks:
        block.compile(backend=options.backend)
    if options.budget:
        memscale.wrap(model, memscale.Config(memory_budget_gb=options.budget / 1e9, enable_logging=False))
    tokens = torch.randint(0, 1000, (options.batch, options.length))
    steps, peaks = [], []
    for number in range(options.steps):
        steps.append(_step(model, tokens, number))
        peaks.append(_status("VmHWM"))
        _reset_peak()
    plan = model._memscale_executor.plan.to_json() if options.budget else None
    print(
        json.dumps(
            {
                "peak": max(peaks[1:]),
                "first": steps[0][2],
                "step": statistics.median(step[1] for step in steps[1:]),
                "cpu": statistics.median(step[2] for step in steps[1:]),
                "digests": [step[0] for step in steps],
                "predicted": json.loads(plan)["predicted"]["peak_bytes"] if plan else None,
            }
        )
    )


def _run(arguments: list[str], **row: float) -> dict[str, Any] | None:
    given = [f"--{name}={value}" for name, value in row.items()]
    done = subprocess.run([sys.executable, __file__, "--row", *arguments, *given], stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def _print(name: str, found: dict[str, Any] | None, plain: dict[str, Any]) -> None:
    if found is None:
        print(f"| {name} | refused, or failed | | | | | |", flush=True)
        return
    predicted = "-" if found["predicted"] is None else f"{found['predicted'] / 1e6:.0f}"
    same = "equal" if found["digests"] == plain["digests"] else "differ"
    times = " | ".join(f"{found[name] / plain[name]:.2f}" for name in ("step", "cpu", "first"))
    print(f"| {name} | {found['peak'] / 1e6:.0f} | {predicted} | {times} | {same} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("layers", 6), ("width", 256), ("batch", 16), ("length", 512), ("steps", 5), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        _row(options)
        return
    given = [argument for argument in sys.argv[1:] if argument != "--row"]
    print("| | peak MB | predicted MB | step | CPU s of a step | CPU s of the first | bits |")
    print("|---|---|---|---|---|---|---|")
    plain = _run(given)
    if plain is None:
        raise SystemExit("the compiled run failed")
    _print("compiled", plain, plain)
    _print("memscale, nothing to do", _run(given, budget=1e12), plain)
    for share in _SHARES:
        torchs = _run(given, share=share)
        _print(f"activation_memory_budget {share}", torchs, plain)
        if torchs is not None:
            _print("memscale, the same peak as budget", _run(given, budget=torchs["peak"]), plain)


if __name__ == "__main__":
    main()
