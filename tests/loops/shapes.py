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
