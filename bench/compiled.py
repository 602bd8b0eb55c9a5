"""Compiled layers under a budget: torch's own `activation_memory_budget` and memscale, side by side.

`python bench/compiled.py` trains one transformer with AdamW in a process per row, its layers compiled one by one: as it
is, with torch's partitioner told to keep 0.75, 0.5 and 0.25 of the activations, and wrapped with each of the peaks that
these reached as the budget. It prints a table in Markdown: the peak, times as ratios to the first row's (a median step,
its CPU seconds; the first step with its compilation, and its CPU seconds with the compiler's), and whether losses and
gradients are equal to the first row's. A line for each missed goal follows. Each process has an empty cache folder of
its own, so the first step compiles.

`--rounds` repeats the rows in turns and takes medians. `--device cuda` trains under autocast to BF16 on a card, and
peaks are those of torch's allocator (bench/gpu runs this). `--backend aot_eager` needs no C++ compiler. `--json FILE`
also writes the rows. The tables of some runs are in docs/results/README.md. Rows run one after the other on the same
machine; compare ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch
import torch._functorch.config as functorch
from torch import nn

import memscale

SHARES = (0.75, 0.5, 0.25)
PLAIN, NOTHING_TO_DO = "compiled", "memscale, nothing to do"
# Goals: a step where nothing is planned, and any first step, over those of the plain compiled run.
STEP_RATIO, FIRST_RATIO = 1.02, 1.15
_UNLIMITED_BYTES = 1e15  # a budget that any run keeps


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


class _Meter:
    """The clock and the peak of memory: the process's on a CPU host, the allocator's on a card."""

    def __init__(self, device: str) -> None:
        self._is_host = device == "cpu"

    def peak_bytes(self) -> int:
        """The peak since the last call."""
        if self._is_host:
            peak = _status("VmHWM")
            with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
                file.write("5")
            return peak
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return peak

    def now(self) -> tuple[float, float]:
        """Seconds, and processor seconds that this process and its compilers have taken."""
        if not self._is_host:
            torch.cuda.synchronize()
        used = os.times()
        return time.perf_counter(), used.user + used.system + used.children_user + used.children_system


def _digest(model: nn.Module, loss: torch.Tensor) -> str:
    found = hashlib.sha256(loss.detach().cpu().numpy().tobytes())
    for parameter in model.parameters():
        found.update(parameter.grad.cpu().numpy().tobytes())
    return found.hexdigest()


def _row(options: argparse.Namespace) -> dict[str, Any]:
    """Trains in this process: `steps` of [seconds, CPU seconds, peak in bytes, digest of loss and gradients]."""
    torch.set_num_threads(options.threads)
    if options.share:
        functorch.activation_memory_budget = options.share
    autocast: Any = contextlib.nullcontext()
    if options.device == "cuda":
        autocast = torch.autocast("cuda", torch.bfloat16)
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(0)
    model = Language(options.layers, options.width, 1000).to(options.device)
    for block in model.blocks:
        block.compile(backend=options.backend)
    if options.budget:
        memscale.wrap(model, memscale.Config(memory_budget_gb=options.budget / 1e9, enable_logging=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 1000, (options.batch, options.length), device=options.device)
    meter = _Meter(options.device)
    meter.peak_bytes()
    steps = []
    for number in range(options.steps):
        torch.manual_seed(number)
        begun = meter.now()
        with autocast:
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        seconds, cpu_seconds = (after - before for after, before in zip(meter.now(), begun, strict=True))
        peak = meter.peak_bytes()
        steps.append([seconds, cpu_seconds, peak, _digest(model, loss)])
        optimizer.zero_grad()
        del loss
        meter.peak_bytes()
    plan = model._memscale_executor.plan if options.budget else None
    return {"steps": steps, "predicted": None if plan is None else plan.predicted_peak_bytes}


def _run(arguments: list[str], **row: float) -> dict[str, Any]:
    """One process's row; its last line of errors if it failed."""
    given = [f"--{name}={value}" for name, value in row.items()]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        command = [sys.executable, os.path.abspath(__file__), "--row", *arguments, *given]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        return {"error": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1][:300]}
    found = json.loads(done.stdout.splitlines()[-1])
    first, later = found["steps"][0], found["steps"][1:]
    return {
        "peak": max(step[2] for step in later),
        "first_peak": first[2],
        "predicted": found["predicted"],
        "step": statistics.median(step[0] for step in later),
        "cpu": statistics.median(step[1] for step in later),
        "first": first[0],
        "first_cpu": first[1],
        "digests": [step[3] for step in found["steps"]],
    }


_RATIOS = ("step", "cpu", "first", "first_cpu")


def _names(share: float) -> tuple[str, str]:
    return f"activation_memory_budget {share}", f"memscale, the peak of {share}"


def _round(arguments: list[str], budgets: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Every row once. `budgets` has those of the wrapped rows; the first round makes them of torch's peaks."""
    rows = {PLAIN: _run(arguments)}
    if "error" in rows[PLAIN]:
        return rows
    rows[NOTHING_TO_DO] = _run(arguments, budget=_UNLIMITED_BYTES)
    for share in SHARES:
        theirs, ours = _names(share)
        rows[theirs] = _run(arguments, share=share)
        if "error" not in rows[theirs]:
            rows[ours] = _run(arguments, budget=budgets.setdefault(ours, rows[theirs]["peak"]))
            rows[ours]["budget"] = budgets[ours]
    for row in rows.values():
        if "error" not in row:
            row["ratios"] = {name: row[name] / rows[PLAIN][name] for name in _RATIOS}
            row["same"] = row["digests"] == rows[PLAIN]["digests"]
    return rows


def measure(arguments: list[str], rounds: int = 1) -> dict[str, dict[str, Any]]:
    """The rows by name, each with `error`, or with peaks in bytes, `ratios` to the first row's times and `same`."""
    budgets: dict[str, float] = {}
    every = [_round(arguments, budgets) for _ in range(rounds)]
    rows = every[0]
    for name, row in rows.items():
        others = [other[name] for other in every if name in other and "error" not in other[name]]
        if "error" not in row:
            row["ratios"] = {ratio: statistics.median(other["ratios"][ratio] for other in others) for ratio in _RATIOS}
            row["same"] = all(other["same"] for other in others)
            row |= {peak: max(other[peak] for other in others) for peak in ("peak", "first_peak")}
    return rows


def table(rows: dict[str, dict[str, Any]]) -> list[str]:
    """The rows as lines of Markdown."""
    lines = ["| | budget MB | peak MB | predicted MB | step | its CPU s | first step | its CPU s | bits |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        if "error" in row:
            lines.append(f"| {name} | {row['error'].replace('|', '/')} | | | | | | | |")
            continue
        bytes_of = [row.get("budget"), row["peak"], row["predicted"]]
        sizes = " | ".join("-" if count is None else f"{count / 1e6:.0f}" for count in bytes_of)
        times = " | ".join(f"{row['ratios'][ratio]:.2f}" for ratio in _RATIOS)
        lines.append(f"| {name} | {sizes} | {times} | {'equal' if row['same'] else 'differ'} |")
    return lines


def missed_goals(rows: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each goal that memscale's rows miss. Torch's own rows miss none."""
    missed = []
    for name, row in rows.items():
        if "error" in row:
            missed += [f"{name}: {row['error']}"] if name in (PLAIN, NOTHING_TO_DO) else []
            continue
        if name != NOTHING_TO_DO and "budget" not in row:
            continue
        if not row["same"]:
            missed.append(f"{name}: losses or gradients differ")
        if row["ratios"]["first"] > FIRST_RATIO:
            missed.append(f"{name}: {row['ratios']['first']:.2f} times the first step")
    if "ratios" in rows.get(NOTHING_TO_DO, {}) and rows[NOTHING_TO_DO]["ratios"]["step"] > STEP_RATIO:
        missed.append(f"{NOTHING_TO_DO}: {rows[NOTHING_TO_DO]['ratios']['step']:.2f} times the step")
    for theirs, ours in map(_names, SHARES):
        if "error" in rows.get(theirs, {"error": ""}):
            continue
        if "error" in rows[ours]:
            missed.append(f"{ours}: {rows[ours]['error']}")
            continue
        if max(rows[ours]["peak"], rows[ours]["first_peak"]) > rows[ours]["budget"]:
            missed.append(f"{ours}: over its budget")
        if rows[ours]["ratios"]["step"] > rows[theirs]["ratios"]["step"]:
            slower = rows[ours]["ratios"]["step"] / rows[theirs]["ratios"]["step"]
            missed.append(f"{ours}: {slower:.2f} times the step of torch's own")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 6), ("width", 256), ("batch", 16), ("length", 512), ("steps", 5), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(_row(options)))
        return
    rows = measure(sys.argv[1:], options.rounds)
    lines, missed = table(rows), missed_goals(rows)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"rows": rows, "table": lines, "missed": missed}, file, indent=1)
    print("\n".join([*lines, "", *(f"- {line}" for line in missed)]))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
