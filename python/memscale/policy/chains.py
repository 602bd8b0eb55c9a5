"""Graphs of models that no configuration describes: convolutional, recurrent and random chains.

The corpus uses them beside the graphs of Hugging Face families. Each is a graph document
(docs/formats/graph.schema.json), made without torch. All sizes are in bytes.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

__all__ = ["KINDS", "chain_graph"]

KINDS = ("convolutional", "recurrent", "random")

# A training step of Adam: two numbers of state a parameter.
_STATE_PER_PARAMETER = 2


@dataclass(frozen=True)
class _Layer:
    """One layer: it saves its input, a result of its product and what an element-wise operator makes of that."""

    parameters: int
    product: int
    activated: int
    mask: int
    scratch: int
    output: int
    flops: int


def _round(value: float) -> int:
    return max(4, int(value) // 4 * 4)


def _convolutional(rng: random.Random) -> tuple[int, list[_Layer]]:
    """Stages that halve each side and double the channels."""
    side, channels = rng.choice((64, 112, 224, 256)), rng.choice((32, 64, 96))
    batch, taps = rng.choice((4, 8, 16, 32, 64)), rng.choice((9, 9, 25))
    first, layers = _round(4 * batch * channels * side * side), []
    for stage in range(rng.randint(3, 5)):
        for block in range(rng.randint(2, 6)):
            grows = stage > 0 and block == 0
            into = channels
            if grows:
                side, channels = max(1, side // 2), channels * 2
            cells = batch * side * side
            out = _round(4 * cells * channels)
            weights = _round(4 * into * channels * taps)
            flops = 2 * cells * into * channels * taps
            layers.append(_Layer(weights, out, out, 0, _round(out * rng.uniform(0.2, 2)), out, flops))
    return first, layers


def _recurrent(rng: random.Random) -> tuple[int, list[_Layer]]:
    """Equal steps with four gates."""
    batch, width, chunk = rng.choice((16, 64, 256)), rng.choice((256, 512, 1024, 2048)), rng.choice((8, 32, 64))
    rows = batch * chunk
    out = _round(4 * rows * width)
    layer = _Layer(_round(32 * width * width), 4 * out, 4 * out, 0, out, out, 16 * rows * width * width)
    return out, [layer] * rng.randint(6, 28)


def _random(rng: random.Random) -> tuple[int, list[_Layer]]:
    """Layers of any shape: no two alike."""
    width = 2 ** rng.uniform(21, 27)
    layers = []
    for _ in range(rng.randint(4, 24)):
        product = _round(width * 2 ** rng.uniform(-2, 2))
        layers.append(
            _Layer(
                _round(2 ** rng.uniform(16, 25)),
                product,
                _round(product * rng.choice((1, 1, 2))),
                _round(product / 4) if rng.random() < 0.4 else 0,
                _round(product * rng.uniform(0, 1)),
                _round(width * 2 ** rng.uniform(-1, 1)),
                int(product * 2 ** rng.uniform(4, 11)),
            )
        )
    return _round(width), layers


_MAKERS = {"convolutional": _convolutional, "recurrent": _recurrent, "random": _random}


def _profile(layer: _Layer, into: int) -> dict[str, Any]:
    """0 input, 1 output, 2 and 3 their gradients, 4 the parameters'; 5 product, 6 activated, 7 8 scratch, 9 mask."""
    touched = into + layer.product
    sizes = [into, layer.output, layer.output, into, layer.parameters]
    sizes += [layer.product, layer.activated, layer.scratch, layer.scratch] + ([layer.mask] if layer.mask else [])
    element = layer.product + layer.activated
    saved = [0, 5, 6] + ([9] if layer.mask else [])
    forward: list[list[Any]] = [["save", 0], ["alloc", 7], ["alloc", 5], ["work", layer.flops, touched], ["free", 7]]
    forward += [["save", 5], ["alloc", 6], ["work", 0, element]]
    if layer.mask:
        forward += [["alloc", 9], ["work", 0, element], ["save", 9], ["free", 9]]
    forward += [["save", 6], ["alloc", 1], ["work", 0, layer.activated + layer.output], ["free", 6], ["free", 5]]
    forward += [["free", 0]]
    backward: list[list[Any]] = [["need", local] for local in reversed(saved[2:])]
    backward += [["alloc", 8], ["work", 0, 2 * element], ["need", 5], ["alloc", 3], ["work", layer.flops, touched]]
    backward += [["need", 0], ["alloc", 4], ["work", layer.flops, touched], ["free", 8]]
    backward += [["drop", local] for local in saved] + [["free", 2]]
    makers: list[Any] = [[layer.flops, touched, [0], [5]], [0, element, [5], [6]]]
    profile = {
        "storage_bytes": sizes,
        "external_count": 5,
        "inputs": [0],
        "forward": forward,
        "backward": backward,
        "makers": makers,
    }
    return profile | ({"two_valued": [[9, 1]]} if layer.mask else {})


def _ends(first: int, last: int) -> list[dict[str, Any]]:
    """The root's work before and after the layers."""
    before = {
        "storage_bytes": [first, first],
        "external_count": 2,
        "inputs": [],
        "forward": [["alloc", 0], ["work", 0, first]],
        "backward": [["work", 0, first], ["free", 1]],
    }
    after = {
        "storage_bytes": [last, last, 4],
        "external_count": 3,
        "inputs": [],
        "forward": [["save", 0], ["alloc", 2], ["work", 0, last], ["free", 0]],
        "backward": [["need", 0], ["alloc", 1], ["work", 0, 2 * last], ["drop", 0]],
    }
    return [before, after]


def _storages(first: int, layers: list[_Layer]) -> list[dict[str, Any]]:
    """Activations, their gradients, the parameters' gradients, the loss."""
    sizes, count = [first, *(layer.output for layer in layers)], len(layers)
    rows = [{"bytes": b, "role": "activation", "first_node": i, "last_node": i + 1} for i, b in enumerate(sizes)]
    rows += [{"bytes": b, "role": "activation", "first_node": i + 1, "last_node": i} for i, b in enumerate(sizes)]
    for i, layer in enumerate(layers, 1):
        rows.append({"bytes": layer.parameters, "role": "gradient", "first_node": i, "last_node": i})
    rows.append({"bytes": 4, "role": "output", "first_node": count + 1, "last_node": count + 1})
    return rows


def _nodes(kind: str, profiles: list[int], count: int) -> list[dict[str, Any]]:
    gradients, weights = count + 1, 2 * (count + 1)
    root: dict[str, Any] = {"name": "", "kind": "root", "call": 0, "flags": [], "profile": max(profiles) + 1}
    nodes = [root | {"externals": [0, gradients]}]
    for i, profile in enumerate(profiles):
        externals = [i, i + 1, gradients + i + 1, gradients + i, weights + i]
        flags = ["chained"] if i + 1 < count else []
        node = {"name": f"{kind}.{i}", "kind": "layer", "call": 0, "flags": flags, "profile": profile}
        nodes.append(node | {"externals": externals})
    last = [count, gradients + count, weights + count]
    return [*nodes, root | {"call": 1, "profile": max(profiles) + 2, "externals": last}]


def chain_graph(kind: str, rng: random.Random) -> str:
    """A graph document of one of `KINDS`. Equal generators give equal bytes."""
    first, layers = _MAKERS[kind](rng)
    sizes = [first, *(layer.output for layer in layers)]
    numbers: dict[tuple[_Layer, int], int] = {}
    profiles = [numbers.setdefault((layer, into), len(numbers)) for layer, into in zip(layers, sizes, strict=False)]
    parameters = sum(layer.parameters for layer in layers)
    document = {
        "version": 1,
        "model": kind,
        "signature": f"x:float32[{first // 4}]",
        "source": "static",
        "residents": {
            "parameter_bytes": parameters,
            "trainable_bytes": parameters,
            "buffer_bytes": 0,
            "batch_bytes": 0,
            "largest_parameter_bytes": max(layer.parameters for layer in layers),
        },
        "loop": {
            "outputs_held": True,
            "gradients_live_in_forward": True,
            "observed": False,
            "optimizer_state_bytes": _STATE_PER_PARAMETER * parameters,
            "optimizer_transient_bytes": max(layer.parameters for layer in layers),
            "external_loss_bytes": 0,
        },
        "storages": _storages(first, layers),
        "profiles": [_profile(layer, into) for layer, into in numbers] + _ends(first, sizes[-1]),
        "nodes": _nodes(kind, profiles, len(layers)),
    }
    return json.dumps(document)
