"""Hugging Face `Trainer`: wrapped by wrapping the model it trains.

A Trainer is recognised by its type, never by attribute names: many models have
`.model` and `.train` as well. transformers is never imported here; an object can only
be a Trainer if it already is.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ..config import Config

_log = logging.getLogger("memscale")

TrainerT = TypeVar("TrainerT")


def is_trainer(target: Any) -> bool:
    """Whether `target` is a `transformers.Trainer` (or subclass) or seq2seq variant."""
    module = sys.modules.get("transformers.trainer")
    trainer = getattr(module, "Trainer", None)
    return trainer is not None and isinstance(target, trainer)


def wrap_trainer(trainer: TrainerT, config: Config, sample_input: Any = None) -> TrainerT:
    """Wraps the trainer's model before training starts; returns the trainer.

    `args.gradient_checkpointing` is taken over: it is switched off, with a log line,
    because recomputation is planned here.
    """
    from ..core.setup import wrap_module

    arguments = trainer.args  # type: ignore[attr-defined]
    model = trainer.model  # type: ignore[attr-defined]
    if getattr(arguments, "gradient_checkpointing", False):
        arguments.gradient_checkpointing = False
        _log.info("gradient_checkpointing=True is taken over: the plan decides what is recomputed")
    if getattr(model, "is_gradient_checkpointing", False):
        model.gradient_checkpointing_disable()
    wrap_module(model, config, sample_input)
    return trainer


def unwrap_trainer(trainer: TrainerT) -> TrainerT:
    """Undoes `wrap_trainer`; returns the trainer."""
    from ..core.setup import unwrap_module

    unwrap_module(trainer.model)  # type: ignore[attr-defined]
    return trainer
