"""Loops with gradient steps inside a step."""

from __future__ import annotations

import torch
from frame import Run, loop
from parts import mlp
from torch.func import functional_call
from torch.nn import functional


@loop(220)
def adaptation(run: Run) -> None:
    """The outer loss has gradients through the inner gradient steps (MAML)."""
    model = run.wrap(mlp(64, 1024, 1024, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(5):
        total = 0.0
        for _ in range(2):
            fast = dict(model.named_parameters())
            for _ in range(2):
                inner = functional.mse_loss(functional_call(model, fast, torch.randn(512, 64)), torch.zeros(512, 8))
                slopes = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
                fast = {name: v - 0.01 * g for (name, v), g in zip(fast.items(), slopes, strict=True)}
            total = total + functional.mse_loss(functional_call(model, fast, torch.randn(512, 64)), torch.zeros(512, 8))
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        run.note(total)
