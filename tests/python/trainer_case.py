"""Trains with a Hugging Face Trainer under a budget in bytes, then without memscale. test_distributed.py runs it on
every rank under torchrun. Each rank writes its results to a file, one JSON document a line. Not a test by itself."""

from __future__ import annotations

import json
import logging
import os
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import memscale

BUDGET_GB, FOLDER, RANK = int(sys.argv[1]) / 1e9, sys.argv[2], int(os.environ["RANK"])
STEPS, LENGTH = 5, 256
SIZES = {"n_layer": 4, "n_embd": 384, "n_head": 6, "vocab_size": 4000, "n_positions": LENGTH}


def tell(what: str, value: object) -> None:
    with open(f"{FOLDER}/{RANK}", "a") as file:
        file.write(json.dumps({"what": what, "value": value}) + "\n")


class Peaks(TrainerCallback):
    """The measured peak of each step."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
        executor = getattr(self._model, "_memscale_executor", None)
        if executor is not None:
            tell("peak", executor.take_peak_bytes())
            tell("replans", executor.counters()["replans"])


def train(wraps: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**SIZES, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    rows = torch.randint(0, SIZES["vocab_size"], (32, LENGTH), generator=torch.Generator().manual_seed(1))
    arguments = TrainingArguments(
        output_dir=f"{FOLDER}/out",
        per_device_train_batch_size=4,
        max_steps=STEPS,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Peaks(model)])
    if wraps:
        memscale.wrap(trainer, memscale.Config(memory_budget_gb=BUDGET_GB, enable_logging=False))
    trainer.train()
    return [parameter.detach().clone() for parameter in model.parameters()]


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("memscale").setLevel(logging.ERROR)
    try:
        wrapped = train(True)
    except memscale.MemScaleError as error:
        tell("refused", getattr(error, "smallest_budget_bytes", 0))
    else:
        tell("equal", all(map(torch.equal, wrapped, train(False))))
    time.sleep(1)  # as in distributed_case.py
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
