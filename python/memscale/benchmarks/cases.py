"""The models and batches that demo and benchmarks train.

Weights are random, after the model's configuration. The text is the source of Python's standard library
as bytes, because every machine has it. Images are noise.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")

_CLASSES = 1000


@dataclass(frozen=True)
class Case:
    """One model with its batch shape.

    Attributes:
        name: as on the command line.
        make: builds the model; the caller seeds torch first.
        batch: sequences, or images, per step.
        sequence: tokens per sequence, or pixels per side of an image.
        config: the Hugging Face configuration of the model, if it has one.
        is_image: whether the model classifies images.
    """

    name: str
    make: Callable[[], torch.nn.Module]
    batch: int
    sequence: int
    config: Callable[[], Any] | None = None
    is_image: bool = False


def _gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0))


def _gpt2_tiny() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=128, n_head=4, vocab_size=512, bos_token_id=0, eos_token_id=0))


def _bert() -> torch.nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig())


def _llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=768,
            intermediate_size=2048,
            num_hidden_layers=12,
            num_attention_heads=12,
            vocab_size=32000,
        )
    )


def _vit() -> torch.nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(num_labels=_CLASSES))  # type: ignore[call-arg]


def _llama_3b() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=3072,
            intermediate_size=8192,
            num_hidden_layers=30,
            num_attention_heads=24,
            num_key_value_heads=8,
            vocab_size=32000,
        )
    )


def _llama_lora(hidden: int, intermediate: int, layers: int, heads: int) -> torch.nn.Module:
    """A frozen base in bf16 with PEFT's adapters of rank 16 on the attention's projections."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        vocab_size=32000,
    )
    base = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    model: torch.nn.Module = get_peft_model(base, LoraConfig(r=16, target_modules=targets))
    return model


def _llama_7b_lora() -> torch.nn.Module:
    return _llama_lora(4096, 11008, 32, 32)


def _llama_lora_small() -> torch.nn.Module:
    return _llama_lora(1024, 2752, 22, 16)


CASES = {
    case.name: case
    for case in (
        Case("gpt2", _gpt2, 4, 512),
        Case("bert", _bert, 16, 128),
        Case("llama", _llama, 2, 1024),
        Case("vit", _vit, 16, 224, is_image=True),
        Case("llama-3b", _llama_3b, 1, 512),
        Case("llama-7b-lora", _llama_7b_lora, 1, 512),
        Case("llama-lora-small", _llama_lora_small, 1, 64),
        Case("gpt2-tiny", _gpt2_tiny, 4, 128),
    )
}

# ---- the published table and its grid ----------------------------------------------

# Configuration class, model class, layers' field, layers, other fields.
_FAMILIES: dict[str, tuple[str, str, str, int, dict[str, int]]] = {
    "bert-base": ("BertConfig", "BertForMaskedLM", "num_hidden_layers", 12, {}),
    "bert-large": (
        "BertConfig",
        "BertForMaskedLM",
        "num_hidden_layers",
        24,
        {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096},
    ),
    "gpt2-medium": ("GPT2Config", "GPT2LMHeadModel", "n_layer", 24, {"n_embd": 1024, "n_head": 16}),
    "gpt2-large": ("GPT2Config", "GPT2LMHeadModel", "n_layer", 36, {"n_embd": 1280, "n_head": 20}),
    "gpt2-xl": ("GPT2Config", "GPT2LMHeadModel", "n_layer", 48, {"n_embd": 1600, "n_head": 25}),
}

_CANONICAL = {
    "bert-base": (16, 128),
    "bert-large": (16, 128),
    "gpt2-medium": (4, 512),
    "gpt2-large": (2, 512),
    "gpt2-xl": (1, 512),
}

_GRID = {
    "bert-base": ((8, 128), (16, 128), (32, 128), (8, 256), (4, 512)),
    "bert-large": ((8, 128), (16, 128), (32, 128), (8, 256), (4, 512)),
    "gpt2-medium": ((1, 512), (2, 512), (4, 512), (8, 512), (2, 1024)),
    "gpt2-large": ((1, 256), (1, 512), (2, 512), (4, 512), (1, 1024)),
    "gpt2-xl": ((1, 128), (1, 256), (1, 512), (2, 512), (1, 1024)),
}

_QUICK_LAYERS = 2
_QUICK_VOCABULARY = 1024


def _family_case(family: str, name: str, batch: int, sequence: int, layers: int | None = None) -> Case:
    config_name, model_name, layer_field, depth, fields = _FAMILIES[family]

    def config() -> Any:
        import transformers

        small = {"vocab_size": _QUICK_VOCABULARY} if layers is not None else {}
        ends = {"bos_token_id": 0, "eos_token_id": 0} if config_name == "GPT2Config" else {}
        return getattr(transformers, config_name)(**fields, **ends, **small, **{layer_field: layers or depth})

    def make() -> torch.nn.Module:
        import transformers

        model: torch.nn.Module = getattr(transformers, model_name)(config())
        return model

    return Case(name, make, batch, sequence, config)


BENCHMARK_MODELS: dict[str, Case] = {
    family: _family_case(family, family, *shape) for family, shape in _CANONICAL.items()
}
"""The five canonical cases of the published tables."""

GRID: dict[str, Case] = {
    name: _family_case(family, name, batch, sequence)
    for family, shapes in _GRID.items()
    for batch, sequence in shapes
    for name in (f"{family}-{batch}x{sequence}",)
}
"""The 25 cases of the same models at five shapes each."""

QUICK: dict[str, Case] = {
    f"{family}-quick": _family_case(family, f"{family}-quick", max(batch // 4, 1), sequence // 2, _QUICK_LAYERS)
    for family, (batch, sequence) in _CANONICAL.items()
}
"""The canonical models at two layers and small shapes, for two cores."""

CASES |= BENCHMARK_MODELS | GRID | QUICK


def batches(case: Case, count: int) -> list[dict[str, torch.Tensor]]:
    """The model's arguments in each of `count` steps, each from a different text.

    Texts: `input_ids` and `labels` are the same token ids, int64 `[batch, sequence]`. Images: `pixel_values`, fp32
    `[batch, 3, sequence, sequence]`, and `labels`, int64 `[batch]`.
    """
    if case.is_image:
        return [_images(case, step) for step in range(count)]
    return [{"input_ids": ids, "labels": ids} for ids in _texts(case, count)]


def _images(case: Case, step: int) -> dict[str, torch.Tensor]:
    import torch

    source = torch.Generator().manual_seed(step)
    pixels = torch.randn(case.batch, 3, case.sequence, case.sequence, generator=source)
    return {"pixel_values": pixels, "labels": torch.randint(_CLASSES, (case.batch,), generator=source)}


def _texts(case: Case, count: int) -> list[torch.Tensor]:
    import torch

    need = case.batch * case.sequence * count
    text = bytearray()
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= need:
            break
    if len(text) < need:
        raise RuntimeError(f"{library} has only {len(text)} bytes of text, {need} are needed")
    ids = torch.frombuffer(text[:need], dtype=torch.uint8).to(torch.int64)
    return list(ids.view(count, case.batch, case.sequence))
