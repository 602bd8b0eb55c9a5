"""A Hugging Face Trainer: wrap it, then train as before."""

import tempfile

import torch
from tell import tell
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import memscale


def train(wrapped):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=128, n_head=4, vocab_size=512, bos_token_id=0, eos_token_id=0))
    ids = torch.randint(0, 512, (12, 128))
    data = [{"input_ids": row, "labels": row} for row in ids]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, max_steps=3, per_device_train_batch_size=4, report_to=[], use_cpu=True,
                                      disable_tqdm=True, logging_strategy="no", save_strategy="no")  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=data)
        if wrapped:
            memscale.wrap(trainer, memscale.Config(force_optimize=True))
        result = trainer.train()
    tell("memscale" if wrapped else "plain", result.training_loss, model)


if __name__ == "__main__":
    train(wrapped=False)
    train(wrapped=True)
