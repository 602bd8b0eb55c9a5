"""Loops whose steps end otherwise than by `torch.optim`."""

from __future__ import annotations

import torch
from frame import Run, loop
from parts import mlp
from torch import nn


@loop(220, is_quick=True)
def by_hand(run: Run) -> None:
    """Gradients are applied by the loop itself."""
    model = run.wrap(mlp(256, 2048, 2048, 16))
    for _ in range(8):
        loss = model(torch.randn(2048, 256)).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
        run.note(loss)


@loop(260)
def accumulation(run: Run) -> None:
    """Four micro-batches to a step."""
    model = run.wrap(mlp(256, 2048, 2048, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number in range(24):
        loss = nn.functional.mse_loss(model(torch.randn(1024, 256)), torch.zeros(1024, 16)) / 4
        loss.backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
        run.note(loss)
