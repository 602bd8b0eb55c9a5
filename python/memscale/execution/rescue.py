"""Repeats a step under a tighter plan after an allocation failed in it.

Only a caller that holds the step as a function can repeat it: `Executor.run_step()`, which a
user's own loop may call, and the Hugging Face integration. A plain loop can't be rescued.
Random states, gradients and buffers are restored before the step is repeated.
"""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

import torch

from ..base.walk import version_of
from ..device import KINDS, RandomState, is_out_of_memory
from ..errors import BudgetInfeasibleError, MemScaleError, add_note
from .module_state import is_large

__all__ = ["StepRescue"]

_log = logging.getLogger("memscale")

Result = TypeVar("Result")

_ENOMEM = -1  # MS_ENOMEM of memscale/base.h


def _is_out_of_memory(error: BaseException) -> bool:
    # If the host has no memory for a fetched tensor, the library raises an error of its own.
    return is_out_of_memory(error) or (isinstance(error, MemScaleError) and error.code == _ENOMEM)


class StepRescue:
    """The calls since gradients were last None, and the state before the first of them.

    Args:
        tighten: applies the next tighter plan. Its argument counts the earlier calls for the
            same step. It raises `BudgetInfeasibleError` if there is no tighter plan.
        model: the wrapped root module.
    """

    def __init__(self, tighten: Callable[[int], None], model: torch.nn.Module) -> None:
        self._tighten = tighten
        self._model = model
        self._calls: list[tuple[Callable[[], Any], RandomState]] = []
        self._buffers: list[tuple[torch.Tensor, torch.Tensor | None, int | None]] | None = None

    def run(self, call: Callable[[], Result]) -> Result:
        """Calls `call`, which runs a forward and a backward. If an allocation fails in it, `call` is
        repeated under tighter plans until none is left. If gradients of earlier calls are accumulated,
        those calls are repeated first.

        Raises:
            whatever `call` raises; an allocation failure when no tighter plan is left.
        """
        if all(parameter.grad is None for parameter in self._model.parameters()):
            self._calls = []
            self._buffers = self._copy_buffers()
        elif not self._calls:
            self._buffers = None  # the gradients come from elsewhere and can't be computed again
        self._calls.append((call, RandomState()))
        try:
            return call()
        except Exception as error:
            if self._buffers is None or not _is_out_of_memory(error):
                self.update_ended()
                raise
            failure = error
        try:
            result: Result = self._again(failure)
        finally:
            del failure  # its traceback has this frame
        return result

    def update_ended(self) -> None:
        """Forgets the calls: the optimizer has stepped, or a call did not end well."""
        self._calls = []
        self._buffers = None

    def _again(self, failure: Exception) -> Any:
        attempt = 0
        while True:
            try:
                self._clean_up(failure)
                self._tighten(attempt)
            except BudgetInfeasibleError as error:
                add_note(failure, f"memscale: no tighter plan was left: {error}")
                raise failure from None
            attempt += 1
            try:
                self._restore_buffers(failure)
                result = None
                for call, generators in self._calls:
                    generators.put_back()
                    result = call()
                return result
            except Exception as error:
                if error is failure or not _is_out_of_memory(error):
                    raise
                failure = error

    def _clean_up(self, failure: Exception) -> None:
        """Releases everything that the failed step allocated."""
        _clear_frames(failure.__traceback__)
        for parameter in self._model.parameters():
            parameter.grad = None
        gc.collect()
        for kind in KINDS.values():
            if kind.is_active():
                kind.empty_cache()

    def _copy_buffers(self) -> list[tuple[torch.Tensor, torch.Tensor | None, int | None]]:
        # Large ones are not copied before every step: a step that changed one is not repeated.
        return [
            (buffer, None if is_large(buffer) else buffer.detach().clone(), version_of(buffer))
            for buffer in self._model.buffers()
        ]

    def _restore_buffers(self, failure: Exception) -> None:
        with torch.no_grad():
            for buffer, copy, version in self._buffers or ():
                if copy is not None:
                    buffer.copy_(copy)  # even at the same version: batch norms write without counting
                elif version_of(buffer) != version:
                    add_note(failure, "memscale: the step changed a large buffer, so it can't be run again")
                    raise failure


def _clear_frames(failed: TracebackType | None) -> None:
    """Releases the variables of a failed call. torch calls a module that has hooks in a function `inner`, whose frame
    holds that function, and this the arguments in its closure, also when the frame is cleared."""
    traceback.clear_frames(failed)
    for frame, _ in traceback.walk_tb(failed):
        if frame.f_code not in torch.nn.Module._call_impl.__code__.co_consts:
            continue
        for held in gc.get_referents(frame):
            for cell in getattr(held, "__closure__", None) or ():
                with suppress(ValueError):  # it is empty
                    del cell.cell_contents
