"""Loops that build, wrap, save or validate their model in other ways."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable

import torch
from frame import Run, loop
from parts import CharModel, words_batch


@loop(300)
def from_meta(run: Run) -> None:
    """The model is wrapped on the meta device and materialised afterwards."""
    with torch.device("meta"):
        model = CharModel(depth=4)
    model = run.wrap(model)
    model.to_empty(device="cpu")
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.02)
    _steps(run, model, range(6))


def _steps(
    run: Run, model: torch.nn.Module, numbers: Iterable[int], optimizer: torch.optim.Optimizer | None = None
) -> None:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in numbers:
        _, loss = model(*words_batch(8, 256))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.note(loss)


@loop(300)
def saved_and_loaded(run: Run) -> None:
    """The state is saved in the middle of training and loaded again."""
    model = run.wrap(CharModel(depth=3))
    _steps(run, model, range(4))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    _steps(run, model, range(2))
    model.load_state_dict(state)
    _steps(run, model, range(2))


@loop(300, is_quick=True)
def with_a_bar(run: Run) -> None:
    """Draws a progress bar while training."""
    from tqdm import tqdm

    _steps(run, run.wrap(CharModel(depth=3)), tqdm(range(5)))


@loop(300)
def with_a_sample(run: Run) -> None:
    """wrap() gets a sample input and plans at once."""
    _steps(run, run.wrap(CharModel(depth=3), sample_input=words_batch(8, 256)), range(6))


@loop(300)
def validated_first(run: Run) -> None:
    """A validation runs before the first training step, as trainers' sanity checks do."""
    model = run.wrap(CharModel(depth=3))
    model.eval()
    with torch.no_grad():
        run.note(model(*words_batch(8, 256))[1])
    model.train()
    _steps(run, model, range(6))


@loop(180, is_quick=True)
def resumed(run: Run) -> None:
    """A checkpoint is loaded in the middle of training, and stays referenced."""
    model = run.wrap(CharModel(width=256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    _steps(run, model, range(4), optimizer)
    with tempfile.TemporaryFile() as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        state = torch.load(file)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    _steps(run, model, range(3), optimizer)
    run.note(*state["model"].values())


@loop(78)
def trainer_evaluates(run: Run) -> None:
    """Hugging Face's Trainer with evaluations and checkpoints between the steps."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    ids = torch.randint(0, 512, (64, 128))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_embd=128, n_layer=6, n_head=4, n_positions=128))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=8,
            per_device_train_batch_size=8,
            per_device_eval_batch_size=8,
            eval_strategy="steps",
            eval_steps=2,
            save_strategy="steps",
            save_steps=4,
            logging_steps=2,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = run.wrap(Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:16]))
        trainer.train()
    run.note(*(entry["loss"] for entry in trainer.state.log_history if "loss" in entry))
    run.note(*(parameter for parameter in model.parameters()))


@loop(150, is_quick=True)
def unfreezing(run: Run) -> None:
    """Half of the layers are trained at first, then all, with another optimizer."""
    model = CharModel(depth=6)
    frozen = [parameter for block in model.blocks[:3] for parameter in block.parameters()]
    for parameter in frozen:
        parameter.requires_grad_(False)
    model = run.wrap(model)
    _steps(run, model, range(4))
    for parameter in frozen:
        parameter.requires_grad_(True)
    _steps(run, model, range(4))
