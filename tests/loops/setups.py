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
