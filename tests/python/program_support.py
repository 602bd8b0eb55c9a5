"""Finds the `memscale` program."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys


def program_path() -> str:
    """The path in MEMSCALE_PROGRAM, else that of the program beside this interpreter."""
    given = os.environ.get("MEMSCALE_PROGRAM")
    found = given or shutil.which("memscale", path=str(pathlib.Path(sys.executable).parent))
    assert found, "the memscale program is not installed; run make build"
    return found
