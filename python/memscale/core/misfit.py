"""Tells an input that does not fit a model from a model that can't be traced.

Both end a trace with an exception of torch's, and the second is no fault of the caller's: real
steps are profiled then. Used where `wrap()` is given a `sample_input`, which no forward would
complain about. Only what torch says of shapes, sizes and types that do not go together counts.
"""

from __future__ import annotations

import re

__all__ = ["misfit_of"]

_PHRASES = re.compile(
    r"shapes? cannot be multiplied"
    r"|must have (the )?same (reduction dim|dtype)"
    r"|must match the (size|existing size)"
    r"|(size|shape)s? (mismatch|do(es)? not match)"
    r"|[Ee]xpected (\w+ )?(input|tensor|index|indices)\b.* to have"
    r"|[Ee]xpected [^.]*\b(channels|scalar type|\d-?D)\b"
    r"|[Gg]iven (normalized_shape|groups)\b"
    r"|is invalid for input of size"
    r"|[Dd]imension out of range"
    r"|not broadcastable|could not be broadcast|can('t|not) be expanded"
)


def misfit_of(error: BaseException) -> str | None:
    """What torch said, on one line, if the exception that ended a trace says that sizes or types
    do not go together; else None."""
    cause = error.__cause__
    while cause is not None:
        text = " ".join(str(cause).split())
        if isinstance(cause, (RuntimeError, ValueError, IndexError, TypeError)) and _PHRASES.search(text):
            return text[:300]
        cause = cause.__cause__ or cause.__context__
    return None
