"""Supervised fine-tuning with TRL: wrap the SFTTrainer as any Trainer."""

import tempfile

import torch
from datasets import Dataset
from tell import tell
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import memscale


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{f"w{i}": i + 3 for i in range(61)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def train(wrapped):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=3,
                                         num_attention_heads=4, vocab_size=64))  # fmt: skip
    data = Dataset.from_dict({"text": [" ".join(f"w{(i * j) % 61}" for j in range(64)) for i in range(8)]})
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(folder, max_steps=2, per_device_train_batch_size=4, report_to=[], use_cpu=True,
                              disable_tqdm=True, save_strategy="no", bf16=False)  # fmt: skip
        trainer = SFTTrainer(model, arguments, train_dataset=data, processing_class=tokenizer())
        if wrapped:
            memscale.wrap(trainer, memscale.Config(force_optimize=True))
        result = trainer.train()
    tell("memscale" if wrapped else "plain", result.training_loss, model)


if __name__ == "__main__":
    train(wrapped=False)
    train(wrapped=True)
