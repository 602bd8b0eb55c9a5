"""Small models, twins of optimizers and comparisons in units of the last place."""

from __future__ import annotations

import torch


def parameters(shapes, dtype=torch.float32, seed=0):
    """Leaf tensors with gradients, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for shape in shapes:
        p = torch.randn(shape, generator=generator).to(dtype).requires_grad_()
        p.grad = (torch.randn(shape, generator=generator) * 0.1).to(dtype)
        made.append(p)
    return made


def new_gradients(*lists, seed):
    """The same fresh gradients for each list of parameters."""
    generator = torch.Generator().manual_seed(seed)
    for group in zip(*lists, strict=True):
        gradient = torch.randn(group[0].shape, generator=generator) * 10.0 ** (seed % 5 - 3)
        for p in group:
            p.grad = gradient.to(p.dtype).clone(memory_format=torch.preserve_format)


def ulp(values):
    """The distance to the next float above each magnitude."""
    magnitude = values.abs()
    return torch.nextafter(magnitude, torch.tensor(float("inf"))) - magnitude


def off_by(ours, theirs, before):
    """The largest excess of the parameters' difference over the documented bound; at most 0 if all are within it.
    `before`: the parameters before the step, with weight decay applied."""
    allowed = torch.maximum(ulp(ours), ulp(theirs)) + 5 * ulp(theirs - before)
    return ((ours - theirs).abs() - allowed).max().item()


def small_task(seed=0):
    """A classifier of noisy clusters: the model, and a function that returns a batch."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 192), torch.nn.GELU(), torch.nn.LayerNorm(192), torch.nn.Linear(192, 192),
        torch.nn.GELU(), torch.nn.Linear(192, 8),
    )  # fmt: skip
    centers = torch.randn(8, 32)
    generator = torch.Generator().manual_seed(seed + 1)

    def batch():
        labels = torch.randint(0, 8, (64,), generator=generator)
        return centers[labels] + 1.2 * torch.randn(64, 32, generator=generator), labels

    return model, batch


def train(model, batch, optimizer, steps):
    """The mean loss of the last fifth of the steps."""
    losses = []
    for _ in range(steps):
        inputs, labels = batch()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-steps // 5 :]) / (steps // 5)
