"""The models and batches that demo and benchmarks train.

Weights are random from the model's configuration; text is the source of Python's
standard library, as bytes, which every machine has.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@dataclass(frozen=True)
class Case:
    """One model with its batch shape.

    Attributes:
        name: as on the command line.
        make: builds the model; the caller seeds torch first.
        batch: sequences per step.
        sequence: tokens per sequence.
    """

    name: str
    make: Callable[[], torch.nn.Module]
    batch: int
    sequence: int


def _gpt2() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0))


def _gpt2_tiny() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(n_layer=4, n_embd=128, n_head=4, vocab_size=512, bos_token_id=0, eos_token_id=0)
    )


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


CASES = {
    case.name: case
    for case in (
        Case("gpt2", _gpt2, 4, 512),
        Case("bert", _bert, 16, 128),
        Case("llama", _llama, 2, 1024),
        Case("gpt2-tiny", _gpt2_tiny, 4, 128),
    )
}


def batches(case: Case, count: int) -> list[torch.Tensor]:
    """`count` batches of token ids, int64 `[batch, sequence]`, each from other text."""
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
