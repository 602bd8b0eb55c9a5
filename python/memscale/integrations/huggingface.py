"""Wraps the model of a Hugging Face `Trainer` and guards its training.

`memscale.api` calls it for targets that are Trainers. A Trainer is recognised by its type and not by
attribute names, because many models have `.model` and `.train` as well. This file never imports
transformers, because an object can only be a Trainer if transformers is already imported.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..base.warnings import warn_replaced
from ..errors import IntegrationError

if TYPE_CHECKING:
    import torch

    from ..config import Config

_log = logging.getLogger("memscale")

TrainerT = TypeVar("TrainerT")

_ATTRIBUTE = "_memscale_trainer"

# Both names of one argument. transformers 5 renamed it and keeps the old name in step.
_CHECKPOINTING_ARGUMENTS = ("activation_checkpointing", "gradient_checkpointing")


def is_trainer(target: Any) -> bool:
    """Whether `target` is an instance of `transformers.Trainer`."""
    module = sys.modules.get("transformers.trainer")
    trainer = getattr(module, "Trainer", None)
    return trainer is not None and isinstance(target, trainer)


def wrap_trainer(trainer: TrainerT, config: Config, sample_input: Any = None) -> TrainerT:
    """Wraps the trainer's model before training prepares it. Returns the trainer.

    Checkpointing in the arguments is switched off, with a log line, because the plan decides on
    recomputation. After an exception in `train()` the model is unwrapped; the next `train()` wraps it
    again.

    Raises:
        IntegrationError: the arguments request a feature that excludes hooks on the model.
        as `memscale.wrap()`; the trainer is then unchanged.
    """
    previous = _wrapped(trainer)
    if previous is not None:
        warn_replaced(trainer)
        previous.remove()
    _refuse_arguments(trainer)
    wrapped = WrappedTrainer(trainer, config, sample_input)
    try:
        wrapped.install()
    except BaseException:
        wrapped.remove()
        raise
    return trainer


def unwrap_trainer(trainer: TrainerT) -> TrainerT:
    """Undoes `wrap_trainer`; warns if the trainer is not wrapped. Returns the trainer."""
    from ..session.setup import unwrap_module

    wrapped = _wrapped(trainer)
    if wrapped is not None:
        wrapped.remove()
    else:
        unwrap_module(trainer.model)  # type: ignore[attr-defined]
    return trainer


def _wrapped(trainer: Any) -> WrappedTrainer | None:
    found: WrappedTrainer | None = trainer.__dict__.get(_ATTRIBUTE)
    return found


def _refuse_arguments(trainer: Any) -> None:
    if getattr(trainer, "is_deepspeed_enabled", False):
        raise IntegrationError("wrap: this Trainer trains with DeepSpeed, which moves the model's tensors itself")
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is not None and getattr(plugin, "activation_checkpointing", False):
        raise IntegrationError(
            "wrap: FSDP's activation_checkpointing and planned recomputation exclude each other; "
            'set fsdp_config["activation_checkpointing"] to False'
        )
    if plugin is not None and getattr(plugin, "fsdp_version", 2) == 1:
        raise IntegrationError(
            "wrap: this Trainer uses the first FSDP, whose flat parameters hide the layers; "
            "set the fsdp_version of its configuration to 2"
        )


class WrappedTrainer:
    """The wrap of one Trainer, from `install()` to `remove()`.

    Four methods of the instance are replaced. `train` cleans up after exceptions. `call_model_init`
    wraps the model that it makes. `training_step` counts samples, and repeats a step if an allocation
    fails in it. `log` adds throughput and memory.
    """

    def __init__(self, trainer: Any, config: Config, sample_input: Any) -> None:
        self._trainer = trainer
        self._config = config
        self._sample_input = sample_input
        self._model: torch.nn.Module | None = None
        self._checkpointing = _Checkpointing(trainer.args)
        self._meter = _Meter()
        self._replaced: list[str] = []
        self._broke_off = False

    def install(self) -> None:
        """Wraps the model and replaces the methods."""
        self._trainer.__dict__[_ATTRIBUTE] = self
        self._wrap_model(self._trainer.model)
        for name in ("train", "call_model_init", "training_step", "log"):
            self._replace(name, getattr(self, f"_{name}"))

    def remove(self) -> None:
        """Restores the trainer."""
        for name in self._replaced:
            self._trainer.__dict__.pop(name, None)
        self._replaced = []
        self._trainer.__dict__.pop(_ATTRIBUTE, None)
        self._unwrap_model()
        self._checkpointing.restore()

    def _replace(self, name: str, replacement: Callable[..., Any]) -> None:
        original = getattr(self._trainer, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        self._trainer.__dict__[name] = call
        self._replaced.append(name)

    def _wrap_model(self, model: torch.nn.Module) -> None:
        from ..session.setup import wrap_module

        self._checkpointing.take_over(model)
        wrap_module(model, self._config, self._sample_input)
        self._model = model

    def _executor(self) -> Any:
        from ..session.setup import executor_of

        return executor_of(self._model) if self._model is not None else None

    def _tell_end(self, error: BaseException | None) -> None:
        executor = self._executor()
        if executor is not None:
            executor.training_ended(error)

    def _unwrap_model(self) -> None:
        executor = self._executor()
        if executor is not None:
            executor.detach()
        self._model = None

    # -- replacements of the trainer's methods ---------------------------------------------

    def _train(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._meter.reset()
        if self._broke_off:
            self._broke_off = False
            if self._trainer.model_init is None:
                _log.info("train: the model is wrapped again")
                self._wrap_model(self._trainer.model)
        try:
            trained = original(*args, **kwargs)
        except BaseException as error:
            self._broke_off = True
            self._tell_end(error)
            self._unwrap_model()
            _log.info("train ended by %s: the model is unwrapped until the next train()", type(error).__name__)
            raise
        self._tell_end(None)
        return trained

    def _call_model_init(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.nn.Module:
        model: torch.nn.Module = original(*args, **kwargs)
        self._unwrap_model()
        if self._trainer.place_model_on_device:
            model = model.to(self._trainer.args.device)  # the device to which train() will move it
        self._wrap_model(model)
        return model

    def _training_step(self, original: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self._meter.step_begins(inputs, self._trainer.args.world_size)
        executor = self._executor()
        call = functools.partial(original, model, inputs, *args, **kwargs)
        return executor.run_step(call) if executor is not None else call()

    def _log(self, original: Callable[..., Any], logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
        executor = self._executor()
        if executor is not None and "loss" in logs:
            logs = {**logs, **self._meter.read(executor)}
        elif executor is not None and "train_runtime" in logs:
            logs.update(self._meter.read_all())  # the dict that train() returns
        return original(logs, *args, **kwargs)


class _Checkpointing:
    """Switches activation checkpointing off while the trainer is wrapped."""

    def __init__(self, arguments: Any) -> None:
        self._arguments = arguments
        self._before: dict[str, Any] = {}
        self._modules: list[torch.nn.Module] = []

    def take_over(self, model: torch.nn.Module) -> None:
        """Switches checkpointing off in the arguments and on the model."""
        asked = {name: getattr(self._arguments, name, None) for name in _CHECKPOINTING_ARGUMENTS}
        # A module's flag says that its forward runs under torch's checkpoint; see transformers'
        # GradientCheckpointingLayer.
        modules = [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]
        if any(asked.values()):
            self._before = {name: value for name, value in asked.items() if value is not None}
            for name in self._before:
                setattr(self._arguments, name, False)
        for module in modules:
            module.gradient_checkpointing = False  # type: ignore[assignment]
        self._modules.extend(modules)
        if any(asked.values()) or modules:
            _log.info("gradient_checkpointing=True is taken over: the plan decides what is recomputed")

    def restore(self) -> None:
        """Restores the user's settings."""
        for name, value in self._before.items():
            setattr(self._arguments, name, value)
        for module in self._modules:
            module.gradient_checkpointing = True  # type: ignore[assignment]
        self._before, self._modules = {}, []


class _Meter:
    """Samples and memory between two lines of the trainer's log."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begins a new training."""
        self._samples = 0
        self._began: float | None = None
        self._peak: int | None = None
        self._peak_of_all: int | None = None

    def step_begins(self, inputs: Any, processes: int) -> None:
        """A step with `inputs` is about to run in each of `processes`."""
        if self._began is None:
            self._began = time.perf_counter()
        self._samples += _batch_size(inputs) * processes

    def read(self, executor: Any) -> dict[str, float]:
        """The numbers of the steps since the last line. Counting starts again."""
        logs: dict[str, float] = {}
        seconds = time.perf_counter() - self._began if self._began is not None else 0.0
        if seconds > 0 and self._samples:
            logs["samples_per_second"] = round(self._samples / seconds, 3)
        peak = executor.take_peak_bytes()
        if peak is not None:
            logs["memory_peak_gb"] = peak / 1e9
            self._peak_of_all = max(peak, self._peak_of_all or 0)
        if executor.plan is not None and (predicted := getattr(executor.plan, "predicted_peak_bytes", 0)):
            logs["memory_predicted_gb"] = predicted / 1e9
        self._samples, self._began = 0, None
        return logs

    def read_all(self) -> dict[str, float]:
        """The numbers of the whole training."""
        return {} if self._peak_of_all is None else {"train_memory_peak_gb": self._peak_of_all / 1e9}


def _batch_size(inputs: Any) -> int:
    """Size of the first dimension of a batch; 0 if the batch has no tensor."""
    from ..base.arguments import plain_tensors

    with contextlib.suppress(TypeError):
        return next((len(tensor) for tensor in plain_tensors(inputs) if tensor.dim() > 0), 0)
    return 0
