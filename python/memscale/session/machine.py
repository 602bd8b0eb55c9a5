"""Describes the machine and this process for a session: the document that plans are made for. C measures and writes
it; this module asks torch about its devices."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .. import _core
from ..device import kind_of
from ..errors import MemScaleError
from ..model.optimizers import made_state_bytes, optimizers_of
from ..observability.logs import log_detail
from .device_rates import with_rates

if TYPE_CHECKING:
    import torch

    from ..config import Config

__all__ = ["keep_scratch", "probe_machine", "with_kept_scratch", "with_process"]

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


def _software() -> str:
    """Names the software that computes, because the memory beside tensors depends on it."""
    import torch

    return f"torch {torch.__version__}, {torch.get_num_threads()} threads"


def keep_scratch(graph: str, before: str, after: str) -> None:
    """Keeps for later runs what the operators of a step took beyond the estimate. `before` and `after` describe the
    machine before and after the step's correction."""
    if _core.plan_keep_scratch(graph, before, after, _software()):
        log_detail("this step took more memory beside its tensors than expected: later runs plan for it from the start")


def with_kept_scratch(graph: str, hardware: str, config: str) -> str:
    """The description with what an earlier run of this step took, if a plan still fits then."""
    kept = _core.plan_recall_scratch(graph, hardware, config, _software())
    if kept is None:
        return hardware
    log_detail("an earlier run of this step took more memory beside its tensors than expected: the plan counts it")
    return kept
