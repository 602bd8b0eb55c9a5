"""Loops that build, wrap, save or validate their model in other ways."""

from __future__ import annotations

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


def _steps(run: Run, model: torch.nn.Module, numbers: Iterable[int]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
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
