"""A training loop of your own, with one more line."""

import torch
from tell import tell
from torch import nn

import memscale


def train(wrapped):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU()) for _ in range(12)]
    model = nn.Sequential(*blocks, nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if wrapped:
        memscale.wrap(model, memscale.Config(force_optimize=True))  # or memory_budget_gb=4.0
    for step in range(3):
        torch.manual_seed(step)
        x, labels = torch.randn(4096, 256), torch.randint(0, 10, (4096,))
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    tell("memscale" if wrapped else "plain", loss, model)


if __name__ == "__main__":
    train(wrapped=False)
    train(wrapped=True)
