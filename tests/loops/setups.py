"""Loops that build or pass their model in a way of their own."""

from __future__ import annotations

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
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(6):
        _, loss = model(*words_batch(8, 256))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.note(loss)


def _steps(run: Run, model: torch.nn.Module, count: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(count):
        _, loss = model(*words_batch(8, 256))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.note(loss)


@loop(300)
def saved_and_loaded(run: Run) -> None:
    """A state is saved in the middle and loaded again."""
    model = run.wrap(CharModel(depth=3))
    _steps(run, model, 4)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    _steps(run, model, 2)
    model.load_state_dict(state)
    _steps(run, model, 2)


@loop(300, is_quick=True)
def with_a_bar(run: Run) -> None:
    """A progress bar is drawn while it trains."""
    from tqdm import tqdm

    model = run.wrap(CharModel(depth=3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in tqdm(range(5)):
        _, loss = model(*words_batch(8, 256))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.note(loss)


@loop(300)
def with_a_sample(run: Run) -> None:
    """The plan is made at the wrap, from a sample."""
    _steps(run, run.wrap(CharModel(depth=3), sample_input=words_batch(8, 256)), 6)


@loop(300)
def validated_first(run: Run) -> None:
    """A validation runs before the first training step, as trainers' sanity checks do."""
    model = run.wrap(CharModel(depth=3))
    model.eval()
    with torch.no_grad():
        run.note(model(*words_batch(8, 256))[1])
    model.train()
    _steps(run, model, 6)
