"""Shared by the trainers' tests: small models, reproducible data, and comparisons of whole training runs."""

from __future__ import annotations

import os
from typing import Any

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import transformers

VOCABULARY, LENGTH = 64, 24


class Sentences(torch.utils.data.Dataset):
    """Random token sequences; the index is the seed."""

    def __init__(self, count: int = 16) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def gpt2(layers: int = 3) -> transformers.GPT2LMHeadModel:
    """A model with dropout, so that a wrong random state changes the result."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=32, n_head=4, vocab_size=VOCABULARY, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def llama(layers: int = 3) -> transformers.LlamaForCausalLM:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        vocab_size=VOCABULARY,
        attention_dropout=0.1,
    )
    return transformers.LlamaForCausalLM(config)


def arguments(folder: Any, **options: Any) -> transformers.TrainingArguments:
    defaults = {
        "max_steps": 3,
        "per_device_train_batch_size": 2,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
        "dataloader_num_workers": 0,
    }
    return transformers.TrainingArguments(output_dir=str(folder), **{**defaults, **options})


def trainer(folder: Any, model: Any = None, **options: Any) -> transformers.Trainer:
    return transformers.Trainer(
        model=model if model is not None else gpt2(),
        args=arguments(folder, **options),
        train_dataset=Sentences(),
        eval_dataset=Sentences(4),
    )


def losses(trained: Any) -> list[float]:
    return [entry["loss"] for entry in trained.state.log_history if "loss" in entry]


def same_parameters(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    pairs = zip(a.named_parameters(), b.named_parameters(), strict=True)
    return all(n == m and torch.equal(p, q) for (n, p), (m, q) in pairs)


def worked(executor: Any) -> bool:
    """Whether the plan has recomputed or offloaded anything so far."""
    counters = executor.counters()
    return counters["recomputed_layers"] + counters["remade_tensors"] + counters["offloaded_storages"] > 0
