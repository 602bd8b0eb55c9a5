"""Streams the parameters of a model that is made in a `with` block: they may exceed memory."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

from .. import _core
from ..config import Config
from ..errors import OffloadError
from .checkpoint import maps_end, maps_stream
from .host_memory import HostMemory
from .machine import probe_machine

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Streaming"]

_log = logging.getLogger("memscale")


class Streaming:
    """The ``with`` block of `memscale.stream()`."""

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self._directory = None if directory is None else os.fspath(directory)
        self._memory = HostMemory()

    def __enter__(self) -> None:
        directory = self._directory
        if directory is None:
            import torch

            # Only host memory streams, so no GPU's driver is asked.
            directory = json.loads(probe_machine(Config(), torch.device("cpu")))["disk"]["dir"]
            if not directory:
                raise OffloadError("memscale.stream(): no directory on a disk was found; name one: stream(directory)")
        else:
            _core.disk_probe(directory)
        self._memory.install()
        try:
            _core.streamed_begin(directory)
        except BaseException:
            self._memory.uninstall()
            raise
        maps_stream()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        maps_end()
        _core.streamed_end()
        _core.streamed_drop()
        self._memory.uninstall()
        if error is None:
            _log.info("%s", _told(_core.streamed_stats()))
        elif isinstance(error, RuntimeError):
            try:
                _core.streamed_failure()
            except OffloadError as reason:
                raise reason from error


def _told(stats: dict[str, Any]) -> str:
    return f"stream: {stats['blocks']} tensors, {stats['total_bytes'] / 1e9:.2f} GB, are in files"
