"""Small models under the smallest budget that memscale names for them.

`python bench/smallest.py` asks for the smallest budget of 40 models whose training takes less than 1 GB, and
trains each under it for four steps with AdamW, each time in a process of its own. It prints, as Markdown, the
budget, the process's peak after `wrap()` and their distance, and fails if a run exceeds its budget by more than
0.5 MB. `--parts` adds what the first plan counted and what was measured, in MB. With `--keep`, loops hold the model's
outputs through backward and the next forward, and the budget is the one that is named for such loops.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

import memscale
from memscale import BudgetInfeasibleError, Config, _core
from memscale.tracing.profiler import load_tracer

_OVER_MOST_BYTES = 500_000
_NEAR = 0.02
_STEPS = 4
Batch = dict[str, Any]
Made = Callable[[], tuple[nn.Module, Batch]]


class _Loss(nn.Module):
    """A model of one tensor and the mean square of its output."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).square().mean()


class _Last(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0]  # type: ignore[no-any-return]


class _Residual(nn.Module):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.parts(x)


def _words(family: str, kind: str, batch: int, length: int, **fields: Any) -> Made:
    def make() -> tuple[nn.Module, Batch]:
        sizes = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "vocab_size": 2000, **fields}
        model = getattr(transformers, kind)(getattr(transformers, f"{family}Config")(**sizes))
        ids = torch.randint(1, 2000, (batch, length))
        return model, {"input_ids": ids, "labels": ids}

    return make


def _pictures(family: str, batch: int, size: int, **fields: Any) -> Made:
    def make() -> tuple[nn.Module, Batch]:
        config = getattr(transformers, f"{family}Config")(num_labels=10, **fields)
        model = getattr(transformers, f"{family}ForImageClassification")(config)
        return model, {"pixel_values": torch.randn(batch, 3, size, size), "labels": torch.randint(0, 10, (batch,))}

    return make


def _plain(parts: Callable[[], nn.Module], *size: int) -> Made:
    return lambda: (_Loss(parts()), {"x": torch.randn(size)})


def _convolutions() -> nn.Module:
    blocks = [_Residual(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()) for _ in range(8)]
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _narrow_then_wide() -> nn.Module:
    down = [nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.ReLU()) for a, b in ((3, 32), (32, 64), (64, 128))]
    up = [nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, 1), nn.ReLU()) for a, b in ((128, 64), (64, 32), (32, 3))]
    return nn.Sequential(*down, *up)


def _perceptron(width: int, depth: int) -> nn.Module:
    return nn.Sequential(*(_Residual(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(depth)))


def _line_convolutions() -> nn.Module:
    return nn.Sequential(*(_Residual(nn.Conv1d(64, 64, 5, padding=2), nn.ReLU()) for _ in range(8)))


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


_TINY = {"hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 512}
_HALF = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
_FEW_KEYS = {**_TINY, "num_key_value_heads": 2}

CASES: dict[str, Made] = {
    "GPT-2": _words("GPT2", "GPT2LMHeadModel", 8, 128, n_embd=128, n_layer=6, n_head=4),
    "GPT-2, wide": _words("GPT2", "GPT2LMHeadModel", 4, 256, n_embd=384, n_layer=6, n_head=6),
    "BERT": _words("Bert", "BertForMaskedLM", 8, 128, **_TINY),
    "BERT, wide": _words("Bert", "BertForMaskedLM", 8, 128, **_HALF),
    "RoBERTa": _words("Roberta", "RobertaForMaskedLM", 16, 128, **_TINY),
    "ALBERT": _words("Albert", "AlbertForMaskedLM", 8, 128, embedding_size=64, **_TINY),
    "DistilBERT": _words("DistilBert", "DistilBertForMaskedLM", 8, 128, dim=128, n_layers=6, n_heads=4, hidden_dim=512),
    "ELECTRA": _words("Electra", "ElectraForMaskedLM", 8, 128, embedding_size=64, **_TINY),
    "Llama": _words("Llama", "LlamaForCausalLM", 8, 128, **_FEW_KEYS),
    "Mistral": _words("Mistral", "MistralForCausalLM", 4, 256, **_FEW_KEYS),
    "Qwen2": _words("Qwen2", "Qwen2ForCausalLM", 16, 64, **_FEW_KEYS),
    "OPT": _words("OPT", "OPTForCausalLM", 8, 128, ffn_dim=512, word_embed_proj_dim=128, **_TINY),
    "GPT-NeoX": _words("GPTNeoX", "GPTNeoXForCausalLM", 8, 128, **_TINY),
    "BLOOM": _words("Bloom", "BloomForCausalLM", 8, 128, hidden_size=128, n_layer=6, n_head=4),
    "T5": _words(
        "T5",
        "T5ForConditionalGeneration",
        4,
        128,
        d_model=128,
        d_ff=512,
        d_kv=32,
        num_layers=4,
        num_heads=4,
        decoder_start_token_id=0,
    ),
    "BART": _words(
        "Bart",
        "BartForConditionalGeneration",
        4,
        128,
        d_model=128,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
    ),
    "DeBERTa-v2": _words("DebertaV2", "DebertaV2ForMaskedLM", 8, 128, **_TINY),
    "Falcon": _words("Falcon", "FalconForCausalLM", 8, 128, **_TINY),
    "Gemma": _words("Gemma", "GemmaForCausalLM", 8, 128, head_dim=32, **_FEW_KEYS),
    "GPT-J": _words("GPTJ", "GPTJForCausalLM", 8, 128, n_embd=128, n_layer=6, n_head=4, rotary_dim=16),
    "OLMo 2": _words("Olmo2", "Olmo2ForCausalLM", 8, 128, **_FEW_KEYS),
    "Phi": _words("Phi", "PhiForCausalLM", 8, 128, **_TINY),
    "Qwen3": _words("Qwen3", "Qwen3ForCausalLM", 8, 128, head_dim=32, **_FEW_KEYS),
    "StableLM": _words("StableLm", "StableLmForCausalLM", 8, 128, **_FEW_KEYS),
    "ViT": _pictures("ViT", 16, 64, image_size=64, patch_size=8, **_TINY),
    "BEiT": _pictures("Beit", 16, 64, image_size=64, patch_size=8, **_TINY),
    "DeiT": _pictures("DeiT", 16, 64, image_size=64, patch_size=8, **_TINY),
    "DINOv2": _pictures(
        "Dinov2", 16, 64, image_size=64, patch_size=8, hidden_size=128, num_hidden_layers=6, num_attention_heads=4
    ),
    "RegNet": _pictures("RegNet", 16, 64, embedding_size=32, hidden_sizes=[32, 64, 128, 256], depths=[1, 2, 2, 1]),
    "Swin": _pictures(
        "Swin", 8, 64, image_size=64, patch_size=2, embed_dim=48, depths=[2, 2], num_heads=[3, 6], window_size=4
    ),
    "ConvNeXt": _pictures("ConvNext", 8, 64, hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 4, 2]),
    "ResNet": _pictures("ResNet", 16, 64, embedding_size=32, hidden_sizes=[64, 128, 256, 256], depths=[2, 2, 2, 2]),
    "MobileNetV2": _pictures("MobileNetV2", 16, 64, image_size=64),
    "convolutions": _plain(_convolutions, 16, 3, 64, 64),
    "autoencoder": _plain(_narrow_then_wide, 32, 3, 64, 64),
    "1-d convolutions": _plain(_line_convolutions, 16, 64, 1024),
    "perceptron": _plain(lambda: _perceptron(512, 8), 2048, 512),
    "LSTM": _plain(lambda: _Last(nn.LSTM(128, 128, 3, batch_first=True)), 32, 128, 128),
    "GRU": _plain(lambda: _Last(nn.GRU(128, 128, 3, batch_first=True)), 32, 128, 128),
    "TransformerEncoder": _plain(_encoder, 16, 128, 128),
}


def _loss_of(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output.loss


def _wrapped(make: Made, budget_bytes: float) -> tuple[nn.Module, Batch, Any]:
    torch.manual_seed(0)
    model, batch = make()
    config = Config(memory_budget_gb=budget_bytes / 1e9, enable_logging=False)
    load_tracer()
    memscale.wrap(model, config, sample_input=batch)
    return model, batch, model._memscale_executor


def _smallest(make: Made, keep: bool) -> dict[str, Any]:
    try:
        _wrapped(make, 1e6)
    except BudgetInfeasibleError as error:
        held = re.search(r"in the next forward, the smallest is ([\d.]+) MB", str(error)) if keep else None
        return {"budget": error.smallest_budget_bytes if held is None else int(float(held[1]) * 1e6)}
    raise RuntimeError("1 MB was enough")


def _apart(name: str, budget_bytes: int, threads: int, keep: bool) -> dict[str, Any]:
    """The smallest budget of a model if `budget_bytes` is 0, else a run under it. In a process of its own: a forked one
    has fewer resident pages of libraries than one that has loaded them."""
    command = [sys.executable, "-W", "ignore", __file__, "--child", name, "--budget", str(budget_bytes)]
    command += ["--threads", str(threads)] + (["--keep"] if keep else [])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _counted(executor: Any) -> dict[str, float]:
    """The figures of the plan in force, in MB."""
    plan = json.loads(executor.plan.to_json())
    process = json.loads(executor._planner.documents[1])["process"]
    replay, settings = plan["predicted"], plan["settings"]
    parts = {
        "predicted": replay["peak_bytes"],
        "first": replay["first_step_peak_bytes"],
        "reserve": executor.plan.reserve_bytes,
        "baseline": process["baseline_bytes"],
        "small": replay["small_peak_bytes"],
        "ceiling": settings["ceiling_bytes"],
        "slab": settings["slab_bytes"],
        "live": replay["peak_live_bytes"],
    }
    return {name: round(number / 1e6, 1) for name, number in parts.items()}


def _run(make: Made, budget_bytes: int, keep: bool) -> dict[str, Any]:
    model, batch, executor = _wrapped(make, budget_bytes)
    counted, seen = _counted(executor), []
    finished = executor._planner.step_finished

    def step_finished(observation: dict[str, Any]) -> Any:
        seen.append({name: round(observation[name] / 1e6, 1) for name in ("peak_bytes", "peak_held_bytes")})
        return finished(observation)

    executor._planner.step_finished = step_finished
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    _core.reset_peak_rss()
    for _ in range(_STEPS):
        output = model(**batch)
        loss = _loss_of(output)
        if not keep:
            del output
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()
    peak = int(_core.process_memory()["peak_rss_bytes"])
    return {"peak": peak, "counted": counted, "then": _counted(executor), "seen": seen}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="names of models")
    parser.add_argument("--parts", action="store_true", help="also what plans counted and steps took")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="loops that hold a step's outputs")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.child:
        make = CASES[options.child]
        print(json.dumps(_run(make, options.budget, options.keep) if options.budget else _smallest(make, options.keep)))
        return 0
    over = near = 0
    print("| model | smallest budget MB | peak MB | below |\n|---|---|---|---|")
    for name in options.only or CASES:
        budget = _apart(name, 0, options.threads, options.keep)["budget"]
        found = _apart(name, budget, options.threads, options.keep)
        below = (budget - found["peak"]) / found["peak"]
        over += found["peak"] > budget + _OVER_MOST_BYTES
        near += abs(below) <= _NEAR
        print(f"| {name} | {budget / 1e6:.1f} | {found['peak'] / 1e6:.1f} | {100 * below:.1f}% |", flush=True)
        if options.parts:
            for key in ("counted", "then", "seen"):
                print("   ", key, found[key], flush=True)
    print(f"{near} within 2%, {over} over")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
