"""`memscale demo`: in under a minute, a small model trains unmodified, then under a budget that it exceeds.

Two child processes run the same steps of a six-layer transformer on the same text. The second has the memory of a
process that does not train yet, and 60% of what training added to that in the first. At the end the peaks are
drawn, losses and gradients compared, and the run's report is written.
Needs torch only. `memscale.benchmarks.demo` is the long demo.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from .cases import Case, batches
from .child import _digest, _reset_peak, _status_bytes

__all__ = ["main"]

_BUDGET_SHARE = 0.6
_BAR = 24
_PLOT = 48
_VOCABULARY = 256


def main(argv: list[str] | None = None) -> int:
    """Runs the demo. The exit status is 0 if every printed claim held."""
    parser = argparse.ArgumentParser(prog="memscale demo", description=__doc__)
    parser.add_argument("--steps", type=int, default=4, help="training steps of each run (default 4)")
    parser.add_argument("--report", metavar="FILE", help="where the report of the wrapped run is written")
    parser.add_argument("--budget-gb", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.steps < 1:
        parser.error("--steps must be at least 1")
    return _child(arguments) if arguments.child else _both(arguments)


# ---- the parent ---------------------------------------------------------------------------


def _both(arguments: argparse.Namespace) -> int:
    print("six-layer transformer, 16 x 256 tokens, fp32, AdamW, on the source of Python's standard library\n")
    plain = _run("unmodified", arguments, None)
    if plain is None:
        return 1
    grown_bytes = plain["peak_bytes"] - plain["base_bytes"]
    budget_gb = round((plain["base_bytes"] + _BUDGET_SHARE * grown_bytes) / 1e9, 2)
    wrapped = _run(f"memscale, {budget_gb:.2f} GB", arguments, budget_gb)
    if wrapped is None:
        return 1
    _draw(plain, wrapped, budget_gb)
    same = plain["seen"] == wrapped["seen"]
    fits = wrapped["peak_bytes"] <= budget_gb * 1e9
    print(f"\nlosses and gradients equal to the unmodified run's, to the bit: {'yes' if same else 'NO'}")
    print(f"peak within the budget: {'yes' if fits else 'NO'}")
    if arguments.report:
        print(f"report: {arguments.report}")
    print("the one line: model = memscale.wrap(model, memscale.Config(memory_budget_gb=...))", flush=True)
    return 0 if same and fits else 1


def _run(title: str, arguments: argparse.Namespace, budget_gb: float | None) -> dict[str, Any] | None:
    """Runs a child and shows its progress. None if it failed; its output has then been printed."""
    command = [sys.executable, "-m", "memscale.benchmarks.first", "--child", "--steps", str(arguments.steps)]
    if budget_gb is not None:
        command += ["--budget-gb", repr(budget_gb)]
        command += ["--report", arguments.report] if arguments.report else []
    steps: list[dict[str, Any]] = []
    result: dict[str, Any] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        for line in child.stdout or ():
            said = json.loads(line)
            if said["event"] == "step":
                steps.append(said)
                _show(title, steps, arguments.steps)
            else:
                result = said
        errors = child.stderr.read() if child.stderr is not None else ""
    print(flush=True)
    if child.returncode != 0 or not result:
        print(errors, file=sys.stderr)
        return None
    result["seen"] = [(step["loss"], step["digest"]) for step in steps]
    result["step_seconds"] = statistics.median(step["seconds"] for step in steps[1:] or steps)
    return result


def _show(title: str, steps: list[dict[str, Any]], count: int) -> None:
    """One line that grows; only its end where the output is no terminal."""
    if not sys.stdout.isatty() and len(steps) < count:
        return
    done = _BAR * len(steps) // count
    last = steps[-1]
    begin = "\r" if sys.stdout.isatty() else ""
    print(
        f"{begin}  {title:<18} [{'#' * done}{'.' * (_BAR - done)}] {len(steps)}/{count}  loss {last['loss']:.6f}  "
        f"{last['seconds']:.2f} s a step",
        end="",
        flush=True,
    )


def _draw(plain: dict[str, Any], wrapped: dict[str, Any], budget_gb: float) -> None:
    most = plain["peak_bytes"] / 1e9
    ratio = wrapped["step_seconds"] / plain["step_seconds"]
    print("\npeak memory of the process")
    for title, gigabytes, mark in (
        ("unmodified", most, "█"),
        ("budget", budget_gb, "─"),
        ("memscale", wrapped["peak_bytes"] / 1e9, "█"),
    ):
        print(f"  {title:<12}{mark * max(round(_PLOT * gigabytes / most), 1)} {gigabytes:.2f} GB")
    print(f"a step takes {ratio:.2f} of the unmodified run's; predicted peak {wrapped['predicted_bytes'] / 1e9:.2f} GB")


# ---- the child ------------------------------------------------------------------------------


def _model() -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = self.qkv(self.before(x)).chunk(3, dim=-1)
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            result: torch.Tensor = x + self.mlp(self.between(x))
            return result

    class Language(nn.Module):
        def __init__(self, layers: int = 6, width: int = 256, heads: int = 4) -> None:
            super().__init__()
            self.embed = nn.Embedding(_VOCABULARY, width)
            self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
            self.head = nn.Linear(width, _VOCABULARY)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x)
            logits = self.head(x[:, :-1]).flatten(0, 1)
            return nn.functional.cross_entropy(logits, ids[:, 1:].flatten())

    return Language()


def _child(arguments: argparse.Namespace) -> int:
    import torch

    torch.exp(torch.zeros(8))  # see memscale.base.vector_math
    torch.manual_seed(0)
    model = _model().train()
    data = batches(Case("first", _model, 16, 256), arguments.steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    base_bytes = _status_bytes("VmRSS")  # with the libraries of a CUDA build of torch, twice as much
    if arguments.budget_gb is not None:
        import memscale

        memscale.wrap(model, memscale.Config(memory_budget_gb=arguments.budget_gb))
    _reset_peak()
    for inputs in data:
        start = time.perf_counter()
        loss = model(inputs["input_ids"])
        loss.backward()
        digest = _digest(model)
        optimizer.step()
        optimizer.zero_grad()
        seconds = time.perf_counter() - start
        print(json.dumps({"event": "step", "seconds": seconds, "loss": loss.item(), "digest": digest}), flush=True)
    executor = getattr(model, "_memscale_executor", None)
    predicted = executor.plan.predicted_peak_bytes if executor is not None else 0
    peak_bytes = _status_bytes("VmHWM")
    print(
        json.dumps({"event": "done", "base_bytes": base_bytes, "peak_bytes": peak_bytes, "predicted_bytes": predicted})
    )
    if executor is not None and arguments.report:
        executor.report(arguments.report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
