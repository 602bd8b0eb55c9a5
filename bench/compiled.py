"""Compiled layers under a budget: torch's own `activation_memory_budget` and memscale, side by side.

`python bench/compiled.py` trains one transformer with AdamW in a process per row, its layers compiled one by one: as it
is, with torch's partitioner told to keep 0.75, 0.5 and 0.25 of the activations, and wrapped with each of the peaks that
these reached as the budget. It prints a table in Markdown: the peak, times as ratios to the first row's (a median step,
its CPU seconds; the first step with its compilation, and its CPU seconds with the compiler's), and whether losses and
gradients are equal to the first row's. A line for each missed goal follows. Each process has an empty cache folder of
its own, so the first step compiles.

Once all are warm, the rows step in turns, and a ratio is one of steps that ran side by side: the speed of a shared
machine drifts by more than what is measured. `--rounds` repeats all of it, first steps too, and takes medians.
`--device cuda` trains under autocast to BF16 on a card, and peaks are those of torch's allocator (bench/gpu runs this).
`--backend aot_eager` needs no C++ compiler. `--json FILE` also writes the rows. The tables of some runs are in
docs/results/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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
_WARM_STEPS = 3  # of each row, before they step in turns


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


def training(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Trains in this process; after each step its `seconds`, `cpu` seconds, `peak` in bytes, `predicted` peak (None if
    it is not wrapped) and `digest` of loss and gradients."""
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
    for number in itertools.count():
        torch.manual_seed(number)
        begun = meter.now()
        with autocast:
            loss = model(tokens)
        loss.backward()
        optimizer.step()
        seconds, cpu_seconds = (after - before for after, before in zip(meter.now(), begun, strict=True))
        step = {"seconds": seconds, "cpu": cpu_seconds, "peak": meter.peak_bytes(), "digest": _digest(model, loss)}
        optimizer.zero_grad()
        del loss
        meter.peak_bytes()
        plan = model._memscale_executor.plan if options.budget else None
        yield {**step, "predicted": None if plan is None else plan.predicted_peak_bytes}


def _serve(options: argparse.Namespace) -> None:
    """A row's process: a step for each line of standard input."""
    steps = training(options)
    for _ in sys.stdin:
        print(json.dumps(next(steps)), flush=True)


class _Row:
    """One row's process and its steps. Nothing runs in it but the step that it is asked for."""

    def __init__(self, arguments: list[str], **given: float) -> None:
        self.steps: list[dict[str, Any]] = []
        self.error: str | None = None
        self.budget = given.get("budget")
        self._folder = tempfile.TemporaryDirectory()
        cache, self._told = os.path.join(self._folder.name, "cache"), os.path.join(self._folder.name, "errors")
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        command = [sys.executable, os.path.abspath(__file__), "--row", *arguments]
        command += [f"--{name}={value}" for name, value in given.items()]
        with open(self._told, "w", encoding="utf-8") as errors:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
            self._process = subprocess.Popen(command, text=True, env=environment, **pipes)

    def step(self, times: int = 1) -> None:
        """Runs steps; after an error none."""
        for _ in range(times):
            if self.error is None:
                with contextlib.suppress(BrokenPipeError):
                    print(file=self._process.stdin, flush=True)
                line = self._process.stdout.readline()
                if line:
                    self.steps.append(json.loads(line))
                else:
                    self._fail()

    def _fail(self) -> None:
        status = self._process.wait()
        with open(self._told, encoding="utf-8") as errors:
            self.error = (errors.read().strip().splitlines() or [f"ended with {status}"])[-1][:300]

    def peak_bytes(self) -> int:
        """Returns the largest peak of the steps after the first."""
        return max(int(step["peak"]) for step in self.steps[1:])

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()
        self._folder.cleanup()

    def figures(self, plain: _Row, turns: int) -> dict[str, Any]:
        """Ratios to the first step of `plain` and to its steps in turns, peaks, and whether all bits are equal."""
        if self.error is not None:
            return {"error": self.error}
        beside = list(zip(self.steps[-turns:], plain.steps[-turns:], strict=True))
        ratios = {}
        for kind, name, first in (("seconds", "step", "first"), ("cpu", "cpu", "first_cpu")):
            ratios[name] = statistics.median(own[kind] / other[kind] for own, other in beside)
            ratios[first] = self.steps[0][kind] / plain.steps[0][kind]
        same = all(own["digest"] == other["digest"] for own, other in zip(self.steps, plain.steps, strict=False))
        return {
            "ratios": ratios,
            "peak": self.peak_bytes(),
            "first_peak": self.steps[0]["peak"],
            "predicted": self.steps[-1]["predicted"],
            "step_s": statistics.median(step["seconds"] for step in self.steps[-turns:]),
            "same": same,
            **({} if self.budget in (None, _UNLIMITED_BYTES) else {"budget": self.budget}),
        }


_RATIOS = ("step", "cpu", "first", "first_cpu")


def _names(share: float) -> tuple[str, str]:
    return f"activation_memory_budget {share}", f"memscale, the peak of {share}"


def _round(arguments: list[str], steps: int, rows: dict[str, _Row]) -> None:
    """Every row once, into `rows`."""

    def begin(name: str, warm_steps: int, **given: float) -> bool:
        rows[name] = _Row(arguments, **given)
        rows[name].step(warm_steps)
        return rows[name].error is None

    if not begin(PLAIN, _WARM_STEPS):
        return
    begin(NOTHING_TO_DO, _WARM_STEPS, budget=_UNLIMITED_BYTES)
    for share in SHARES:
        theirs, ours = _names(share)
        if begin(theirs, _WARM_STEPS + steps, share=share):  # its heap grows for some steps
            begin(ours, _WARM_STEPS, budget=rows[theirs].peak_bytes())
    for _ in range(steps):
        for row in rows.values():
            row.step()


def _measure_once(arguments: list[str], steps: int) -> dict[str, dict[str, Any]]:
    rows: dict[str, _Row] = {}
    try:
        _round(arguments, steps, rows)
        measured = rows if rows[PLAIN].error is None else {PLAIN: rows[PLAIN]}
        return {name: row.figures(rows[PLAIN], steps) for name, row in measured.items()}
    finally:
        for row in rows.values():
            row.close()


def measure(arguments: list[str], steps: int, rounds: int = 1) -> dict[str, dict[str, Any]]:
    """The rows by name, each with `error`, or with peaks in bytes, `ratios` to the first row's times and `same`. Peaks
    and budget are those of the round that came closest to its budget, or exceeded it by most."""
    every = [_measure_once(arguments, steps) for _ in range(rounds)]
    rows = every[0]
    for name, row in rows.items():
        others = [other[name] for other in every if "error" not in other.get(name, {"error": ""})]
        if "error" not in row:
            row |= max(others, key=lambda other: max(other["peak"], other["first_peak"]) - other.get("budget", 0))
            row["ratios"] = {ratio: statistics.median(other["ratios"][ratio] for other in others) for ratio in _RATIOS}
            row["same"] = all(other["same"] for other in others)
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
    for name, value in (("layers", 6), ("width", 256), ("batch", 16), ("length", 512), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--steps", type=int, default=12, help="of each row in turns, after its first three")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        _serve(options)
        return
    rows = measure(sys.argv[1:], options.steps, options.rounds)
    lines, missed = table(rows), missed_goals(rows)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"rows": rows, "table": lines, "missed": missed}, file, indent=1)
    print("\n".join([*lines, "", *(f"- {line}" for line in missed)]))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
