"""The processor time of memscale's Python around a recomputed layer, without the layer's own operators.

`python bench/replays.py` prints, as Markdown, the medians of

- the inventory of the process's state (`Environment`): taken before a recomputed call, and set and put back around its
  replay;
- the state of the layer's modules: taken before a recomputed call (`LayerState.take`), and set and put back around its
  replay (`ModuleState.put`);
- a witness, which only a layer's first three replays have: its search, its comparison, and the bytes that it copies.

Contenders are timed in turn, in rounds, and the median of the rounds' medians counts, less what the clock takes. Times
are of the thread's processor time, which other work on the machine changes least. One thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from memscale import _core
from memscale.base.environment import Environment
from memscale.base.settings import Switches
from memscale.device import RandomState
from memscale.execution.module_state import LayerState
from memscale.model.witness import Witness


class Block(nn.Module):
    """A transformer's block of the user's own, as public scripts write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.ones(1024, 1024).tril() == 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = self.first(x)
        length = x.shape[1]
        x = x + self.attention(n, n, n, attn_mask=self.mask[:length, :length], need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def _gpt2() -> nn.Module:
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    return GPT2Block(GPT2Config(), layer_idx=0)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(32, 32),
    "a block of one's own": lambda: Block(256),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(256, 4),
    "GPT2Block": _gpt2,
    "BatchNorm2d of 64 channels in two blocks": lambda: nn.Sequential(
        *(nn.Sequential(nn.Conv2d(64, 64, 3), nn.BatchNorm2d(64), nn.ReLU()) for _ in range(2))
    ),
}


def _median_us(calls: dict[str, Callable[[], Any]], rounds: int, times: int) -> dict[str, float]:
    calls = {"": lambda: None, **calls}
    medians: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken = []
            for _ in range(times):
                start = time.thread_time_ns()
                call()
                taken.append(time.thread_time_ns() - start)
            medians[name].append(statistics.median(taken) / 1000)
    clock = statistics.median(medians.pop(""))
    return {name: statistics.median(found) - clock for name, found in medians.items()}


def _put_and_restored(value: Any) -> Callable[[], None]:
    return lambda: _core.guarded(lambda undo: value.put(undo))


def _inventory(rounds: int) -> None:
    environment, switches = Environment(), Switches()
    calls: dict[str, Callable[[], Any]] = {
        "inventory, taken": Environment,
        "of it: settings": Switches,
        "of it: random states": RandomState,
        "inventory, set and put back": _put_and_restored(environment),
        "of it: settings, set and put back": _put_and_restored(switches),
        "an empty `guarded` call": lambda: _core.guarded(lambda undo: None),
    }
    print("| | us |\n|---|---|")
    for name, us in _median_us(calls, rounds, 200).items():
        print(f"| {name} | {us:.1f} |")


def _watch(modules: list[nn.Module], found: list[Witness]) -> Callable[[], None]:
    def watch(undo: Any) -> None:
        witness = Witness(undo, modules)
        witness.change()
        found[:] = [witness]

    return lambda: _core.guarded(watch)


class _Taken:
    """The state of a layer before a call, which no mode surrounds."""

    def __init__(self, state: LayerState, layer: nn.Module) -> None:
        for _ in range(10):  # the first calls look for what later ones do not
            self._state = state.take(layer, [])

    def put(self, undo: Any) -> None:
        self._state.put(undo, [])


def _layers(rounds: int) -> None:
    print("\n| layer | modules | its state, taken us | set and put back us | witness us | objects | copied bytes |")
    print("|---|---|---|---|---|---|---|")
    for name, make in LAYERS.items():
        layer = make()
        modules = list(layer.modules())
        state = LayerState(name)
        found: list[Witness] = []
        calls = {
            "state": lambda state=state, layer=layer: state.take(layer, []),
            "put": _put_and_restored(_Taken(state, layer)),
            "witness": _watch(modules, found),
        }
        us = _median_us(calls, rounds, 5)
        witness = found[0]
        print(
            f"| {name} | {len(modules)} | {us['state']:.0f} | {us['put']:.0f} | {us['witness']:.0f}"
            f" | {len(witness._seen)} | {witness._copied_bytes} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    _inventory(options.rounds)
    _layers(options.rounds)


if __name__ == "__main__":
    main()
