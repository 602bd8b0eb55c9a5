"""Compares predicted with measured peaks and step times, of unmodified and planned training steps on a CPU.

    python bench/prediction.py [--case NAME]... [--output FILE] [--markdown FILE]

Every run is a process of its own. For an unmodified run, `memscale.plan()` makes the prediction,
and the model trains without memscale. glibc is told to map each block of 128 KiB and more by
itself, because freed memory that glibc keeps does not depend on the model. A second process,
with glibc's defaults, times the step. The run holds its outputs and clears gradients after the
forward, as that prediction assumes.

A planned run is wrapped under a budget between the smallest that fits and the need. Steps are
measured after memscale has seen the loop, and compared with the plan then in force.

Exits with status 1 if a peak was over its budget, or if the peaks miss the targets (1% at the
median, 3% at the worst). Times are judged only with --judge-times, on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEDIAN_PEAK, WORST_PEAK, MEDIAN_TIME = 0.01, 0.03, 0.15
WARM_STEPS, MEASURED_STEPS = 4, 3
EXACT_MAPS = "glibc.malloc.mmap_threshold=131072:glibc.malloc.trim_threshold=1048576"

# For each planned run: the place of its budget between the smallest (0) and the need (1), and
# the fields of its configuration.
PLANS: dict[str, tuple[float, dict[str, Any]]] = {
    "60%": (0.6, {}),
    "10%": (0.1, {}),
    "recompute, 30%": (0.3, {"mode": "conservative"}),
}


# -- models -------------------------------------------------------------------------------


def _language(family: str, batch: int, sequence: int, **fields: Any) -> Callable[[], Any]:
    def make() -> Any:
        import torch
        import transformers

        ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
        config = getattr(transformers, f"{family.split('/')[0]}Config")(**fields, **ends)
        model = getattr(transformers, family.split("/")[1])(config)
        ids = torch.randint(1, fields["vocab_size"], (batch, sequence))
        return model, {"input_ids": ids, "labels": ids}, None

    return make


def _image(family: str, batch: int, size: int, **fields: Any) -> Callable[[], Any]:
    def make() -> Any:
        import torch
        import transformers

        config = getattr(transformers, f"{family}Config")(num_labels=100, **fields)
        model = getattr(transformers, f"{family}ForImageClassification")(config)
        pixels = torch.randn(batch, 3, size, size)
        return model, {"pixel_values": pixels, "labels": torch.randint(0, 100, (batch,))}, None

    return make


def _lstm(batch: int, sequence: int) -> Callable[[], Any]:
    def make() -> Any:
        import torch
        from torch import nn

        class Recurrent(nn.Module):
            """A language model of stacked LSTMs that returns logits; the caller computes the loss."""

            def __init__(self, vocabulary: int, width: int, depth: int) -> None:
                super().__init__()
                self.embedding = nn.Embedding(vocabulary, width)
                self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(depth))
                self.head = nn.Linear(width, vocabulary)

            def forward(self, ids: torch.Tensor) -> torch.Tensor:
                hidden = self.embedding(ids)
                for layer in self.layers:
                    hidden = layer(hidden)[0]
                return self.head(hidden)

        ids = torch.randint(0, 8192, (batch, sequence))

        def loss(logits: Any) -> Any:
            return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())

        return Recurrent(8192, 512, 6), {"ids": ids}, loss

    return make


def _unet(batch: int, size: int) -> Callable[[], Any]:
    def make() -> Any:
        import torch
        from torch import nn
        from torch.nn import functional

        class Residual(nn.Module):
            """Two convolutions with a time embedding between them, beside a shortcut."""

            def __init__(self, channels: int, out: int) -> None:
                super().__init__()
                self.first = nn.Sequential(nn.GroupNorm(8, channels), nn.SiLU(), nn.Conv2d(channels, out, 3, padding=1))
                self.time = nn.Sequential(nn.SiLU(), nn.Linear(128, out))
                self.second = nn.Sequential(nn.GroupNorm(8, out), nn.SiLU(), nn.Conv2d(out, out, 3, padding=1))
                self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

            def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
                hidden = self.first(x) + self.time(time)[:, :, None, None]
                return self.second(hidden) + self.shortcut(x)

        class UNet(nn.Module):
            """Predicts the noise in an image, as the models of diffusion do."""

            def __init__(self, width: int) -> None:
                super().__init__()
                self.stem = nn.Conv2d(3, width, 3, padding=1)
                self.down = nn.ModuleList(Residual(*pair) for pair in ((width, width), (width, 2 * width)))
                self.middle = Residual(2 * width, 4 * width)
                self.up = nn.ModuleList(Residual(*pair) for pair in ((6 * width, 2 * width), (3 * width, width)))
                self.head = nn.Conv2d(width, 3, 3, padding=1)

            def forward(self, pixels: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
                hidden, skips = self.stem(pixels), []
                for block in self.down:
                    hidden = block(hidden, time)
                    skips.append(hidden)
                    hidden = functional.avg_pool2d(hidden, 2)
                hidden = self.middle(hidden, time)
                for block in self.up:
                    hidden = functional.interpolate(hidden, scale_factor=2.0)
                    hidden = block(torch.cat([hidden, skips.pop()], 1), time)
                return self.head(hidden)

        noise = torch.randn(batch, 3, size, size)

        def loss(predicted: Any) -> Any:
            return functional.mse_loss(predicted, noise)

        return UNet(64), {"pixels": torch.randn(batch, 3, size, size), "time": torch.randn(batch, 128)}, loss

    return make


_GPT2 = {"n_layer": 6, "n_embd": 512, "n_head": 8, "vocab_size": 16384}
_BERT = {
    "num_hidden_layers": 6,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "vocab_size": 16384,
}
_LLAMA = {
    "num_hidden_layers": 6,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "intermediate_size": 1408,
    "vocab_size": 16384,
}
_T5 = {"num_layers": 4, "d_model": 512, "num_heads": 8, "d_ff": 1408, "vocab_size": 16384, "decoder_start_token_id": 0}
_VIT = {"num_hidden_layers": 6, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}

CASES: dict[str, Callable[[], Any]] = {
    "GPT-2 4x256": _language("GPT2/GPT2LMHeadModel", 4, 256, **_GPT2),
    "GPT-2 2x1024": _language("GPT2/GPT2LMHeadModel", 2, 1024, **_GPT2),
    "BERT 16x128": _language("Bert/BertForMaskedLM", 16, 128, **_BERT),
    "Llama 2x512": _language("Llama/LlamaForCausalLM", 2, 512, **_LLAMA),
    "Qwen3 2x1024": _language("Qwen3/Qwen3ForCausalLM", 2, 1024, **_LLAMA, num_key_value_heads=4, head_dim=64),
    "T5 8x128": _language("T5/T5ForConditionalGeneration", 8, 128, **_T5),
    "ViT 16x224": _image("ViT", 16, 224, **_VIT),
    "ConvNeXt 8x224": _image("ConvNext", 8, 224, depths=[2, 2, 6, 2], hidden_sizes=[64, 128, 256, 512]),
    "ResNet-18 24x224": _image(
        "ResNet", 24, 224, embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic"
    ),
    "U-Net 6x96": _unet(6, 96),
    "LSTM 16x128": _lstm(16, 128),
}


# -- one run, in a child --------------------------------------------------------------------


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _step(model: Any, inputs: dict[str, Any], criterion: Any, optimizer: Any, held: list[Any] | None) -> None:
    """Takes one step. If `held` is given, it keeps the outputs until the next ones replace them."""
    outputs = model(**inputs)
    loss = criterion(outputs) if criterion is not None else outputs.loss
    if held is not None:
        held[:] = [outputs]
        optimizer.zero_grad()
    del outputs
    loss.backward()
    optimizer.step()
    if held is None:
        optimizer.zero_grad()


def _smallest(memscale: Any, model: Any, inputs: dict[str, Any], fields: dict[str, Any]) -> int:
    try:
        memscale.plan(model, inputs, memscale.Config(memory_budget_gb=0.001, **fields))
    except memscale.BudgetInfeasibleError as refusal:
        return refusal.smallest_budget_bytes
    raise RuntimeError("memscale.plan() accepted a budget of 1 MB")


def _made(case: str) -> tuple[Any, dict[str, Any], Any, Any]:
    """Makes model, inputs, loss and optimizer of a case, equal in every process."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.exp(torch.zeros(8))
    torch.manual_seed(0)
    model, inputs, criterion = CASES[case]()
    model.train()
    return model, inputs, criterion, torch.optim.AdamW(model.parameters(), lr=1e-4)


def child(case: str, budget_bytes: int | None, fields: dict[str, Any]) -> dict[str, Any]:
    """Makes one run; returns its predictions and measurements."""
    import memscale

    model, inputs, criterion, optimizer = _made(case)
    result: dict[str, Any] = {"case": case, "budget_bytes": budget_bytes}
    unmodified = budget_bytes is None
    if unmodified:
        configs = {json.dumps(fields): fields for _, fields in PLANS.values()}
        result["smallest"] = {key: _smallest(memscale, model, inputs, value) for key, value in configs.items()}
        plan = memscale.plan(model, inputs, memscale.Config(enable_logging=False))
        result["predicted_peak_bytes"] = plan.unoptimized_peak_bytes
        result["predicted_seconds"] = plan.unoptimized_step_seconds
    else:
        config = memscale.Config(memory_budget_gb=budget_bytes / 1e9, enable_logging=False, **fields)
        memscale.wrap(model, config)
    seconds: list[float] = []
    held: list[Any] | None = [] if unmodified else None
    for step in range(WARM_STEPS + MEASURED_STEPS):
        if step == WARM_STEPS:
            result["warm_peak_bytes"] = _peak_bytes()
            _reset_peak()
        start = time.perf_counter()
        _step(model, inputs, criterion, optimizer, held)
        seconds.append(time.perf_counter() - start)
        if not unmodified and step in (0, WARM_STEPS):
            plan = model._memscale_executor.plan
            result["first_predicted_peak_bytes" if step == 0 else "predicted_peak_bytes"] = plan.predicted_peak_bytes
            result["predicted_seconds"] = plan.predicted_step_seconds
            result["techniques"] = plan.techniques
            result["plan"] = plan.explain()
    result["seconds"] = statistics.median(seconds[WARM_STEPS:])
    result["peak_bytes"] = _peak_bytes()
    return result


def timed_child(case: str) -> dict[str, Any]:
    """Times an unmodified step, without a plan and with glibc's defaults."""
    model, inputs, criterion, optimizer = _made(case)
    held: list[Any] = []
    seconds: list[float] = []
    for _ in range(WARM_STEPS + MEASURED_STEPS):
        start = time.perf_counter()
        _step(model, inputs, criterion, optimizer, held)
        seconds.append(time.perf_counter() - start)
    return {"seconds": statistics.median(seconds[WARM_STEPS:])}


# -- the parent -------------------------------------------------------------------------------


def _in_child(told: dict[str, Any], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", json.dumps(told)],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ, HF_HUB_OFFLINE="1", **environment),
    )
    if done.returncode != 0:
        return {"error": done.stderr.strip().rsplit("\n", 1)[-1][:300]}
    return json.loads(done.stdout.rsplit("\n", 2)[-2])


def _run(case: str, name: str, budget_bytes: int | None, fields: dict[str, Any]) -> dict[str, Any]:
    told = {"case": case, "budget_bytes": budget_bytes, "fields": fields}
    result = _in_child(told, {"GLIBC_TUNABLES": EXACT_MAPS} if budget_bytes is None else {})
    if budget_bytes is None and "error" not in result:
        result |= _in_child({"case": case, "timed": True}, {})
    if "error" in result:
        return {"case": case, "run": name, "error": result["error"]}
    result["run"] = name
    result["peak_off"] = result["predicted_peak_bytes"] / result["peak_bytes"] - 1
    result["time_off"] = result["predicted_seconds"] / result["seconds"] - 1
    return result


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['case']:<18}{row['run']:<16} {row['error']}"
    budget = "-" if row["budget_bytes"] is None else f"{row['budget_bytes'] / 1e9:.3f}"
    return (
        f"{row['case']:<18}{row['run']:<16}{budget:>8}{row['peak_bytes'] / 1e9:>9.3f}"
        f"{row['predicted_peak_bytes'] / 1e9:>9.3f}{row['peak_off'] * 100:>+7.1f}%"
        f"{row['seconds']:>8.2f}{row['predicted_seconds']:>8.2f}{row['time_off'] * 100:>+7.0f}%"
    )


def measure(cases: list[str]) -> list[dict[str, Any]]:
    """Makes all runs of these cases, and prints each as it ends."""
    rows = []
    print(
        f"{'case':<18}{'run':<16}{'budget':>8}{'peak GB':>9}{'predicted':>9}{'off':>8}{'step s':>8}{'pred.':>8}"
        f"{'off':>8}",
        flush=True,
    )
    for case in cases:
        rows.append(_run(case, "unmodified", None, {}))
        print(_line(rows[-1]), flush=True)
        if "error" in rows[-1]:
            continue
        need, smallest = rows[-1]["predicted_peak_bytes"], rows[-1].pop("smallest")
        for name, (part, fields) in PLANS.items():
            least = smallest[json.dumps(fields)]
            rows.append(_run(case, name, int(least + part * (need - least)), fields))
            print(_line(rows[-1]), flush=True)
    return rows


def judge(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and worst errors over the runs that finished."""
    good = [row for row in rows if "error" not in row]
    peaks, times = ([abs(row[key]) for row in good] for key in ("peak_off", "time_off"))
    over = [row for row in good if row["budget_bytes"] is not None and row["peak_bytes"] > row["budget_bytes"]]
    return {
        "combinations": len(good),
        "failed": len(rows) - len(good),
        "over_budget": len(over),
        "median_peak_off": statistics.median(peaks),
        "worst_peak_off": max(peaks),
        "median_time_off": statistics.median(times),
        "worst_time_off": max(times),
    }


def markdown(rows: list[dict[str, Any]], summary: dict[str, Any]) -> str:
    """The page for docs/results."""
    lines = [
        "# Predicted against measured",
        "",
        f"`bench/prediction.py`: {summary['combinations']} combinations of model, batch, sequence and plan on "
        f"{os.cpu_count()} CPUs ({platform.machine()}), load average {os.getloadavg()[2]:.1f}, fp32, AdamW. Peaks are "
        "resident memory of the process, in GB. The last three of seven steps are measured, and compared with the plan "
        "in force in them. Unmodified runs are compared with `memscale.plan()` before their first step; glibc maps "
        "each of their blocks of 128 KiB and more by itself, and a second process without that setting times them. A "
        "planned run's name gives the place of its budget between the smallest (0%) and the need (100%).",
        "",
        f"Peak: {summary['median_peak_off'] * 100:.1f}% off at the median, {summary['worst_peak_off'] * 100:.1f}% at "
        f"the worst. Step time: {summary['median_time_off'] * 100:.0f}% at the median, "
        f"{summary['worst_time_off'] * 100:.0f}% at the worst. Runs over their budget: {summary['over_budget']}.",
        "",
        "| case | run | budget | peak | predicted | off | step s | predicted | off |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['case']} | {row['run']} | {row['error']} | | | | | | |")
            continue
        budget = "" if row["budget_bytes"] is None else f"{row['budget_bytes'] / 1e9:.3f}"
        lines.append(
            f"| {row['case']} | {row['run']} | {budget} | {row['peak_bytes'] / 1e9:.3f} | "
            f"{row['predicted_peak_bytes'] / 1e9:.3f} | {row['peak_off'] * 100:+.1f}% | {row['seconds']:.2f} | "
            f"{row['predicted_seconds']:.2f} | {row['time_off'] * 100:+.0f}% |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this case (repeatable)")
    parser.add_argument("--output", type=Path, help="write the rows as JSON")
    parser.add_argument("--markdown", type=Path, help="write the page of docs/results")
    parser.add_argument("--judge-times", action="store_true", help="exit with 1 also if times miss their targets")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        told = json.loads(arguments.child)
        print(json.dumps(timed_child(told["case"]) if "timed" in told else child(**told)))
        return 0
    rows = measure(arguments.case or list(CASES))
    summary = judge(rows)
    print(json.dumps(summary, indent=2))
    if arguments.output is not None:
        arguments.output.write_text(json.dumps({"summary": summary, "rows": rows}, indent=2) + "\n")
    if arguments.markdown is not None:
        arguments.markdown.write_text(markdown(rows, summary))
    good = summary["failed"] == 0 and summary["over_budget"] == 0
    good = good and summary["median_peak_off"] <= MEDIAN_PEAK and summary["worst_peak_off"] <= WORST_PEAK
    if arguments.judge_times:
        good = good and summary["median_time_off"] <= MEDIAN_TIME
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
