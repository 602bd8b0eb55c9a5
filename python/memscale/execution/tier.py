"""Opens the lower tier, to which saved tensors move: host memory or disk.

The executor calls it once per run, when a plan first moves anything. The plan's settings
say which tiers there are and how large they may become. C opens and owns them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..device import kind_of
from .bits import Bits

if TYPE_CHECKING:
    import torch

    from .. import _core
    from ..config import Config

__all__ = ["open_tier"]

_log = logging.getLogger("memscale")


def open_tier(
    core: _core.Execution,
    device: torch.device,
    config: Config | None,
    settings: dict[str, Any],
    disk_directory: Callable[[], str],
    disk: Mapping[str, Any],
    hardware: str | None,
) -> None:
    """Tells the core the device, and opens the tier of `settings`, a plan's ``"settings"``, if the plan moves anything.
    Does nothing if a tier is open.

    Args:
        device: of the model.
        disk_directory: returns the spill directory; called if the disk is used.
        disk: the disk's entry in the hardware description (``write_bytes_per_s``,
            ``read_bytes_per_s``); empty if there is none.
        hardware: the hardware description, as JSON; None if there is none.

    Raises:
        OffloadError: the tier can't be opened.
    """
    if core.tier() is not None:
        return
    core.set_device(device.type, device.index or 0, Bits)
    if not settings["slab_bytes"]:
        return
    transfers = getattr(config, "async_config", None)
    gpu = _described(hardware, device)
    core.open_tier(
        settings["host_cap_bytes"],
        settings["disk_cap_bytes"],
        dir=disk_directory() if settings["disk_cap_bytes"] else None,
        slab_bytes=settings["slab_bytes"],
        pinned_gb=getattr(transfers, "pinned_pool_gb", None) or 0,
        stream_count=getattr(transfers, "num_streams", None) or 0,
        write_bytes_per_s=disk.get("write_bytes_per_s", 0),
        read_bytes_per_s=disk.get("read_bytes_per_s", 0),
        pageable_bytes_per_s=(gpu.get("pageable_to_host_bytes_per_s", 0), gpu.get("pageable_from_host_bytes_per_s", 0)),
    )
    if not kind_of(device).is_host:
        core.set_overlap(getattr(config, "async_offload", None) is not False)
        if getattr(transfers, "debug", False):
            _log.info("%s %d: %s", kind_of(device).label, device.index, core.tier())


def _described(hardware: str | None, device: torch.device) -> Mapping[str, Any]:
    """The entry of this GPU in a hardware description; empty if it has none."""
    gpus: list[Mapping[str, Any]] = [] if hardware is None else json.loads(hardware)["gpus"]
    is_there = not kind_of(device).is_host and device.index < len(gpus)
    return gpus[device.index] if is_there else {}
