"""Manages the process's tensor memory while a model is wrapped on a CPU host.

It installs the allocator of `hostmem` for one wrapped model, passes the ceiling of the plan in force
to it, and uninstalls it. `memscale/hostmem.h` documents the allocator.
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

from .. import _core
from ..base.divided import part_of
from ..planning.execution_plan import ExecutionPlan

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("memscale")
_ALL = 2**64 - 1  # bytes of the cache that stay


class HostMemory:
    """One wrapped model's share in the allocator of CPU tensors.

    It must be installed before the process's baseline is measured. If the model is collected without
    `detach()`, the share is released with it. Not thread-safe.
    """

    def __init__(self) -> None:
        self._end: weakref.finalize[Any, Any] | None = None
        self._plan: tuple[ExecutionPlan, bool] | None = None
        self._last_steps = (0, 0), (0, 0)
        self.baseline_bytes = 0  # of maps, which plans count in the process's baseline
        self._start_bytes = 0  # of maps that were live at the wrap, and count there too
        self._model_bytes = 0  # those of the model
        self._has_begun = False

    def install(self, model: torch.nn.Module | None = None) -> None:
        """Takes over the allocator. If it can't, C uses its fallback and logs that."""
        import torch  # noqa: F401  C replaces slots of torch's library, which must be loaded

        if self._end is None:
            means = _core.hostmem_install()
            self._end = weakref.finalize(self, _give_back)
            self._end.atexit = False
            _core.hostmem_trim(0)  # an earlier wrap's cache is not part of the baseline
            self._start_bytes = _core.hostmem_stats()["live_bytes"]
            self._model_bytes = 0 if model is None else _map_bytes(model)
            _log.debug("memory of CPU tensors: %s", means)

    def begin(self, hardware: str, model: torch.nn.Module) -> str:
        """The first forward begins. Returns the description of the machine without what was freed since the wrap: the
        model that this one replaces, and its optimizer. Later calls change nothing."""
        if self._has_begun or self._end is None:
            return hardware
        self._has_begun = True
        moved_bytes = max(0, _map_bytes(model) - self._model_bytes)  # made again after the wrap, as by `model.half()`
        self._start_bytes = min(self._start_bytes + moved_bytes, _core.hostmem_stats()["live_bytes"])
        return _core.hardware_begins(hardware, self._start_bytes)

    @property
    def is_exact(self) -> bool:
        """Whether every large tensor of the process is counted to the byte."""
        return self._end is not None and _core.hostmem_stats()["means"] == "slots"

    def follow(self, plan: ExecutionPlan, smaller_inputs: bool = False) -> None:
        """Limits the sum of live and cached tensor memory under `plan`. `smaller_inputs`: the next inputs are smaller
        than the plan's."""
        self._plan = plan, smaller_inputs
        self._set_ceiling()

    def step_ended(self, seen: dict[str, Any]) -> None:
        """Lowers the limit if the finished step's memory beside tensors leaves less room than the plan assumes."""
        if "peak_bytes" in seen and "peak_held_bytes" in seen:
            self._last_steps = (seen["peak_bytes"], seen["peak_held_bytes"]), self._last_steps[0]
            self._set_ceiling()

    def step_begins(self) -> None:
        """The step begins under a new plan, whose limit has shrunk the cache: the peak of the step is measured without
        what the last step had left there."""
        if self._end is not None:
            _core.hostmem_reset_peak()

    def _set_ceiling(self) -> None:
        if self._end is not None and self._plan is not None:
            plan, smaller_inputs = self._plan
            most_bytes = plan.ceiling_bytes + self.baseline_bytes + self._start_bytes
            limit = _core.hostmem_ceiling(most_bytes, plan.budget_bytes or 0, *self._last_steps, smaller_inputs)
            _core.hostmem_set_ceiling(limit)

    def trace_ended(self) -> None:
        """Returns what libc has kept of a trace's memory to the system: several MB, which no plan counts."""
        if self._end is not None:
            _core.hostmem_trim(_ALL)

    def uninstall(self) -> None:
        """Restores the previous allocator. Live tensors keep their memory."""
        if self._end is not None:
            self._end()
            self._end = None


def _map_bytes(model: torch.nn.Module) -> int:
    return _core.map_bytes([part_of(tensor) for tensor in (*model.parameters(), *model.buffers())])


def _give_back() -> None:
    _core.hostmem_uninstall()
    _core.hostmem_trim(0, True)
