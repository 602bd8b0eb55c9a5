"""The warm-up of a model that can't be traced: its first steps, which are profiled while they run.

The session owns one and tells it how traces, forwards and profiled steps end. It says whether the model is traced,
whether the next forward is profiled, and when enough steps are; and it tells the user why. Only the thread that runs
the model's forward uses it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..tracing.misfit import forbids_hooks, is_of_the_trace

if TYPE_CHECKING:
    from ..errors import MemScaleError, ProfileError

__all__ = ["WarmUp"]

_log = logging.getLogger("memscale")

# After this many profiled steps in a row that could not be followed, no more are profiled.
_REFUSED_STEPS = 3


class WarmUp:
    """Follows the warm-up of one model.

    Args:
        steps: the number of steps to profile before a plan is made (`warmup_steps`).
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._profiled_steps = 0
        self._refused_steps = 0
        self.is_untraceable = False
        self.takes_no_hooks = False
        # The reason to give once the forward whose trace failed has ended well: one that raises too gives its own.
        self._reason: str | None = None
        self._is_doubtful = False  # whether the trace just before this forward failed, which may raise the same error

    def forward_begins(self) -> None:
        """A forward asks for its plan."""
        self._is_doubtful = False

    def trace_failed(self, error: ProfileError, is_final: bool, is_known: bool) -> None:
        """The next steps are profiled.

        Args:
            error: why; the user is told.
            is_final: the steps of later shapes are profiled too, unless the forward raises.
            is_known: the forward is known to accept its arguments. If not, it may be about to raise the same error.
        """
        self.is_untraceable = self._is_doubtful = is_final
        # Not the error: a handler that keeps records would keep its frames, and with them the forward's output.
        self._reason = f"{error}; {self._steps} real steps are profiled instead"
        if is_known or is_of_the_trace(error):
            self._tell()  # not at the forward's end: one that needs too much memory may not reach it

    def forward_ended(self) -> None:
        """A forward has ended without an error."""
        self._tell()

    def _tell(self) -> None:
        if self._reason is not None:
            _log.warning("%s", self._reason)
            self._reason = None

    def refuses_hooks(self, error: BaseException | None) -> bool:
        """Whether a forward failed because it allows no saved-tensor hooks around it. If so, the model
        is left alone from the next forward on. If the trace before it failed too, the next forward is traced again."""
        self.is_untraceable &= not self._is_doubtful
        self._reason = None
        if not forbids_hooks(error):
            return False
        self.takes_no_hooks = self.is_untraceable = True
        _log.warning(
            "the forward allows no saved-tensor hooks around it (derivatives by torch.func, or "
            "disable_saved_tensors_hooks): memscale leaves the model alone, and it may exceed a budget; a forward that "
            "uses torch.autograd.grad instead can be planned"
        )
        return True

    @property
    def wants_profile(self) -> bool:
        """Whether a step without a plan has to be profiled while it runs."""
        return not self.takes_no_hooks and not self.has_given_up

    @property
    def has_given_up(self) -> bool:
        """Whether real steps can't be followed, so that no plan will be made."""
        return self._refused_steps >= _REFUSED_STEPS

    def step_refused(self, reason: MemScaleError | None) -> None:
        """A profiled step could not be followed."""
        self._refused_steps += 1
        if self._refused_steps == _REFUSED_STEPS:
            _log.warning(
                "real steps can't be followed either (%s): the warm-up's plan stays, and no budget is planned for",
                str(reason),
            )

    def step_profiled(self) -> bool:
        """A step was profiled. Returns whether enough are for a plan: then another shape's count begins."""
        self._is_doubtful = False
        self._refused_steps = 0
        self._profiled_steps += 1
        is_enough = self._profiled_steps >= self._steps
        if is_enough:
            self._profiled_steps = 0
        return is_enough
