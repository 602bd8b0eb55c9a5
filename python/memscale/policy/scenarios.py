"""The runs of the corpus: a model, a machine, ranks, a budget and a loop, all drawn from one number.

The same number gives the same documents. Rates of machines are of measured classes: cards of the catalogue
(`memscale hardware --cards`), and hosts with 2 to 64 cores and disks from a hard disk to four NVMe drives.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import _core
from .chains import KINDS, chain_graph
from .events import Likeness

__all__ = ["CLASSES", "FAMILIES", "Scenario", "draw"]

_DECODERS = ("llama", "mistral", "qwen2", "qwen3")
FAMILIES = (*_DECODERS, "gpt2", "bert", *KINDS)
# By an event's class of architecture: the families that are of the class or nearest to it; any for other classes.
_FAMILIES_OF = {
    "decoder": (*_DECODERS, "gpt2"),
    "encoder": ("bert",),
    "encoder_decoder": ("bert", "gpt2"),
    "attention": ("bert", "gpt2"),
    "convolutional": ("convolutional",),
    "recurrent": ("recurrent",),
}

_GB = 10**9
_FP32_BYTES = 4
_DRAWS_MOST = 200  # for one that is like an event
_GPUS: dict[str, tuple[tuple[str, int, int, int, int], ...]] = {
    # name, memory in GB, TFLOP/s, memory and link in GB/s: four fifths of the datasheets' peaks
    "gpu_small": (("T4", 15, 6, 260, 12), ("L4", 23, 24, 240, 24)),
    "gpu_consumer": (("RTX 3090", 25, 28, 750, 24), ("RTX 4090", 25, 66, 810, 24), ("RTX 5090", 33, 84, 1400, 48)),
    "gpu_a100": (("A100 40GB", 42, 16, 1200, 24), ("A100 80GB", 84, 16, 1600, 24)),
    "gpu_large": (("H100", 84, 54, 2700, 48), ("H200", 148, 54, 3800, 48), ("MI300X", 202, 130, 4200, 48)),
}
_DISKS: dict[str, tuple[int, int] | None] = {
    # write and read in MB/s
    "cpu_no_disk": None,
    "cpu_hdd": (140, 160),
    "cpu_sata": (480, 530),
    "cpu_virtual": (1600, 1300),
    "cpu_nvme": (3200, 5200),
    "cpu_raid": (9000, 14000),
}
CLASSES = (*_DISKS, *_GPUS)


@dataclass(frozen=True)
class Scenario:
    """One run: three documents, and what they were drawn from."""

    family: str
    hardware_class: str
    ranks: int
    graph: str
    hardware: str
    config: str
    differs: tuple[str, ...] = ()  # from the event that it was to be like: names of sizes


# -- models -----------------------------------------------------------------------------------


def _transformer(family: str, rng: random.Random) -> str:
    layers = rng.choice((24, 32, 48) if rng.random() < 0.12 else (2, 3, 4, 6, 8, 12))
    heads = rng.choice((4, 8, 12, 16, 24))
    hidden, vocabulary = heads * rng.choice((32, 64, 64, 96)), rng.choice((8000, 30522, 32000, 50257, 128000))
    batch, seq = rng.choice((1, 2, 4, 8, 16, 32)), rng.choice((128, 256, 512, 1024, 2048))
    size: dict[str, Any] = {"model_type": family, "vocab_size": vocabulary}
    if family == "gpt2":
        size |= {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": 4096}
        size |= {} if rng.random() < 0.6 else {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    else:
        size |= {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
        size |= {"intermediate_size": _round_to(hidden * rng.choice((2, 2.75, 4)), 32), "max_position_embeddings": 4096}
    if family in _DECODERS:
        size |= {"num_key_value_heads": rng.choice([n for n in (1, 2, 4, heads) if heads % n == 0])}
        size |= {"head_dim": hidden // heads, "tie_word_embeddings": rng.random() < 0.3}
    return _core.predict_hf_graph(json.dumps(size), batch, seq)


def _round_to(value: float, step: int) -> int:
    return int(value) // step * step


def _in_loop(graph: str, rng: random.Random) -> str:
    """The graph in a loop: not seen yet, or seen, with outputs and gradients held or not."""
    document = json.loads(graph)
    loop = document["loop"]
    loop["observed"] = rng.random() < 0.75
    if loop["observed"]:
        loop["outputs_held"], loop["gradients_live_in_forward"] = rng.random() < 0.5, rng.random() < 0.5
    if rng.random() < 0.25:  # memscale's AdamW
        loop["optimizer_stream_bytes"] = loop["optimizer_state_bytes"]
        loop["gradients_releasable"] = loop["observed"]
    elif rng.random() < 0.2:  # SGD
        loop["optimizer_state_bytes"] = 0
    return json.dumps(document)


# -- machines ---------------------------------------------------------------------------------


@functools.cache
def _plain_machine() -> str:
    """A description with every member; what a class does not set is the same for all."""
    return json.dumps(
        {
            "version": 1,
            "cpu": {"name": "host", "usable_cpus": 8, "isa": ["avx2"]},
            "ram": {"limit_bytes": None, "memlock_bytes": None, "limit_source": ""},
            "disk": {"is_memory": False, "direct_io": True, "refusal": "", "dir": "", "filesystem": "ext4"},
            "process": {"baseline_bytes": 0, "scratch_bytes": 0},
            "gpus": [],
            "device": -1,
            "time_scale_permille": 1000,
        }
    )


def _host(rng: random.Random, disk: tuple[int, int] | None) -> dict[str, Any]:
    machine: dict[str, Any] = json.loads(_plain_machine())
    cores = rng.choice((2, 4, 8, 16, 32, 64))
    machine["cpu"] |= {
        "usable_cpus": cores,
        "matmul_flops_per_s": _jitter(rng, cores * 60 * _GB),
        "stream_bytes_per_s": _jitter(rng, min(cores * 7, 200) * _GB),
        "fault_bytes_per_s": _jitter(rng, 4 * _GB),
        "checksum_bytes_per_s": _jitter(rng, 6 * _GB),
    }
    total = cores * rng.choice((4, 8, 16)) * _GB
    machine["ram"] |= {"total_bytes": total, "available_bytes": total * 9 // 10}
    if disk is not None:
        machine["disk"] |= {"dir": "/spill", "free_bytes": rng.choice((100, 400, 2000)) * _GB}
        machine["disk"] |= {"write_bytes_per_s": _jitter(rng, disk[0] * 10**6)}
        machine["disk"] |= {"read_bytes_per_s": _jitter(rng, disk[1] * 10**6)}
    else:
        machine["disk"] |= {"free_bytes": 0, "write_bytes_per_s": 10**9, "read_bytes_per_s": 10**9}
        machine["disk"]["refusal"] = "no directory"
    return machine


def _jitter(rng: random.Random, rate: int) -> int:
    """A rate of the class, as a measurement gives it: up to a third off, two digits."""
    value = int(rate * rng.uniform(0.7, 1.3))
    unit: int = 10 ** max(0, len(str(value)) - 2)
    return value // unit * unit


def _machine(hardware_class: str, rng: random.Random) -> str:
    if hardware_class in _DISKS:
        machine = _host(rng, _DISKS[hardware_class])
        machine["process"] |= {"baseline_bytes": 350_000_000, "scratch_bytes": 96_000_000}
        return json.dumps(machine)
    machine = _host(rng, rng.choice((None, _DISKS["cpu_sata"], _DISKS["cpu_nvme"])))
    name, memory, tflops, memory_gb_s, link = rng.choice(_GPUS[hardware_class])
    gpu: dict[str, Any] = {"name": name, "total_bytes": memory * _GB, "free_bytes": memory * _GB, "copy_engines": 2}
    gpu |= {"compute_major": 8, "compute_minor": 0, "matmul_flops_per_s": _jitter(rng, tflops * 10**12)}
    gpu |= {"stream_bytes_per_s": _jitter(rng, memory_gb_s * _GB), "to_host_bytes_per_s": _jitter(rng, link * _GB)}
    gpu["from_host_bytes_per_s"] = gpu["to_host_bytes_per_s"]
    machine |= {"gpus": [gpu], "device": 0}
    return json.dumps(machine)


# -- budgets ----------------------------------------------------------------------------------


def _least_permille(features: dict[str, int]) -> int:
    """The smallest peak of a uniform plan, over the allowed bytes."""
    peaks = [features[f"{word}_peak_permille"] for word in ("selective", "recompute", "offload", "moved")]
    return min([peak for peak in peaks if peak > 0] + [features["pressure_permille"]])


def _budget(graph: str, hardware: str, config: dict[str, Any], rng: random.Random, like: Likeness | None) -> int:
    """Bytes between what is a tight fit and what is nearly comfortable, or slightly outside of both; or those that give
    a pressure."""
    need = _features(graph, hardware, config | {"memory_budget_gb": 1e6})["need_bytes"]
    features = _features(graph, hardware, config | {"memory_budget_gb": need / 1e9})
    if like is not None:
        wanted = 1000 * rng.uniform(*like.pressure)
        return int(need * features["pressure_permille"] / wanted)
    least = need * _least_permille(features) // 1000
    place = rng.uniform(-0.06, 1.0)
    return int(least * (need / 0.86 / least) ** place)


def _features(graph: str, hardware: str, config: dict[str, Any]) -> dict[str, int]:
    names, _ = _core.policy_tables()
    return dict(zip(names, _core.policy_context(graph, hardware, json.dumps(config)), strict=True))


_Drawn = tuple[str, str, str, str]


def _model_and_machine(rng: random.Random, families: Sequence[str], classes: Sequence[str]) -> _Drawn:
    """A family, a class of hardware, a graph and a machine."""
    family, hardware_class = rng.choice(families), rng.choice(classes)
    graph = chain_graph(family, rng) if family in KINDS else _transformer(family, rng)
    return family, hardware_class, _in_loop(graph, rng), _machine(hardware_class, rng)


def _sizes(graph: str, hardware: str) -> dict[str, float]:
    """Returns the sizes that events give as buckets."""
    document, machine = json.loads(graph), json.loads(hardware)
    device = machine["gpus"][machine["device"]] if machine["device"] >= 0 else machine["ram"]
    return {
        "parameters": document["residents"]["parameter_bytes"] / _FP32_BYTES,
        "device_bytes": device["total_bytes"],
        "layers": len(document["nodes"]),
    }


def _nearest(rng: random.Random, like: Likeness) -> tuple[_Drawn, list[str]]:
    """The draw that is like the event in most classes, and the names of those in which it differs."""
    families = _FAMILIES_OF.get(like.architecture, FAMILIES)
    classes = CLASSES if like.on_gpu is None else tuple(_GPUS if like.on_gpu else _DISKS)
    nearest, differs = None, [""] * 4
    for _ in range(_DRAWS_MOST):
        drawn = _model_and_machine(rng, families, classes)
        other = like.differs(_sizes(*drawn[2:]))
        if len(other) < len(differs):
            nearest, differs = drawn, other
        if not other:
            break
    assert nearest is not None
    return nearest, differs


def draw(number: int, likes: Sequence[Likeness] = ()) -> Scenario:
    """The run with this number; with `likes` one of these, each as likely."""
    rng = random.Random(number)
    like = rng.choice(likes) if likes else None
    drawn, differs = _nearest(rng, like) if like else (_model_and_machine(rng, FAMILIES, CLASSES), [])
    family, hardware_class, graph, hardware = drawn
    ranks = rng.choice((1, 1, 1, 2, 4, 8))
    config: dict[str, Any] = json.loads(_core.config_defaults())
    if ranks > 1:
        hardware, _ = _core.ranks_agree([(hardware, json.dumps(config))] * ranks, ranks)
    config["memory_budget_gb"] = _budget(graph, hardware, config, rng, like) / 1e9
    return Scenario(family, hardware_class, ranks, graph, hardware, json.dumps(config), tuple(differs))
