"""AdamW with its state, two values per parameter, on disk. Results have the bits of a run with the state in memory."""

import torch
from tell import tell
from torch import nn

import memscale


def train(on_disk):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(8)])
    optimizer = memscale.optim.AdamW(model.parameters(), lr=1e-3, state="disk" if on_disk else "memory")
    if on_disk:
        memscale.wrap(model, memscale.Config(force_optimize=True))
    for step in range(3):
        torch.manual_seed(step)
        loss = model(torch.randn(512, 256)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    tell("on disk" if on_disk else "in memory", loss, model)


if __name__ == "__main__":
    train(on_disk=False)
    train(on_disk=True)
