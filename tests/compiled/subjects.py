"""Twelve small models: ten families of transformers, a U-Net and a ViT, each with a batch. None is downloaded."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import transformers

WORDS, ROWS, LENGTH = 97, 2, 24
SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
ENDS: dict[str, Any] = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
NO_CACHE = {"use_cache": False}  # memscale switches it off in training; torch compiles other code with a cache


@dataclasses.dataclass(frozen=True)
class Subject:
    """How to make a model (the same parameters each time), and the keyword arguments of its forward in a step."""

    make: Callable[[], nn.Module]
    batch: Callable[[int], dict[str, Any]]


def _generator(step: int) -> torch.Generator:
    return torch.Generator().manual_seed(step)


def _sentences(step: int) -> dict[str, Any]:
    tokens = torch.randint(3, WORDS, (ROWS, LENGTH), generator=_generator(step))
    return {"input_ids": tokens, "labels": tokens}


def _causal(family: str, **config: Any) -> Subject:
    """A language model; `family` is a model type of transformers."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        made = transformers.AutoConfig.for_model(family, **{**SIZES, **ENDS, **NO_CACHE, **config})
        return transformers.AutoModelForCausalLM.from_config(made)

    return Subject(make, _sentences)


def _of_class(model: str, config: str, batch: Callable[[int], dict[str, Any]], **sizes: Any) -> Subject:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return getattr(transformers, model)(getattr(transformers, config)(**sizes))

    return Subject(make, batch)


def _pictures(step: int) -> dict[str, Any]:
    generator = _generator(step)
    pixels = torch.randn(ROWS, 3, 32, 32, generator=generator)
    return {"pixel_values": pixels, "labels": torch.randint(0, 5, (ROWS,), generator=generator)}


class _Residual(nn.Module):
    """Two convolutions behind group norms, the time's embedding between them, and a short cut."""

    def __init__(self, narrow: int, wide: int) -> None:
        super().__init__()
        self.before, self.between = nn.GroupNorm(4, narrow), nn.GroupNorm(4, wide)
        self.first, self.second = nn.Conv2d(narrow, wide, 3, padding=1), nn.Conv2d(wide, wide, 3, padding=1)
        self.time, self.short = nn.Linear(16, wide), nn.Conv2d(narrow, wide, 1)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.first(functional.silu(self.before(x))) + self.time(functional.silu(time))[:, :, None, None]
        return self.short(x) + self.second(self.drop(functional.silu(self.between(y))))


class UNet(nn.Module):
    """Denoises pictures; returns the mean squared error. Down and up blocks are joined by skips."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
        self.down = nn.ModuleList([_Residual(16, 16), _Residual(16, 32)])
        self.middle = _Residual(32, 32)
        self.up = nn.ModuleList([_Residual(64, 16), _Residual(32, 16)])

    def forward(self, pixels: torch.Tensor, noise: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        x, skips = self.enter(pixels + noise), []
        for block in self.down:
            x = block(x, time)
            skips.append(x)
            x = functional.avg_pool2d(x, 2)
        x = self.middle(x, time)
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, skips.pop()], 1), time)
        return functional.mse_loss(self.leave(x), noise)


def _unet() -> nn.Module:
    torch.manual_seed(0)
    return UNet()


def _noisy(step: int) -> dict[str, Any]:
    generator = _generator(step)
    pixels, noise = (torch.randn(ROWS, 3, 16, 16, generator=generator) for _ in range(2))
    return {"pixels": pixels, "noise": noise, "time": torch.randn(ROWS, 16, generator=generator)}


_DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": WORDS, **NO_CACHE}
_BART = {
    "d_model": 32,
    **{f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("attention_heads", 4))},
    **{f"{side}_ffn_dim": 64 for side in ("encoder", "decoder")},
    **ENDS,
    **NO_CACHE,
}

SUBJECTS: dict[str, Subject] = {
    "gpt2": _causal("gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "llama": _causal("llama", attention_dropout=0.1),
    "qwen2": _causal("qwen2", num_key_value_heads=2),
    "gemma": _causal("gemma", num_key_value_heads=2, head_dim=8),
    "opt": _causal("opt", ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=64),
    "gpt_neox": _causal("gpt_neox", hidden_dropout=0.1),
    "mixtral": _causal("mixtral", num_key_value_heads=2, num_local_experts=4),
    "bert": _of_class("BertForMaskedLM", "BertConfig", _sentences, **SIZES, **ENDS, **_DROPOUT),
    "t5": _of_class("T5ForConditionalGeneration", "T5Config", _sentences, **_T5, decoder_start_token_id=0),
    "bart": _of_class("BartForConditionalGeneration", "BartConfig", _sentences, **_BART, decoder_start_token_id=1),
    "vit": _of_class(
        "ViTForImageClassification",
        "ViTConfig",
        _pictures,
        **{**SIZES, **_DROPOUT, "image_size": 32, "patch_size": 8, "num_labels": 5},
    ),
    "unet": Subject(_unet, _noisy),
}
