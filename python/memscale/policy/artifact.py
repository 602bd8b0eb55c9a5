"""Finds, reads and writes the files of trained policies.

Such a file, an artifact, is a JSON document (docs/formats/policy.schema.json) with a version and a
checksum. C reads it strictly and refuses the whole document on any error.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from .. import _core
from ..errors import MemScaleError, PolicyFallbackNeeded

__all__ = ["TrainedPolicy", "find_policy", "load_policy", "rules_are_asked_for", "seal_policy"]

# "rule" selects the rule policy; any other value is the path of an artifact.
_VARIABLE = "MEMSCALE_POLICY"
_MOST_BYTES = 4 << 20  # C refuses a longer text; a longer file is not read


class TrainedPolicy:
    """A trained policy that was read and checked. Immutable.

    Args:
        text: the artifact.

    Raises:
        MemScaleError: the artifact is malformed, has an unknown version or a wrong checksum.
    """

    __slots__ = ("handle",)

    def __init__(self, text: str) -> None:
        self.handle: Any = _core.policy_load(text)


def load_policy(path: str | os.PathLike[str]) -> TrainedPolicy:
    """Reads an artifact.

    Raises:
        PolicyFallbackNeeded: the file is missing, incomplete or of an unknown format.
    """
    try:
        with Path(path).open(encoding="utf-8") as file:
            return TrainedPolicy(file.read(_MOST_BYTES + 1))
    except (OSError, ValueError, MemScaleError) as error:
        raise PolicyFallbackNeeded(f"{os.fspath(path)}: {error}") from error


def seal_policy(policy_json: str) -> str:
    """Makes an artifact of a policy, with a version and a checksum.

    Args:
        policy_json: the object ``"policy"`` of the format, as JSON.

    Raises:
        MemScaleError: `policy_json` is malformed. The text names the place.
    """
    return _core.policy_seal(policy_json)


def rules_are_asked_for() -> bool:
    """Whether the environment selects the rule policy."""
    return os.environ.get(_VARIABLE) == "rule"


@functools.cache
def _shipped_policy() -> TrainedPolicy:
    return TrainedPolicy(_core.policy_shipped())


def find_policy() -> TrainedPolicy:
    """The artifact that ``MEMSCALE_POLICY`` names, else the built-in one.

    Raises:
        PolicyFallbackNeeded: the named artifact can't be used.
    """
    named = os.environ.get(_VARIABLE)
    return load_policy(named) if named else _shipped_policy()
