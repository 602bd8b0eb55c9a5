"""Models built from a Hugging Face configuration, with a sample and an optimizer, to be traced.

The weights lie in maps that nothing touches, so a model of any size can be built on any machine. `OOMPredictor` and
``memscale predict`` trace such models.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..errors import IntegrationError

if TYPE_CHECKING:
    import torch

__all__ = ["DTYPES", "OPTIMIZERS", "compiled_graph", "model_of", "optimizer_of", "sample_of"]

DTYPES = ("float32", "bfloat16", "float16")

# Tried in this order: the first that transformers has for a configuration gives the model and its loss. Encoders and
# models of two halves have causal forms too, which are used less.
_AUTO_CLASSES = (
    "AutoModelForMaskedLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForCausalLM",
    "AutoModelForImageClassification",
    "AutoModel",
)


def model_of(config: Any, dtype: str = "float32", lora_rank: int | None = None) -> torch.nn.Module:
    """The model of a transformers configuration, in training mode.

    Args:
        config: a `transformers.PretrainedConfig`.
        dtype: of the weights, one of `DTYPES`.
        lora_rank: trains low-rank adapters on every linear layer but the head, and freezes the rest, as PEFT's
            ``LoraConfig(r=lora_rank, target_modules="all-linear")``. None: all weights train.

    Raises:
        IntegrationError: transformers has no model for the configuration, or PEFT is needed and missing.
    """
    import torch
    import transformers

    for name in _AUTO_CLASSES:
        auto = getattr(transformers, name)
        if type(config) in auto._model_mapping:
            break
    else:
        raise IntegrationError(f"transformers has no model for a {type(config).__name__}")
    with torch.device("meta"):
        model: torch.nn.Module = auto.from_config(config, dtype=getattr(torch, dtype))
        if lora_rank is not None:
            model = _with_adapters(model, lora_rank)
    model.to_empty(device="cpu")
    tie = getattr(model, "tie_weights", None)
    if tie is not None:
        tie()  # to_empty() gives each name a weight of its own
    return model.train()


def _with_adapters(model: torch.nn.Module, rank: int) -> torch.nn.Module:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise IntegrationError("adapters are PEFT's, which is not installed: pip install peft") from None
    adapted: torch.nn.Module = get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear"))
    return adapted


def sample_of(model: torch.nn.Module, batch: int, sequence: int | None) -> dict[str, torch.Tensor]:
    """Arguments of a training forward, of zeros: token ids of int64 `[batch, sequence]`, or images
    `[batch, channels, height, width]`, or a recording's features `[batch, bins, frames]`, with labels if the forward
    takes them.

    Raises:
        IntegrationError: the model takes other input, or token ids and no `sequence` is given.
    """
    import torch

    config: Any = getattr(model, "config", None)
    takes = inspect.signature(getattr(model, "get_base_model", lambda: model)().forward).parameters
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    if "input_ids" in takes:
        given = {"input_ids": torch.zeros(_tokens(batch, sequence), dtype=torch.int64)}
        labels = given["input_ids"]
    elif "pixel_values" in takes and isinstance(getattr(config, "image_size", None), int):
        size = config.image_size
        given = {"pixel_values": torch.zeros(batch, getattr(config, "num_channels", 3), size, size, dtype=dtype)}
        labels = torch.zeros(batch, dtype=torch.int64)
    elif "input_features" in takes and hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        frames = 2 * config.max_source_positions
        given = {"input_features": torch.zeros(batch, config.num_mel_bins, frames, dtype=dtype)}
        labels = torch.zeros(_tokens(batch, sequence), dtype=torch.int64)
    else:
        raise IntegrationError(
            f"{type(model).__name__} takes neither token ids nor images nor features of audio: trace it with a "
            "sample of yours (memscale.trace(model, sample).save('g.json'), then memscale plan --graph g.json)"
        )
    return given | ({"labels": labels} if "labels" in takes else {})


def _tokens(batch: int, sequence: int | None) -> tuple[int, int]:
    if sequence is None:
        raise IntegrationError("the model takes tokens: give the length of a sequence (--seq)")
    return batch, sequence


# ---- compiled layers ----------------------------------------------------------------------


def compiled_graph(
    model: torch.nn.Module, sample: dict[str, torch.Tensor], optimizer: torch.optim.Optimizer, graph: str, backend: str
) -> str:
    """The graph of the same step with its repeated layers compiled, each kind as it was seen to run on this machine.

    Args:
        graph: of the step as written; it names the layers.
        backend: of `torch.compile`.

    Raises:
        IntegrationError: torch does not know the backend, the model repeats no layer, or a layer's compiled call can't
            be measured.
    """
    import torch

    from .. import _core
    from ..tracing.compiled_calls import CompiledCalls, MeasuredCalls
    from ..tracing.profiler import MemoryProfiler

    if backend not in torch.compiler.list_backends(None):
        raise IntegrationError(f"--compile {backend}: torch has {', '.join(torch.compiler.list_backends())}")
    names = {node["name"] for node in json.loads(graph)["nodes"] if node["kind"] == "layer"}
    if not names:
        raise IntegrationError("--compile: the model has no repeated layers, which are what is compiled")
    for name in names:
        model.get_submodule(name).compile(backend=backend)
    calls = CompiledCalls()
    traced = MemoryProfiler().trace(model, (), sample, optimizer=optimizer, calls=calls)
    if _core.hostmem_install() != "slots":
        raise IntegrationError("--compile: the bytes of this process's tensors can't be counted exactly")
    try:
        measured = MeasuredCalls().put_into(traced, calls, torch.device("cpu"), is_training=True)
    finally:
        _core.hostmem_uninstall()
    for node in json.loads(measured)["nodes"]:
        if node["name"] in names and "measured" not in node["flags"]:
            raise IntegrationError(f"--compile: layer {node['name']}'s compiled call can't be measured here")
    return measured


# ---- optimizers ---------------------------------------------------------------------------


def _of_torch(name: str, **settings: Any) -> Callable[[Iterable[Any]], Any]:
    def make(parameters: Iterable[Any]) -> Any:
        import torch

        return getattr(torch.optim, name)(parameters, lr=1e-4, **settings)

    return make


def _of_memscale(name: str) -> Callable[[Iterable[Any]], Any]:
    def make(parameters: Iterable[Any]) -> Any:
        from .. import optim

        return getattr(optim, name)(parameters, lr=1e-4)

    return make


OPTIMIZERS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "adamw": _of_torch("AdamW"),
    "adam": _of_torch("Adam"),
    "sgd": _of_torch("SGD"),
    "sgd-momentum": _of_torch("SGD", momentum=0.9),
    "rmsprop": _of_torch("RMSprop"),
    "adagrad": _of_torch("Adagrad"),
    "adafactor": _of_torch("Adafactor"),
    "memscale-adamw": _of_memscale("AdamW"),
    "adamw-8bit": _of_memscale("AdamW8bit"),
}


def optimizer_of(model: torch.nn.Module, name: str) -> torch.optim.Optimizer:
    """An optimizer over the weights that train; `name` is one of `OPTIMIZERS`."""
    optimizer: torch.optim.Optimizer = OPTIMIZERS[name]([p for p in model.parameters() if p.requires_grad])
    return optimizer
