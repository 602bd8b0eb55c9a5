"""What bench/gpu/offload.sh measures; writes one page of Markdown.

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
VARIANTS = ("unmodified", "sync", "async")
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

        config = memscale.Config(enable_checkpointing=False, memory_budget_gb=budget_gb)
        memscale.wrap(model, config, async_offload=variant == "async")
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


def rows_of(name: str) -> list[str]:
    """One model: the table's lines. The budget is seven tenths of the unmodified peak."""
    runs: dict[str, Any] = {"unmodified": child("train", name, "unmodified", "0")}
    plain = runs["unmodified"]
    if "error" in plain:
        return [f"| {name} | unmodified | {plain['error']} | | | | |"]
    budget_gb = 0.7 * plain["peak_bytes"] / 1e9
    rows = []
    for variant in VARIANTS:
        run = runs.setdefault(variant, None) or child("train", name, variant, str(budget_gb))
        if "error" in run:
            rows.append(f"| {name} | {variant} | {run['error']} | | | | |")
            continue
        same = "yes" if run["digests"] == plain["digests"] else "NO"
        predicted = f"{run['predicted_bytes'] / 1e9:.3f}" if run["predicted_bytes"] else ""
        moved = run["counters"].get("offloaded_bytes", 0) / STEPS / 1e9
        rows.append(
            f"| {name} | {variant} | {same} | {run['peak_bytes'] / 1e9:.3f} | {predicted} "
            f"| {moved:.2f} | {run['step_s'] / plain['step_s']:.3f} |"
        )
    return rows


def page() -> str:
    """Everything, as one page."""
    import torch

    copies, engine = child("copies"), child("engine")
    lines = [
        f"# Host offload on {torch.cuda.get_device_name(0)}",
        "",
        f"torch {torch.__version__}, {STEPS} steps a run, each in a process of its own; 'same' compares "
        "every bit of every gradient in every step with the unmodified run's.",
        "",
        "| way | pinned copy GB/s | engine GB/s |",
        "|---|---|---|",
    ]
    for way in ("to_host", "from_host"):
        lines.append(f"| {way} | {copies.get(way, copies)} | {engine.get(way, engine)} |")
    lines += ["", "| model | run | same | peak GB | predicted GB | moved GB a step | step ratio |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for name in MODELS:
        lines += rows_of(name)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        print(json.dumps(answer(sys.argv[2:])))
    else:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write(page())
