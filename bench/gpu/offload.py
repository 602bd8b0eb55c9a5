"""What bench/gpu/offload.sh measures; writes one JSON and one page of Markdown, and says which goals were missed.

Models have random weights and random tokens. Every run is a process of its own, so that
peaks and caches of one do not reach the next; the variants of a model take turns.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

MODELS = ("gpt2", "bert", "llama", "vit", "t5")
# Settings of each run beside the unmodified one, and its budget as a share of that one's peak.
VARIANTS: dict[str, tuple[dict[str, bool], float]] = {
    "offload, waited for": ({"enable_checkpointing": False, "async_offload": False}, 0.7),
    "offload": ({"enable_checkpointing": False}, 0.7),
    "recompute": ({"enable_offloading": False}, 0.7),
    "75%": ({}, 0.75),
    "50%": ({}, 0.5),
    "35%": ({}, 0.35),
}
# Goals: errors of predicted peaks, and the step time with offload beside the unmodified step's.
MEDIAN_ERROR, WORST_ERROR, OFFLOAD_RATIO = 0.03, 0.08, 1.05
STEPS = 6
COPY_BYTES = 256 << 20


def make(name: str) -> tuple[Any, dict[str, Any]]:
    """A model and its batch on the GPU."""
    import torch
    import transformers as tf

    torch.manual_seed(1)
    tokens = torch.randint(0, 1000, (8, 512), device="cuda")
    batch: dict[str, Any] = {"input_ids": tokens, "labels": tokens}
    if name == "gpt2":
        model = tf.GPT2LMHeadModel(tf.GPT2Config(bos_token_id=0, eos_token_id=0))
    elif name == "bert":
        model = tf.BertForMaskedLM(tf.BertConfig())
    elif name == "llama":
        model = tf.LlamaForCausalLM(
            tf.LlamaConfig(hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12)
        )
    elif name == "vit":
        model = tf.ViTForImageClassification(tf.ViTConfig(num_labels=10))
        batch = {
            "pixel_values": torch.randn(32, 3, 224, 224, device="cuda"),
            "labels": torch.randint(0, 10, (32,), device="cuda"),
        }
    else:
        model = tf.T5ForConditionalGeneration(tf.T5Config(decoder_start_token_id=0))
    return model.cuda().train(), batch


def train(name: str, variant: str, budget_gb: float) -> dict[str, Any]:
    """A few steps; digests of the gradients, peak, time, what the plan said."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    model, batch = make(name)
    if variant != "unmodified":
        import memscale

        memscale.wrap(model, memscale.Config(memory_budget_gb=budget_gb, **VARIANTS[variant][0]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.cuda.reset_peak_memory_stats()
    digests, times = [], []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        loss = model(**batch).loss
        loss.backward()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begun
        digest = hashlib.sha256()
        for parameter in model.parameters():
            if parameter.grad is not None:
                digest.update(parameter.grad.cpu().contiguous().numpy().tobytes())
        begun = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(seconds + time.perf_counter() - begun)
        digests.append(digest.hexdigest())
    executor = getattr(model, "_memscale_executor", None)
    plan = executor.plan if executor is not None else None
    return {
        "digests": digests,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "step_s": statistics.median(times[2:]),
        "predicted_bytes": plan.predicted_peak_bytes if plan is not None else None,
        "counters": executor.counters() if executor is not None else {},
    }


def copy_rates() -> dict[str, float]:
    """GB/s of plain pinned copies each way: the roof."""
    import torch

    host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    rates = {}
    for name, to, source in (("to_host", host, device), ("from_host", device, host)):
        seconds = []
        for _ in range(8):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            to.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begun)
        rates[name] = COPY_BYTES / statistics.median(seconds) / 1e9
    return rates


def engine_rates() -> dict[str, float]:
    """GB/s of the engine both ways, from what waiting for it adds to forward and backward.

    Blocks that save 256 MB each and compute next to nothing, with transfers waited for.
    """
    import torch

    import memscale

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones((), device="cuda"))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x) * self.scale

    def pass_times(model: torch.nn.Module, x: torch.Tensor) -> tuple[float, float]:
        forward, backward = [], []
        for _ in range(6):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            loss = model(x).sum()
            torch.cuda.synchronize()
            middle = time.perf_counter()
            loss.backward()
            torch.cuda.synchronize()
            forward.append(middle - begun)
            backward.append(time.perf_counter() - middle)
        return statistics.median(forward[2:]), statistics.median(backward[2:])

    model = torch.nn.Sequential(*[Block() for _ in range(8)])
    x = torch.randn(COPY_BYTES // 4, device="cuda", requires_grad=True)
    plain = pass_times(model, x)
    memscale.wrap(model, memscale.Config(enable_checkpointing=False, force_optimize=True), async_offload=False)
    before = model._memscale_executor.counters()
    waited = pass_times(model, x)
    after = model._memscale_executor.counters()
    memscale.detach(model)
    stored = (after["offloaded_bytes"] - before["offloaded_bytes"]) / 6
    fetched = (after["fetched_bytes"] - before["fetched_bytes"]) / 6
    return {
        "to_host": stored / max(waited[0] - plain[0], 1e-9) / 1e9,
        "from_host": fetched / max(waited[1] - plain[1], 1e-9) / 1e9,
    }


def child(*arguments: str) -> Any:
    """The answer of this file run again, in a process of its own; its error as a text."""
    done = subprocess.run(
        [sys.executable, os.path.abspath(__file__), "--child", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def answer(arguments: list[str]) -> Any:
    """What a child is asked for."""
    if arguments[0] == "train":
        return train(arguments[1], arguments[2], float(arguments[3]))
    return copy_rates() if arguments[0] == "copies" else engine_rates()


def runs_of(name: str) -> dict[str, Any]:
    """One model: each variant's answer, with `same` (bits) and `step_ratio` beside the unmodified run."""
    plain = child("train", name, "unmodified", "0")
    runs = {"unmodified": plain}
    for variant, (_, share) in VARIANTS.items() if "error" not in plain else ():
        budget_bytes = share * plain["peak_bytes"]
        run = runs[variant] = child("train", name, variant, str(budget_bytes / 1e9))
        if "error" not in run:
            run["budget_bytes"] = budget_bytes
            run["same"] = run["digests"] == plain["digests"]
            run["step_ratio"] = run["step_s"] / plain["step_s"]
    return runs


def error_of(run: dict[str, Any]) -> float:
    """Of the predicted peak, as a share of the measured one."""
    return float(abs(run["predicted_bytes"] - run["peak_bytes"]) / run["peak_bytes"])


def missed_goals(models: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each goal that was missed, none if all were met. A budget that no plan fits is refused, which
    is no miss."""
    missed, errors = [], []
    for name, runs in models.items():
        for variant, run in runs.items():
            where = f"{name}, {variant}"
            if "error" in run:
                missed += [] if "BudgetInfeasibleError" in run["error"] else [f"{where}: {run['error']}"]
                continue
            if variant == "unmodified":
                continue
            missed += [] if run["same"] else [f"{where}: gradients differ"]
            missed += [f"{where}: over its budget"] if run["peak_bytes"] > run["budget_bytes"] else []
            errors += [(error_of(run), where)] if run["predicted_bytes"] else []
            if variant == "offload" and run["step_ratio"] > OFFLOAD_RATIO:
                missed.append(f"{where}: {run['step_ratio']:.3f} of the unmodified step")
    if errors and max(errors)[0] > WORST_ERROR:
        missed.append(f"{max(errors)[1]}: the peak is {max(errors)[0]:.1%} off its prediction")
    if errors and statistics.median(error for error, _ in errors) > MEDIAN_ERROR:
        missed.append("predicted peaks are off by more than 3% at the median")
    return missed


def row_of(name: str, variant: str, run: dict[str, Any]) -> str:
    """A line of the table."""
    if "error" in run:
        return f"| {name} | {variant} | {run['error']} | | | | | |"
    same = {True: "yes", False: "NO", None: ""}[run.get("same")]
    predicted = f"{run['predicted_bytes'] / 1e9:.3f}" if run["predicted_bytes"] else ""
    moved = run["counters"].get("offloaded_bytes", 0) / STEPS / 1e9
    return (
        f"| {name} | {variant} | {same} | {run['peak_bytes'] / 1e9:.3f} | {run['reserved_bytes'] / 1e9:.3f} "
        f"| {predicted} | {moved:.2f} | {run.get('step_ratio', 1.0):.3f} |"
    )


def page(found: dict[str, Any]) -> str:
    """The answers as one page."""
    lines = [
        f"# Training under budgets on {found['gpu']}",
        "",
        f"torch {found['torch']}, {STEPS} steps a run, each in a process of its own; 'same' compares "
        "every bit of every gradient in every step with the unmodified run's. Shares are of its peak.",
        "",
        "| way | pinned copy GB/s | engine GB/s |",
        "|---|---|---|",
    ]
    for way in ("to_host", "from_host"):
        lines.append(f"| {way} | {found['copies'].get(way, '')} | {found['engine'].get(way, '')} |")
    lines += ["", "| model | run | same | peak GB | reserved GB | predicted GB | moved GB a step | step ratio |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for name, runs in found["models"].items():
        lines += [row_of(name, variant, run) for variant, run in runs.items()]
    lines += ["", "Missed:" if found["missed"] else "All goals were met.", ""]
    return "\n".join(lines + [f"- {line}" for line in found["missed"]]).rstrip() + "\n"


def measure() -> dict[str, Any]:
    """Everything."""
    import torch

    models = {name: runs_of(name) for name in MODELS}
    return {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "copies": child("copies"),
        "engine": child("engine"),
        "models": models,
        "missed": missed_goals(models),
    }


def main(place: str) -> int:
    """Writes `place`.json and `place`.md. 1 if a goal was missed."""
    found = measure()
    text = page(found)
    for ending, content in ((".json", json.dumps(found, indent=1) + "\n"), (".md", text)):
        with open(place + ending, "w", encoding="utf-8") as file:
            file.write(content)
    print(text)
    return 1 if found["missed"] else 0


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        print(json.dumps(answer(sys.argv[2:])))
    else:
        sys.exit(main(sys.argv[1]))
