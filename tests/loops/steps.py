"""Loops with unusual steps: gradients applied by hand or accumulated, closures, several optimizers, late zeroing."""

from __future__ import annotations

import torch
from frame import Run, loop
from parts import mlp
from torch import nn


@loop(220, is_quick=True)
def by_hand(run: Run) -> None:
    """The loop applies the gradients itself."""
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
    """Each step has four micro-batches."""
    model = run.wrap(mlp(256, 2048, 2048, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number in range(24):
        loss = nn.functional.mse_loss(model(torch.randn(1024, 256)), torch.zeros(1024, 16)) / 4
        loss.backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
        run.note(loss)


@loop(220)
def closures(run: Run) -> None:
    """L-BFGS calls forward and backward itself, several times a step."""
    model = run.wrap(mlp(64, 512, 512, 8))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=3)
    x, y = torch.randn(1024, 64), torch.randn(1024, 8)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(5):
        run.note(optimizer.step(closure))


@loop(240)
def two_optimizers(run: Run) -> None:
    """One optimizer updates the weights, another the biases."""
    model = run.wrap(mlp(256, 2048, 2048, 16))
    weights = torch.optim.SGD([p for p in model.parameters() if p.dim() > 1], lr=0.01, momentum=0.9)
    others = torch.optim.AdamW([p for p in model.parameters() if p.dim() == 1], lr=1e-3)
    for _ in range(8):
        loss = model(torch.randn(1024, 256)).square().mean()
        loss.backward()
        for optimizer in (weights, others):
            optimizer.step()
            optimizer.zero_grad()
        run.note(loss)


@loop(240)
def gradients_zeroed_late(run: Run) -> None:
    """Gradients of one step are still there during the next forward."""
    model = run.wrap(mlp(256, 2048, 2048, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        loss = model(torch.randn(1024, 256)).square().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        run.note(loss)
