"""Trains a streamed model and saves a checkpoint after each step, beside the last one, which it then replaces. Begins
where the last complete checkpoint ends. Prints the number and the loss of each step.

Usage: python streamed_killed.py FOLDER STEPS
"""

from __future__ import annotations

import os
import pathlib
import sys

import torch

import memscale
from memscale import _core

WINDOW_BYTES = 16 << 20
WIDTH, DEPTH = 1024, 8  # 34 MB, and twice as much state


def main() -> None:
    torch.set_num_threads(1)
    folder, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(0)
    with memscale.stream(folder):
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)))
    optimizer = memscale.optim.AdamW(model.parameters(), lr=1e-3, state="disk", disk_offload_dir=str(folder))
    _core.streamed_set_window(WINDOW_BYTES)
    last, first = folder / "last.pt", 0
    if last.exists():
        with memscale.stream(folder):
            saved = torch.load(last)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            first = saved["steps"]
            del saved
    for step in range(first, steps):
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, loss.item().hex(), flush=True)
        save(last, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "steps": step + 1})


def save(path: pathlib.Path, state: object) -> None:
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        torch.save(state, file)
        os.fsync(file.fileno())
    part.replace(path)


if __name__ == "__main__":
    main()
