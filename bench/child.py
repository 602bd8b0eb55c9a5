"""Runs a function in a forked process, so that no earlier case's memory counts. For the programs of this folder."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any

__all__ = ["in_child"]


def in_child(make: Callable[[], Any]) -> Any:
    """The result of `make`, which JSON must be able to hold; None if it failed, after its traceback."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            with os.fdopen(writer, "w") as pipe:
                json.dump(make(), pipe)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None
