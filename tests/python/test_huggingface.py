"""Hugging Face Trainer: recognised by type, trained to the same bits, left as it was."""

from __future__ import annotations

import os

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import memscale  # noqa: E402
from memscale import Config  # noqa: E402


class _Data(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 64, (32,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def _trainer(tmp_path, **options) -> transformers.Trainer:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, vocab_size=64
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=2, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True, logging_steps=1, **options,
    )
    return transformers.Trainer(
        model=transformers.LlamaForCausalLM(config), args=arguments, train_dataset=_Data()
    )


def _losses(trainer: transformers.Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5}])
def test_training_is_equal_to_the_bit(tmp_path, options) -> None:
    plain = _trainer(tmp_path, **options)
    plain.train()
    wrapped = _trainer(tmp_path, **options)
    assert memscale.wrap(wrapped, Config(force_optimize=True)) is wrapped
    wrapped.train()
    executor = wrapped.model._memscale_executor
    assert sum(executor.counters()[name] for name in ("recomputed_layers", "offloaded_storages")) > 0
    assert _losses(wrapped) == _losses(plain)
    for expected, found in zip(plain.model.parameters(), wrapped.model.parameters(), strict=True):
        assert torch.equal(expected, found)
    memscale.detach(wrapped)
    assert "_memscale_executor" not in wrapped.model.__dict__


def test_gradient_checkpointing_is_taken_over(tmp_path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="memscale")
    trainer = memscale.wrap(_trainer(tmp_path, gradient_checkpointing=True))
    assert trainer.args.gradient_checkpointing is False
    assert "taken over" in caplog.text
    memscale.detach(trainer)


def test_a_model_that_looks_like_a_trainer_is_a_model() -> None:
    model = torch.nn.Linear(2, 2)
    model.model = torch.nn.Linear(2, 2)
    assert memscale.wrap(model) is model
    memscale.detach(model)
