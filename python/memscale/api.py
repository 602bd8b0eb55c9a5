"""The public functions: wrap, detach, optimize, plan, trace, stream, check_checkpoint, load_checkpoint.

Each checks its arguments, sets up a session (model, machine, plan) and an executor (which applies
the plan), and ties their lifetimes to the model. See docs/guide.md.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from .config import AsyncOffloadConfig, Config, OptimizationMode, check_config, tells_wrong_arguments
from .errors import ConfigError, IntegrationError, ProfileError

if TYPE_CHECKING:
    import torch

    from .execution.executor import Executor
    from .execution.per_device import DeviceExecutors
    from .planning.execution_plan import ExecutionPlan
    from .tracing.model_graph import ModelGraph

_log = logging.getLogger("memscale")

Target = TypeVar("Target")


@tells_wrong_arguments
def wrap(
    target: Target,
    config: Config | None = None,
    sample_input: Any = None,
    async_offload: bool | None = None,
    async_config: AsyncOffloadConfig | None = None,
) -> Target:
    """Plans and applies memory optimizations to a model's training; returns the same object.

    Args:
        target: an `nn.Module`; a Hugging Face `Trainer`, whose model is wrapped; a Lightning
            `Trainer`, which wraps a module while it fits it; or any other object that trains the
            module in its ``.model`` by its ``.train()``.
        config: the budget and the allowed techniques; `Config()` if None. It is never changed.
        sample_input: arguments like those of a training forward: a tensor, a tuple of positional
            arguments or a dict of keyword arguments. A list holds several samples, such as the
            shortest and the longest. If given, `wrap()` makes a plan for each sample. Otherwise the
            plan is made at the first training forward.
        async_offload: overrides ``config.async_offload`` and ``MEMSCALE_ASYNC_OFFLOAD``.
        async_config: overrides ``config.async_config``.

    Returns:
        `target` itself. ``target._memscale_executor`` is the executor (of the inner
        model, for a Hugging Face Trainer).

    Raises:
        TypeError: `target` or `sample_input` has a wrong type, or the sample does not fit the forward.
        ProfileError: the forward does not take the shapes or types in `sample_input`.
        ConfigError: a value in the configuration is not allowed.
        BudgetInfeasibleError: no plan fits ``memory_budget_gb``; the text names a budget that fits every sample.
        IntegrationError: the model can't be hooked (compiled, already distributed).

    Example:
        >>> model = memscale.wrap(model, memscale.Config(memory_budget_gb=4.0))
        >>> loss = model(input_ids=x, labels=x).loss
        >>> loss.backward()
    """
    from .integrations.huggingface import is_trainer, wrap_trainer
    from .integrations.lightning import is_lightning_trainer, wrap_lightning_trainer
    from .session.setup import effective_config, wrap_module

    checked = effective_config(check_config(config), async_offload, async_config)
    if is_trainer(target):
        return wrap_trainer(target, checked, sample_input)
    if is_lightning_trainer(target):
        return wrap_lightning_trainer(target, checked, sample_input)
    inner = _inner_model(target)
    _as_module(inner, "wrap")
    wrap_module(inner, checked, sample_input)
    return target


def detach(model: torch.nn.Module) -> torch.nn.Module:
    """Undoes `wrap()`: removes hooks, attributes, spilled bytes and threads. Returns the model.

    Warns if the model was not wrapped. A graph that still waits for its backward stays usable.

    Raises:
        TypeError: `model` is not an `nn.Module` or Trainer.
    """
    from .integrations.huggingface import is_trainer, unwrap_trainer
    from .integrations.lightning import is_lightning_trainer, unwrap_lightning_trainer
    from .session.setup import unwrap_module

    if is_trainer(model):
        return unwrap_trainer(model)
    if is_lightning_trainer(model):
        return unwrap_lightning_trainer(model)
    unwrap_module(_as_module(_inner_model(model), "detach"))
    return model


@tells_wrong_arguments
@contextmanager
def optimize(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    config: Config | None = None,
    sample_input: Any = None,
) -> Iterator[Executor | DeviceExecutors]:
    """Wraps `model` within a ``with`` block; yields the executor.

    If `optimizer` is given, the plan counts its state exactly from the first step. The block's end removes
    the wrap, also after an exception.

    Raises:
        TypeError: `optimizer` is not a `torch.optim.Optimizer`.
        MemScaleError: as `wrap()`.
    """
    from .session.setup import effective_config, wrap_module

    checked = effective_config(check_config(config), None, None)
    _check_optimizer(optimizer)
    _as_module(model, "optimize")
    executor = wrap_module(model, checked, sample_input, optimizer)
    try:
        yield executor
    finally:
        executor.detach()


@tells_wrong_arguments
def apply_all_optimizations(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, config: Config | None = None
) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Wraps `model` and, with ``use_8bit_optimizer``, replaces the optimizer by one with 8-bit state.

    Without a config the whole stack is applied: BF16 where it gains (FP16 on GPUs without it), 8-bit state if the
    optimizer is an AdamW, and, as far as the run needs them, recomputation, offloading, tiles, a chunked loss head, and
    gradient release where the loop allows it. Losses then differ from the unwrapped run's within what these techniques
    promise. With a config, what it says is applied.

    Step the returned optimizer from then on. It takes over the hyperparameters, the state and the groups of the given
    one. The groups stay the same objects, so schedulers that hold the old optimizer still work. Without the flag the
    given optimizer is returned; if it is one of `memscale.optim`, a plan may put its state on disk or let it
    release gradients.

    Returns:
        The same model, wrapped, and the optimizer to step.

    Raises:
        TypeError: `model` is not an `nn.Module`, or `optimizer` not a `torch.optim.Optimizer`.
        IntegrationError: the config's flag is set and the optimizer is not an AdamW.
        MemScaleError: as `wrap()`. The model is then not wrapped and the optimizer unchanged.

    Example:
        >>> model, optimizer = memscale.apply_all_optimizations(
        ...     model, optimizer, memscale.Config(use_8bit_optimizer=True))
    """
    from .session.setup import effective_config, wrap_module

    if optimizer is None:
        raise TypeError("memscale.apply_all_optimizations() takes a torch.optim.Optimizer, not None")
    _check_optimizer(optimizer, "apply_all_optimizations")
    _as_module(model, "apply_all_optimizations")
    checked = effective_config(_whole_stack() if config is None else check_config(config), None, None)
    successor = _with_8bit_state(optimizer, config is not None) if checked.use_8bit_optimizer else optimizer
    # The flag has taken effect here.
    wrap_module(model, dataclasses.replace(checked, use_8bit_optimizer=False), None, successor)
    if successor is not optimizer:
        from .optim.replace import take_over

        take_over(successor, optimizer)
    return model, successor


def _whole_stack() -> Config:
    """Every technique on; the plan uses those that the run needs."""
    return Config(
        mode=OptimizationMode.AGGRESSIVE, enable_tiling=True, use_mixed_precision=True, use_8bit_optimizer=True
    )


def _with_8bit_state(optimizer: torch.optim.Optimizer, must: bool) -> torch.optim.Optimizer:
    """The optimizer's successor with 8-bit state. If there is none, raises if it `must` be, else warns."""
    from .optim.replace import successor_with_8bit_state

    try:
        return successor_with_8bit_state(optimizer)
    except (IntegrationError, ConfigError) as error:
        if must:
            raise
        _log.warning("apply_all_optimizations: %s; it trains on with its own state", error)
        return optimizer


@tells_wrong_arguments
def plan(
    model: torch.nn.Module,
    sample_input: Any,
    config: Config | None = None,
    device: str | torch.device | None = None,
) -> ExecutionPlan:
    """The plan that `wrap()` would apply, without applying it.

    Args:
        model: the module to plan for. It is traced, not run, and does not change.
        sample_input: a tensor, a tuple of positional arguments or a dict of keyword arguments.
        config: as for `wrap()`.
        device: the device whose memory is planned, if the model lies on several; `wrap()` makes a plan for each.

    Returns:
        The execution plan, for ``print(plan)``, ``plan.to_json()`` and ``plan.explain(layer)``.

    Raises:
        TypeError: `sample_input` has a wrong type, or does not fit the model's forward.
        BudgetInfeasibleError: no plan fits ``memory_budget_gb``.
        IntegrationError: the model lies on several devices and none is named, or not on the one that is.
        ProfileError: the model can't be traced without running it. `wrap()` can still plan for such
            a model, from real steps.
    """
    from .execution import executor  # noqa: F401  the baseline counts the modules that wrap() needs
    from .planning.execution_plan import ExecutionPlan
    from .session.session import Session
    from .session.setup import effective_config, place_on, sample_arguments

    module = _as_module(model, "plan")
    placement, checked = place_on(module, device, effective_config(check_config(config), None, None))
    session = Session(module, checked, applies=False, placement=placement)
    arguments = sample_arguments(module, sample_input)
    with _saying_what_wrap_does():
        return ExecutionPlan(session.plan_traced(module, *arguments), session.hardware_json)


@tells_wrong_arguments
def trace(model: torch.nn.Module, sample_input: Any, optimizer: torch.optim.Optimizer | None = None) -> ModelGraph:
    """The graph of one training step, from which plans are made on any machine.

    Args:
        model: the module. It is traced under fake tensors, not run, and does not change.
        sample_input: a tensor, a tuple of positional arguments or a dict of keyword arguments
            of a training forward. Only shapes, dtypes and plain values matter.
        optimizer: the optimizer that will step, if known. The graph then has its exact state.

    Returns:
        The graph. ``graph.save(path)`` writes the input of ``memscale plan --graph``;
        ``graph.to_json()`` is its text. Sizes in it are bytes.

    Raises:
        TypeError: an argument has a wrong type, or `sample_input` does not fit the model's forward.
        ProfileError: the model can't be traced without running it.

    Example:
        >>> memscale.trace(model, {"input_ids": x, "labels": x}).save("g.json")
    """
    from .session.setup import sample_arguments
    from .tracing.model_graph import ModelGraph
    from .tracing.profiler import MemoryProfiler

    module = _as_module(model, "trace")
    _check_optimizer(optimizer, "trace")
    args, kwargs = sample_arguments(module, sample_input)
    with _saying_what_wrap_does():
        return ModelGraph(MemoryProfiler().trace(module, args, kwargs, optimizer=optimizer))


@contextmanager
def stream(directory: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """A ``with`` block that makes a model whose parameters need not fit into memory.

    Inside the block, every new CPU tensor of 128 KiB and more is a map of an unnamed file, and leaves memory while it
    is not used. The model is made by its own code and initialised with the same random numbers, so its parameters have
    the same bits as without the block. Afterwards it is an ordinary model: any code may read and write its
    parameters, at any time. `wrap()` plans how much of it stays in memory, and fetches the rest layer by layer.

    Weights that the block loads from safetensors files without converting them, as transformers' ``from_pretrained()``
    does, come from these files and are not copied; the files must not change while the model lives. `wrap()` copies
    those that are trained. `load_checkpoint()` does the same for any module.

    Args:
        directory: a directory on a disk with room for the parameters; the disk tier's if None. The files have no
            names: they are gone when the model is, or when the process is killed.

    Raises:
        ConfigError: `directory` can't be used, or is on a memory file system.
        MemScaleError: torch's CPU allocator could not be taken over, or another directory is in use.
        OffloadError: the disk had no room for a tensor.

    Example:
        >>> with memscale.stream():
        ...     model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4)))
        >>> model = memscale.wrap(model, memscale.Config(memory_budget_gb=4.0))
    """
    from .session.streaming import Streaming

    with Streaming(directory):
        yield


def check_checkpoint(checkpoint: str | os.PathLike[str], *, sha256: Mapping[str, str] | None = None) -> None:
    """Checks the files of a safetensors checkpoint before a run depends on them.

    Every shard is there, its header is sound, its size is that of its header, and it has the tensors that the index
    expects in it. Reads headers only, and whole files only if their hashes are given.

    Args:
        checkpoint: a ``.safetensors`` file, a ``.safetensors.index.json`` or a directory that has either.
        sha256: the SHA-256 of shards, in hexadecimal digits, by the name of the file.

    Raises:
        OffloadError: a shard is missing, truncated or damaged; the text and ``.file`` name it.
        ConfigError: `sha256` has a name that is no shard's.
    """
    from .session.checkpoint import check_shards

    check_shards(checkpoint, sha256)


def load_checkpoint(
    model: torch.nn.Module,
    checkpoint: str | os.PathLike[str],
    *,
    sha256: Mapping[str, str] | None = None,
    strict: bool = True,
) -> torch.nn.Module:
    """Gives a model the weights of a safetensors checkpoint, which stream from its own files; returns the model.

    No copy is made, in memory or on disk. The model's parameters may be on the meta device: build it in ``with
    torch.device("meta")``, or with accelerate's ``init_empty_weights()`` if it has buffers that the checkpoint does not
    have. As after `stream()`, any code may read and write the parameters; `wrap()` copies those that are trained to
    files of their own. The checkpoint's files must not change while the model lives.

    Tensors of less than 128 KiB stay in memory. Those whose type is not the model's are converted, and stream from
    files of their own. The parameters are new objects: make the optimizer afterwards.

    Args:
        model: any module that is not wrapped yet.
        checkpoint: as for `check_checkpoint()`, which runs first.
        sha256: as for `check_checkpoint()`.
        strict: as for ``load_state_dict()``: names that only one side has are an error. All names of a shared parameter
            are there if one is.

    Raises:
        OffloadError: a shard is missing, truncated or damaged; the model is unchanged.
        ConfigError: `sha256` has a name that is no shard's.
        RuntimeError: names or shapes don't fit, as from ``load_state_dict()``.
        IntegrationError: the model is wrapped, or a tensor that the checkpoint lacks is on the meta device.

    Example::

        with torch.device("meta"):
            model = Model(config)
        model = memscale.load_checkpoint(model, "checkpoint/")
    """
    from .session.checkpoint import check_shards, load_shards
    from .session.streaming import Streaming

    module = _as_module(model, "load_checkpoint")
    if not isinstance(strict, bool):
        raise TypeError(f"memscale.load_checkpoint(): strict must be a bool, not {type(strict).__qualname__}")
    shards = check_shards(checkpoint, sha256)
    with Streaming():
        load_shards(module, shards, strict)
    return model


@contextmanager
def _saying_what_wrap_does() -> Iterator[None]:
    try:
        yield
    except ProfileError as error:
        raise ProfileError(f"{error}; wrap() measures real steps of such a model and then makes a plan") from error


def _check_optimizer(optimizer: Any, caller: str = "optimize") -> None:
    import torch

    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        hint = "" if caller == "trace" else "; give a configuration as config=..."
        if isinstance(optimizer, torch.nn.Module):
            hint = "; the model comes first, then the optimizer"
        or_none = "" if caller == "apply_all_optimizations" else " or None"
        raise TypeError(
            f"memscale.{caller}(): optimizer must be a torch.optim.Optimizer{or_none}, not "
            f"{type(optimizer).__qualname__}{hint}"
        )


def _inner_model(target: Any) -> Any:
    """The model of an object that trains one, else `target` itself. A module may have `.model` and `.train` too."""
    import torch

    if isinstance(target, (torch.nn.Module, type)) or not callable(getattr(target, "train", None)):
        return target
    model = getattr(target, "model", None)
    return model if isinstance(model, torch.nn.Module) else target


def _as_module(target: Any, caller: str) -> torch.nn.Module:
    import torch

    from .session.setup import inside_compiled

    if isinstance(target, torch.nn.parallel.DistributedDataParallel):
        raise IntegrationError(
            f"{caller}: got a DistributedDataParallel; wrap the module first, then "
            "construct DistributedDataParallel(memscale.wrap(module, ...))"
        )
    if isinstance(target, torch.nn.Module):
        return inside_compiled(target)
    if isinstance(target, type):
        raise TypeError(
            f"memscale.{caller}() takes an instance of a torch.nn.Module, not the class {target.__qualname__} itself"
        )
    also = (
        " or a Trainer (of Hugging Face, of Lightning, or any object with .model and .train)"
        if caller in ("wrap", "detach")
        else ""
    )
    raise TypeError(
        f"memscale.{caller}() takes a torch.nn.Module{also}, not {type(target).__module__}.{type(target).__qualname__}"
    )
