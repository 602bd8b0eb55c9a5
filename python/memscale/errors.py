"""The exceptions that memscale raises.

All derive from `MemScaleError`. The C library reports a failure as a code, one
line of text, the errno of a failed system call and, for some codes, a number;
the extension turns these into the exceptions below. Nothing here imports torch
or the extension.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BudgetInfeasibleError",
    "ConfigError",
    "IntegrationError",
    "MemScaleError",
    "OffloadError",
    "PolicyFallbackNeeded",
    "ProfileError",
]


def add_note(error: BaseException, text: str) -> None:
    """Adds a note to an exception. Python prints it from 3.11 on."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        vars(error)["__notes__"] = [*getattr(error, "__notes__", []), text]


class MemScaleError(Exception):
    """Base of every error of this package.

    Attributes:
        code: the C library's error code, such as -5 (`MS_ECONFIG`), or None if the error came from
            elsewhere.
        system_errno: errno of the system call that failed, 0 if none did.
        hint_bytes: the number of bytes that some errors carry, else 0.
    """

    def __init__(
        self,
        message: str = "",
        *,
        code: int | None = None,
        system_errno: int = 0,
        hint_bytes: int = 0,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.system_errno = system_errno
        self.hint_bytes = hint_bytes

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword arguments are not in `args`, so copies between processes would lose them.
        return (type(self), self.args, self.__dict__)


class ConfigError(MemScaleError, ValueError):
    """A value of the configuration is not allowed.

    Attributes:
        field: name of the field, such as ``"memory_budget_gb"`` or
            ``"async_config.num_streams"``; None if no single field is at fault.
    """

    def __init__(
        self,
        message: str = "",
        *,
        field: str | None = None,
        code: int | None = None,
        system_errno: int = 0,
        hint_bytes: int = 0,
    ) -> None:
        super().__init__(message, code=code, system_errno=system_errno, hint_bytes=hint_bytes)
        self.field = field if field is not None else _field_of(message)


class ProfileError(MemScaleError):
    """The training step could not be profiled."""


class BudgetInfeasibleError(MemScaleError):
    """No plan fits the byte budget that the user gave.

    The text names the smallest budget that would fit and the techniques of its plan.
    """

    @property
    def smallest_budget_bytes(self) -> int:
        """The smallest budget, in bytes, for which a plan exists; 0 if unknown.

        On a CPU host it includes a 4 MB margin for run-to-run variation.
        """
        return self.hint_bytes


class OffloadError(MemScaleError):
    """A transfer to or from a lower tier failed, before a wrong byte was used.

    Attributes:
        tier: ``"host"``, ``"disk"``, or None if unknown.
        file: path of the file or directory concerned, or None.
    """

    def __init__(
        self,
        message: str = "",
        *,
        tier: str | None = None,
        file: str | None = None,
        code: int | None = None,
        system_errno: int = 0,
        hint_bytes: int = 0,
    ) -> None:
        super().__init__(message, code=code, system_errno=system_errno, hint_bytes=hint_bytes)
        self.tier = tier
        self.file = file

    @property
    def errno(self) -> int | None:
        """errno of the system call that failed, or None if none did."""
        return self.system_errno or None


class IntegrationError(MemScaleError):
    """The model can't be hooked, a layer gave other values when it was recomputed, or other code uses the same
    mechanism."""


class PolicyFallbackNeeded(MemScaleError):
    """The trained policy is not available, so the rule policy decides. Not raised to users of `wrap()`."""


def _field_of(message: str) -> str | None:
    """Name of the field in ``"<field>: <value> is not allowed; ..."``."""
    name, colon, _ = message.partition(": ")
    return name if colon and all(part.isidentifier() for part in name.split(".")) else None
