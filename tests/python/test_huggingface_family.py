"""A Hugging Face Trainer with LoRA adapters of PEFT, and TRL's SFTTrainer. Skipped if they are not installed;
`make test` installs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from execute_support import few_threads  # noqa: F401
from trainer_support import VOCABULARY, gpt2, llama, losses, same_parameters, trainer, worked

import memscale
from memscale import Config

pytestmark = pytest.mark.usefixtures("few_threads")

FORCED = Config(force_optimize=True, enable_logging=False)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_lora_trains_to_the_same_bits(tmp_path: Path, checkpointing: bool) -> None:
    peft = pytest.importorskip("peft")

    def adapted() -> Any:
        torch.manual_seed(1)
        return peft.get_peft_model(
            llama(), peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        )

    plain = trainer(tmp_path, adapted(), gradient_checkpointing=checkpointing)
    plain.train()
    wrapped = memscale.wrap(trainer(tmp_path, adapted(), gradient_checkpointing=checkpointing), FORCED)
    wrapped.train()
    assert worked(wrapped.model._memscale_executor)
    assert losses(wrapped) == losses(plain)
    assert same_parameters(wrapped.model, plain.model)
    wrapped.save_model(str(tmp_path / "adapter"))
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()
    memscale.detach(wrapped)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, VOCABULARY)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


@pytest.mark.parametrize("checkpointing", [False, True])
def test_supervised_fine_tuning_trains_to_the_same_bits(tmp_path: Path, checkpointing: bool) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    rows = [[(i * 7 + j * 3) % 60 + 2 for j in range(6 + i)] for i in range(12)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"input_ids": row, "labels": row}) + "\n" for row in rows))
    data = datasets.load_dataset("json", data_files=str(file), split="train", cache_dir=str(tmp_path / "cache"))

    def made() -> Any:
        return trl.SFTTrainer(
            model=gpt2(),
            args=trl.SFTConfig(
                output_dir=str(tmp_path),
                max_steps=3,
                per_device_train_batch_size=2,
                report_to=[],
                use_cpu=True,
                bf16=False,
                save_strategy="no",
                disable_tqdm=True,
                logging_steps=1,
                max_length=32,
                gradient_checkpointing=checkpointing,
                dataset_kwargs={"skip_prepare_dataset": True},
            ),
            train_dataset=data,
            processing_class=_tokenizer(),
        )

    plain = made()
    plain.train()
    wrapped = memscale.wrap(made(), FORCED)
    wrapped.train()
    assert worked(wrapped.model._memscale_executor)
    assert losses(wrapped) == losses(plain)
    assert same_parameters(wrapped.model, plain.model)
    memscale.detach(wrapped)
