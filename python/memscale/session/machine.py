"""Describes the machine and this process for a session: the document that plans are made for. C measures and writes
it; this module asks torch about its devices."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .. import _core
from ..device import kind_of
from ..errors import MemScaleError
from ..model.optimizers import made_state_bytes, optimizers_of
from .device_rates import with_rates

if TYPE_CHECKING:
    import torch

    from ..config import Config

__all__ = ["probe_machine", "with_process"]

_log = logging.getLogger("memscale")


def probe_machine(config: Config, device: torch.device | None = None) -> str:
    """The description of this machine as JSON, without that of the process.

    If `device` is the host, no driver is asked for GPUs: a process that has asked one can't pass it on to children.

    Raises:
        ConfigError: the configuration names a directory for offloading that can't be used.
    """
    # The directory is checked only if it will be used.
    named = config.disk_offload_dir if config.enable_offloading else None
    directory = None if named is None else str(named)
    if directory is not None:
        _core.disk_probe(directory)  # raises ConfigError, because the user named the directory
    no_gpus = device is not None and kind_of(device).is_host
    try:
        return _core.hardware_probe(directory, no_gpus=no_gpus)
    except MemScaleError as error:
        _log.warning("%s; measured rates are replaced by defaults", error)
        return _core.hardware_probe(directory, no_measure=True, no_gpus=no_gpus)


def with_process(hardware: str, device: torch.device, model: torch.nn.Module) -> str:
    """The description with this process's baseline on `device`, and what of it is state of the model's optimizers."""
    state_bytes = made_state_bytes(optimizers_of(model), device)
    described = _with_memory(hardware, device, state_bytes)
    if kind_of(device).is_host or kind_of(device).is_capturing():
        return described
    described, measured_now = with_rates(described, device)
    # Measuring leaves workspaces of operators behind, which belong to the baseline.
    return _with_memory(described, device, state_bytes) if measured_now else described


def _with_memory(hardware: str, device: torch.device, state_bytes: int) -> str:
    kind = kind_of(device)
    sight = kind.sight(device)
    return _core.hardware_set_process(
        hardware,
        kind.name,
        device.index or 0,
        sight.name,
        sight.total_bytes,
        sight.available_bytes,
        kind.allocated_bytes(device),
        state_bytes,
    )
