"""Opens what saved tensors move to: disk or host memory, from a CPU or from a GPU.

Used by the executor, once per run, when a plan first moves anything. Which tiers there
are and how large they may become is in the plan's settings; C opens and owns them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..device import kind_of

if TYPE_CHECKING:
    import torch

    from .. import _core
    from ..config import Config

__all__ = ["open_tier"]

_log = logging.getLogger("memscale")


def open_tier(
    core: _core.Execution,
    model: torch.nn.Module,
    config: Config | None,
    settings: dict[str, Any],
    disk_directory: Callable[[], str],
    disk: Mapping[str, Any],
) -> None:
    """Opens the tier of `settings`, a plan's ``"settings"``; none where they cap all at zero.

    Args:
        disk_directory: asked for the spill directory where the disk is used.
        disk: what the hardware description says of the disk (``write_bytes_per_s``,
            ``read_bytes_per_s``); empty where there is none.

    Raises:
        OffloadError: the tier can't be opened.
    """
    to_host, to_disk = settings["host_cap_bytes"], settings["disk_cap_bytes"]
    parameter = next(model.parameters(), None)
    if parameter is not None and not kind_of(parameter.device).is_host:
        _open_device_tier(core, config, settings, disk_directory, parameter.device)
    elif to_disk:
        core.open_tier(
            "disk",
            dir=disk_directory(),
            cap_bytes=to_disk,
            slab_bytes=settings["slab_bytes"],
            write_bytes_per_s=disk.get("write_bytes_per_s", 0),
            read_bytes_per_s=disk.get("read_bytes_per_s", 0),
        )
    elif to_host:
        core.open_tier("host", cap_bytes=to_host, slab_bytes=settings["slab_bytes"])


def _open_device_tier(
    core: _core.Execution,
    config: Config | None,
    settings: dict[str, Any],
    disk_directory: Callable[[], str],
    device: torch.device,
) -> None:
    """From a GPU to host memory, and to disk where the plan says so or that is capped."""
    transfers = getattr(config, "async_config", None)
    to_host, to_disk = settings["host_cap_bytes"], settings["disk_cap_bytes"]
    core.open_tier(
        "host" if to_host else "disk",
        dir=disk_directory() if to_disk else None,
        cap_bytes=to_host or to_disk,
        disk_cap_bytes=to_disk,
        slab_bytes=settings["slab_bytes"],
        device_kind=device.type,
        device=device.index,
        pinned_gb=getattr(transfers, "pinned_pool_gb", None) or 0,
        stream_count=getattr(transfers, "num_streams", None) or 0,
    )
    core.set_overlap(getattr(config, "async_offload", None) is not False)
    if getattr(transfers, "debug", False):
        _log.info("%s %d: %s", kind_of(device).label, device.index, core.tier())
