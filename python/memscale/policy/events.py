"""Runs like those that telemetry tells of: ``python -m memscale.policy.corpus FOLDER --events FILE``.

FILE has accepted events (docs/formats/telemetry.schema.json), one a line, as ``memscale-server telemetry`` prints them.
An event holds classes and no sizes. So runs are drawn from the families and machines of its classes until parameters,
memory and layers of one lie in the event's buckets too; its budget gives the event's pressure. If no draw does, the
nearest is taken, and its row names the sizes that differ.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Events", "Likeness", "read_events"]

_UNITS = {None: 1.0, "M": 1e6, "B": 1e9, "GB": 1e9}
_BUCKET = re.compile(r"([<>]?)([\d.]+)(GB|B|M)?(?:-([\d.]+)(GB|B|M)?)?")
_OPEN_END = 4.0  # ">2" is 2 to 8

Range = tuple[float, float]


def _range(bucket: str) -> Range | None:
    """The least and the most of a bucket such as "<10M", "9-18GB" or ">2"; None for "unknown".

    Raises:
        ValueError: the text is not a bucket.
    """
    if bucket == "unknown":
        return None
    parts = _BUCKET.fullmatch(bucket)
    if parts is None or bool(parts[1]) == bool(parts[4]):
        raise ValueError(f"{bucket!r} is no bucket")
    first = float(parts[2]) * _UNITS[parts[3] or parts[5]]  # 18-36GB
    if parts[1]:
        return (0.0, first) if parts[1] == "<" else (first, first * _OPEN_END)
    return first, float(parts[4]) * _UNITS[parts[5]]


@dataclass(frozen=True)
class Likeness:
    """The classes of an event, which a run is to have too. None: unknown."""

    architecture: str
    on_gpu: bool | None
    parameters: Range | None
    device_bytes: Range | None
    layers: Range | None
    pressure: Range

    def differs(self, values: dict[str, float]) -> list[str]:
        """The names of `values` (parameters, device_bytes, layers) that lie outside of their ranges."""
        ranges = {name: getattr(self, name) for name in values}
        return [name for name, seen in ranges.items() if seen and not seen[0] <= values[name] <= seen[1]]


def _likeness(event: dict[str, Any]) -> Likeness | None:
    """None if a policy has nothing to learn from it: another event, no plan, or no pressure."""
    pressure = _range(event["pressure"])
    if event["event"] != "wrap_called" or pressure is None or pressure[0] < 0.85:
        return None
    on_gpu = None if event["device"] == "unknown" else event["device"] == "gpu"
    parameters, memory, layers = (_range(event[name]) for name in ("parameters", "device_memory", "layers"))
    return Likeness(event["architecture"], on_gpu, parameters, memory, layers, pressure)


@dataclass(frozen=True)
class Events:
    """The events of a file, each as often as it was sent."""

    listed: tuple[Likeness, ...]
    skipped: int  # without a plan under pressure
    digest: str


def read_events(path: Path) -> Events:
    """Reads accepted events.

    Raises:
        OSError: the file can't be read.
        ValueError: a line is not an event of schema version 2, or none of the events has a plan under pressure.
    """
    body = path.read_bytes()
    listed, skipped = [], 0
    for number, line in enumerate(body.splitlines(), 1):
        try:
            event = json.loads(line)
            if event["schema_version"] != 2:
                raise ValueError(f"schema version {event['schema_version']!r}, not 2")
            likeness = _likeness(event)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {number}: no telemetry event ({error})") from None
        listed += [likeness] if likeness is not None else []
        skipped += likeness is None
    if not listed:
        raise ValueError(f"{path}: no event of a plan under pressure, so there is nothing to make rows of")
    return Events(tuple(listed), skipped, hashlib.sha256(body).hexdigest())
