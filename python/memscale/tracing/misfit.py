"""Distinguishes an input that does not fit a model from a model that can't be traced.

Both end a trace with an exception of torch or of the model, and their messages change with torch's versions.
A misfit is the caller's error. A model that can't be traced is not, and its real steps are profiled instead. To
tell the two apart, one real forward of the sample runs after a failed trace of a `sample_input`, without gradients.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from ..base.aside import standing_aside

if TYPE_CHECKING:
    import torch

    from ..errors import ProfileError

__all__ = ["Misfit", "forbids_hooks", "is_of_the_trace", "misfit_of", "reads_values"]

# Derivatives of torch.func raise an error with these words if they meet saved-tensor hooks.
_NO_HOOKS = "don't yet support saved tensor hooks"

_OF_VALUES = "DataDependentOutputException", "DynamicOutputShapeException"
_OF_FAKES = *_OF_VALUES, "UnsupportedFakeTensorException", "UnsupportedOperatorException"


class Misfit(TypeError):
    """An input has a type that an operator does not take; see `operand_types.py`."""


def misfit_of(
    error: BaseException, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """The model's error for these arguments, on one line, if it explains why a trace ended with `error`; None
    if the model accepts them. The model, the arguments and the random states are restored."""
    cause = error.__cause__
    if isinstance(cause, Misfit):
        return _line(cause)
    if cause is None or _is_of_fakes(cause, _OF_FAKES) or not _can_run(model, args, kwargs):
        return None
    refusal = _refusal(model, args, kwargs)
    return None if refusal is None else _line(refusal)


def reads_values(error: BaseException | None) -> bool:
    """Whether a trace ended with `error` because the forward needs a value that is not known."""
    return error is not None and _is_of_fakes(error.__cause__, _OF_VALUES)


def is_of_the_trace(error: ProfileError) -> bool:
    """Whether only a trace can fail as `error` says. If not, the real forward may raise the same."""
    return error.__cause__ is None or _is_of_fakes(error.__cause__, _OF_FAKES)


def forbids_hooks(error: BaseException | None) -> bool:
    """Whether a forward ended with `error` because it allows no saved-tensor hooks around it."""
    place = error.__traceback__ if error is not None else None
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    disabled = place is not None and place.tb_frame.f_code.co_name == "disable_saved_tensors_hooks"
    return disabled or _NO_HOOKS in str(error)


def _is_of_fakes(cause: BaseException | None, names: tuple[str, ...]) -> bool:
    """Whether the error is one of these, which only come from fake tensors."""
    from torch._subclasses import fake_tensor

    kinds = tuple(kind for kind in (getattr(fake_tensor, name, None) for name in names) if kind is not None)
    return isinstance(cause, kinds)


def _can_run(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a real forward can run here. It can't if all ranks would have to run it, or if the sample has no
    values."""
    from torch._subclasses.fake_tensor import FakeTensor

    from ..model.shards import has_shards
    from .fakes import tensors_in

    return not has_shards(model) and not any(
        isinstance(tensor, FakeTensor) or tensor.device.type == "meta" for tensor in tensors_in((args, kwargs))
    )


def _refusal(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
    import torch

    from ..model.isolation import isolated

    def run(_: Any) -> Exception | None:
        model.train()
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = buffer.clone()
        try:
            copied_args, copied_kwargs = copy.deepcopy((args, kwargs))
            with torch.no_grad():
                model(*copied_args, **copied_kwargs)
        except Exception as error:
            return error
        return None

    return standing_aside(lambda: isolated(model, run))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
