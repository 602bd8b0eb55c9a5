"""Mixed precision: forwards under autocast, in the type that C decides at the first of them.

A session has one `MixedPrecision` if `use_mixed_precision` is set.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import torch

    from ..techniques.loss_scaling import LossScaling

__all__ = ["MixedPrecision", "decide_precision"]

_log = logging.getLogger("memscale")


class MixedPrecision:
    """Runs a model's forwards under autocast. Only the thread that calls the model may use it."""

    def __init__(self) -> None:
        self._type: str | None = None  # autocast's; "": no autocast; None: not decided
        self._loss_scaling: LossScaling | None = (
            None  # set while the type is FP16, or not decided for a model that trains
        )

    def scale_losses(self, model: torch.nn.Module) -> LossScaling:
        """Lets losses be scaled as soon as a forward is FP16. A step whose closure runs the first forward needs this
        before it."""
        if self._loss_scaling is None:
            from ..techniques.loss_scaling import LossScaling

            self._loss_scaling = LossScaling(model)
        return self._loss_scaling

    def around(self, model: torch.nn.Module, device: str, decide: Callable[[str], str]) -> AbstractContextManager[Any]:
        """The context of a training forward: autocast, or one that does nothing.

        Args:
            device: the type of the device that it computes on.
            decide: called at the first forward, with that type; returns autocast's type, or "".
        """
        import torch

        if torch.is_autocast_enabled(device):
            self.leave(logging.INFO, "the forward runs under your own autocast, which is left as it is")
            return nullcontext()
        if self._type is None:
            self._put(decide(device))
        if self._type == "float16":
            return self.scale_losses(model).autocast(device)
        return torch.autocast(device, getattr(torch, self._type)) if self._type else nullcontext()

    def leave(self, level: int, reason: str) -> None:
        """Switches no autocast on from now on, unless a type was decided before."""
        if self._type is None:
            _log.log(level, "use_mixed_precision: %s", reason)
            self._put("")

    def _put(self, chosen: str) -> None:
        self._type = chosen
        if chosen != "float16":
            self.close()

    def close(self) -> None:
        """Stops scaling losses."""
        if self._loss_scaling is not None:
            self._loss_scaling.close()
            self._loss_scaling = None


def decide_precision(
    trace: Callable[[], str] | None, model: torch.nn.Module, device: str, hardware: str
) -> tuple[str, str]:
    """The type in which forwards run faster or in less memory, and the description of the machine with the rates that
    this measured.

    Args:
        trace: makes the graph of a step under the autocast of the moment; None if the model can't be traced now.
        device: the type of the model's device.
    """
    import torch

    plain = half = None
    try:
        if trace is not None:
            with torch.autocast(device, enabled=False):
                plain = trace()
            with torch.autocast(device, torch.bfloat16):
                half = trace()
    except ProfileError as error:
        _log.debug("%s", str(error))
    is_fp16 = any(p.dtype is torch.float16 for p in model.parameters())
    chosen, line, hardware = _core.plan_precision(plain, half, hardware, is_fp16)
    _log.info("%s", line)
    return chosen, hardware
