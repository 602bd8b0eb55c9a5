"""hostmem under real torch, in a process of its own: `hostmem_cases.py` counts every block of the process, and tensors
that other tests still hold would count too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from process_support import environment_of_tests
from time_limits import HANG_SECONDS


def test_hostmem_in_a_process_of_its_own() -> None:
    cases = Path(__file__).with_name("hostmem_cases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", str(cases)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment_of_tests(), timeout=10 * HANG_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
