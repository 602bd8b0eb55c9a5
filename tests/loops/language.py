"""Loops of language scripts."""

from __future__ import annotations

import torch
from frame import Run, loop
from parts import CharModel, words_batch


@torch.no_grad()
def _estimate(model: torch.nn.Module, rows: int) -> float:
    model.eval()
    losses = [model(*words_batch(rows, 256))[1].item() for _ in range(3)]
    model.train()
    return sum(losses)


@loop(300)
def characters(run: Run) -> None:
    """Micro-batches, gradient clipping, a learning rate set by hand, and estimates of the loss between steps."""
    model = run.wrap(CharModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99))
    batch = words_batch(8, 256)
    for step in range(10):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 / (step + 1)
        if step % 4 == 0:
            run.note(_estimate(model, 8))
        for _ in range(2):
            _, loss = model(*batch)
            batch = words_batch(8, 256)
            (loss / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.note(loss)


@loop(300, is_quick=True)
def sampling(run: Run) -> None:
    """Text is generated between the steps."""
    model = run.wrap(CharModel(depth=4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(8):
        _, loss = model(*words_batch(12, 256))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.note(loss)
        if step % 3 == 2:
            model.eval()
            run.note(model.generate(torch.zeros(1, 1, dtype=torch.long), 12))
            model.train()
