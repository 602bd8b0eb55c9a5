"""A callback for Lightning that wraps, during the fit, the module that a `LightningModule` trains.

It works with `lightning` and with `pytorch_lightning`. This file imports neither; an instance gets a class
with the bases of the packages that are loaded. Users make a callback themselves, or call
`memscale.wrap()` with a Lightning `Trainer`.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from ..base.warnings import warn_nothing_to_undo, warn_replaced
from ..config import Config, check_config
from ..errors import IntegrationError

if TYPE_CHECKING:
    import torch

    from ..execution.executor import Executor
    from ..execution.per_device import DeviceExecutors

__all__ = ["MemScaleCallback", "is_lightning_trainer"]

_log = logging.getLogger("memscale")

TrainerT = TypeVar("TrainerT")

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")

# Strategies that move or shard the model's tensors themselves.
_REFUSED_STRATEGIES = ("FSDPStrategy", "DeepSpeedStrategy", "XLAStrategy", "XLAFSDPStrategy")


class MemScaleCallback:
    """Wraps the module that a Lightning Trainer fits, from the start of `fit()` to its end.

    Args:
        config: as for `memscale.wrap()`; `Config()` if None.
        module: qualified name of the submodule of the `LightningModule` that its `training_step`
            calls, such as ``"model"``. If it is None, the only child with parameters is wrapped. If
            there are several, the `LightningModule` is wrapped. If its `training_step` does not call
            ``self(...)``, its layers are planned from real steps.
        sample_input: arguments of the wrapped module's forward, as for `memscale.wrap()`.

    Attributes:
        executor: the executor of the last fit, None before the first. It stays readable after the fit.

    An instance is a `Callback` of the Lightning package that is loaded, or of both.
    Validation, testing and prediction are left alone. Manual optimization is supported.

    Raises:
        ImportError: Lightning is not installed.
        TypeError: `config` is not a `Config`.
        IntegrationError: when the fit starts, if the module does not exist, or if the strategy shards
            or moves the model's tensors itself.

    Example:
        >>> callback = MemScaleCallback(memscale.Config(memory_budget_gb=4.0))
        >>> lightning.Trainer(callbacks=[callback]).fit(module, data)
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> MemScaleCallback:
        missing = tuple(base for base in _callback_classes() if not issubclass(cls, base))
        made = type(cls.__name__, (cls, *missing), {"__module__": cls.__module__}) if missing else cls
        return object.__new__(made)

    def __init__(self, config: Config | None = None, module: str | None = None, sample_input: Any = None) -> None:
        if config is not None and not isinstance(config, Config):
            raise TypeError(f"config must be a memscale.Config or None, not {type(config).__qualname__}")
        if module is not None and not isinstance(module, str):
            raise TypeError(f"module must be the name of a submodule or None, not {type(module).__qualname__}")
        self.executor: Executor | DeviceExecutors | None = None
        self._config = config
        self._module = module
        self._sample_input = sample_input
        self._wrapped = ""  # its name within the LightningModule
        self._is_seen = False

    def __reduce__(self) -> Any:
        return (MemScaleCallback, (self._config, self._module, self._sample_input))

    # -- callbacks of Lightning ------------------------------------------------------------

    def on_fit_start(self, trainer: Any, pl_module: torch.nn.Module) -> None:
        """Wraps the module. It is on its device, and no step has been made."""
        from ..session.setup import effective_config, wrap_module

        _refuse_strategy(trainer)
        target = self._target(trainer, pl_module)
        self._wrapped = (
            next((name for name, module in pl_module.named_modules() if module is target), "") or "its forward"
        )
        config = effective_config(check_config(self._config), None, None)
        self.executor = wrap_module(target, config, self._sample_input)
        self._is_seen = False

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Warns after the first batch if the training step did not call the wrapped module."""
        if self._is_seen or self.executor is None:
            return
        self._is_seen = True
        if self.executor.plan is None:
            _log.warning(
                "training_step of %s did not call the forward of what is wrapped (%s): nothing is planned; name the "
                'module that it calls: MemScaleCallback(config, module="...")',
                type(pl_module).__name__,
                self._wrapped,
            )

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Detaches the executor. The run on a server, if there is one, has finished."""
        self._end(None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Detaches the executor. The run on a server has failed or was stopped."""
        self._end(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Detaches the executor, if the fit ended without the other callbacks."""
        self._detach()

    # -- parts -----------------------------------------------------------------------------

    def _end(self, error: BaseException | None) -> None:
        if self.executor is not None:
            self.executor.training_ended(error)
        self._detach()

    def _detach(self) -> None:
        if self.executor is not None:
            self.executor.detach()

    def _target(self, trainer: Any, pl_module: torch.nn.Module) -> torch.nn.Module:
        if self._module is not None:
            try:
                return pl_module.get_submodule(self._module)
            except AttributeError:
                names = ", ".join(name for name, _ in pl_module.named_children()) or "no children"
                raise IntegrationError(
                    f"MemScaleCallback: {type(pl_module).__name__} has no module {self._module!r}; it has {names}"
                ) from None
        own = list(pl_module.parameters(recurse=False))
        children = [name for name, child in pl_module.named_children() if next(child.parameters(), None) is not None]
        if len(children) == 1 and not own:
            return pl_module.get_submodule(children[0])
        called: torch.nn.Module = trainer.strategy.model
        if called is not pl_module:
            raise IntegrationError(
                f"MemScaleCallback: under {type(trainer.strategy).__name__} the module that training_step calls has to "
                f'be named, one of {", ".join(children)}: MemScaleCallback(config, module="{(children or ["..."])[0]}")'
            )
        return pl_module


def _callback_classes() -> list[type]:
    """The `Callback` of each loaded Lightning package, else of the installed one."""
    loaded = [sys.modules[name] for name in _PACKAGES if name in sys.modules]
    for name in _PACKAGES if not loaded else ():
        try:
            loaded = [importlib.import_module(name)]
            break
        except ImportError:
            continue
    if not loaded:
        raise ImportError("MemScaleCallback needs Lightning: pip install lightning")
    classes = [module.Callback for module in loaded if hasattr(module, "Callback")]
    return list(dict.fromkeys(classes))


def _refuse_strategy(trainer: Any) -> None:
    name = type(trainer.strategy).__name__
    if name in _REFUSED_STRATEGIES:
        raise IntegrationError(
            f"MemScaleCallback: {name} shards or moves the model's tensors itself; use one device, DDPStrategy or "
            "ModelParallelStrategy"
        )


# ---- memscale.wrap(trainer) --------------------------------------------------------------


def is_lightning_trainer(target: Any) -> bool:
    """Whether `target` is a Trainer of `lightning` or `pytorch_lightning`."""
    loaded = (sys.modules.get(name) for name in _PACKAGES)
    return any(isinstance(target, trainer) for trainer in (getattr(m, "Trainer", None) for m in loaded) if trainer)


def wrap_lightning_trainer(trainer: TrainerT, config: Config, sample_input: Any = None) -> TrainerT:
    """Adds a callback that wraps the fitted module. Returns the trainer."""
    if _remove_callbacks(trainer):
        warn_replaced(trainer)
    # The callback goes first, because Lightning keeps checkpoints last.
    trainer.callbacks.insert(0, MemScaleCallback(config, None, sample_input))  # type: ignore[attr-defined]
    return trainer


def unwrap_lightning_trainer(trainer: TrainerT) -> TrainerT:
    """Removes the callback; warns if there is none. Returns the trainer."""
    if not _remove_callbacks(trainer):
        warn_nothing_to_undo(trainer)
    return trainer


def _remove_callbacks(trainer: Any) -> bool:
    ours = [callback for callback in trainer.callbacks if isinstance(callback, MemScaleCallback)]
    for callback in ours:
        callback._detach()
        trainer.callbacks.remove(callback)
    return bool(ours)
