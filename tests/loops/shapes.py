"""Loops whose inputs change their shapes."""

from __future__ import annotations

import torch
from frame import Run, loop
from parts import CharModel, words_batch


def _train(run: Run, model: torch.nn.Module, lengths: list[int]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for length in lengths:
        _, loss = model(*words_batch(8, length))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.note(loss)


@loop(300)
def lengths(run: Run) -> None:
    """Every batch is padded to its own longest row; the longest come first."""
    _train(run, run.wrap(CharModel()), [256, 250, 200, 131, 77, 240, 256, 33, 192, 255])


@loop(160, r"\d+.*longest.*fits", may_pass=True, is_quick=True)
def longer_than_fits(run: Run) -> None:
    """A batch in the middle is longer than any plan has room for."""
    _train(run, run.wrap(CharModel(length=2048)), [128, 128, 128, 1536, 128, 128])


@loop(300)
def growing(run: Run) -> None:
    """Lengths grow as training goes on."""
    _train(run, run.wrap(CharModel(depth=4)), [64, 64, 96, 96, 128, 128, 192, 192])


@loop(300, is_quick=True)
def last_batch(run: Run) -> None:
    """The last batch of each epoch has fewer rows."""
    model = run.wrap(CharModel(depth=3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        for rows in (8, 8, 8, 3):
            _, loss = model(*words_batch(rows, 256))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.note(loss)


@loop(100, may_pass=True)
def strict(run: Run) -> None:
    """With strict_budget a shape that fits no plan is refused, and the loop skips it."""
    model = run.wrap(CharModel(depth=2, length=4096), strict_budget=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for length in (128, 128, 4096, 128):
        ids, targets = words_batch(8, length)
        if length == 4096:
            run.refuses(lambda ids=ids, targets=targets: model(ids, targets))
            continue
        _, loss = model(ids, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.note(loss)
