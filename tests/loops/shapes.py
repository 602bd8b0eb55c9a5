"""Loops whose input shapes change."""

from __future__ import annotations

import torch
from frame import Run, loop
from parts import CharModel, words_batch
from torch import nn


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
    """Each batch is padded to its own longest row; the longest batches come first."""
    _train(run, run.wrap(CharModel()), [256, 250, 200, 131, 77, 240, 256, 33, 192, 255])


@loop(160, r"\d+.*longest.*fits", may_pass=True, is_quick=True)
def longer_than_fits(run: Run) -> None:
    """One batch in the middle is so long that it fits no plan."""
    _train(run, run.wrap(CharModel(length=2048)), [128, 128, 128, 1536, 128, 128])


@loop(300)
def growing(run: Run) -> None:
    """Lengths grow during training."""
    _train(run, run.wrap(CharModel(depth=4)), [64, 64, 96, 96, 128, 128, 192, 192])


@loop(300, is_quick=True)
def last_batch(run: Run) -> None:
    """The last batch of each epoch has fewer rows."""
    model = run.wrap(CharModel(depth=3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        for rows in (8, 8, 8, 3):
            _, loss = model(*words_batch(rows, 256))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.note(loss)


@loop(100, may_pass=True)
def strict(run: Run) -> None:
    """With strict_budget, memscale refuses a shape that fits no plan, and the loop skips it."""
    model = run.wrap(CharModel(depth=2, length=4096), strict_budget=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for length in (128, 128, 4096, 128):
        ids, targets = words_batch(8, length)
        if length == 4096:
            run.refuses(lambda ids=ids, targets=targets: model(ids, targets))
            continue
        _, loss = model(ids, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.note(loss)


class _Translator(nn.Module):
    """An encoder and a decoder that the loop calls one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 128)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(128, 4, 512, 0.1, batch_first=True) for _ in range(3))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(128, 4, 512, 0.1, batch_first=True) for _ in range(3))
        self.out = nn.Linear(128, 1000)

    def encode(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for layer in self.encoder:
            x = layer(x)
        return x

    def decode(self, ids: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for layer in self.decoder:
            x = layer(x, memory, tgt_mask=mask)
        return self.out(x)


@loop(180)
def translation(run: Run) -> None:
    """Teacher forcing with other lengths in each batch, through `encode` and `decode`."""
    model = run.wrap(_Translator())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for source, target in ((64, 60), (48, 50), (64, 64), (20, 64), (64, 30), (64, 64)):
        x, y = torch.randint(1000, (16, source)), torch.randint(1000, (16, target + 1))
        logits = model.decode(y[:, :-1], model.encode(x))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.note(loss)
