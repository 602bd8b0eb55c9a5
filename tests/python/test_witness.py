"""A witness sees what a layer's code writes, far from the layer, and restores it; it copies no buffer that a replay
copies anyway."""

from __future__ import annotations

import torch
from torch import nn

from memscale import _core
from memscale.model.witness import Witness

ELEMENTS = 1 << 18  # of 4 bytes: 1 MiB


class Counting(nn.Module):
    """Counts in an attribute of torch's class, and writes to a tensor in a list."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(ELEMENTS))
        self.tensors = [torch.zeros(3)]

    def forward(self, x):
        nn.Module.times_called += 1
        self.tensors[0].data += 1
        return x + self.table[0]


def watched(module, run):
    """What the witness says of run(), and the bytes that it copied."""
    said = []

    def inner(undo):
        witness = Witness(undo, [module])
        run()
        said.append((witness.change(), witness._copied_bytes))

    _core.guarded(inner)
    return said[0]


def test_a_count_in_a_class_of_torch_is_seen_and_restored(monkeypatch):
    monkeypatch.setattr(nn.Module, "times_called", 5, raising=False)
    module = Counting()
    changed, _ = watched(module, lambda: module(torch.ones(1)))
    assert changed == "times_called"
    assert nn.Module.times_called == 5
    assert module.tensors[0].tolist() == [0.0, 0.0, 0.0]


def test_large_buffers_of_the_layer_are_not_copied():
    module = Counting()
    assert watched(module, lambda: None) == (None, 12)
    changed, _ = watched(module, lambda: module.table.add_(1))
    assert changed == "table"
