"""Runs Python programs in processes of their own that have torch and transformers already.

To import both takes three seconds of a processor, which is most of what a short program takes. So each test process
has a server that imports them once and forks. A program runs as if `python` had begun it: as `__main__`, with its own
arguments, environment, folder and output, with no memscale loaded, and it ends by the interpreter's own end.

Not for programs that look at what an import does, that set variables that a library reads while it is loaded
(OMP_NUM_THREADS is heeded), or that run beside others: these start `sys.executable`.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from time_limits import HANG_SECONDS

_server: subprocess.Popen[bytes] | None = None


def run_python(
    *command: str | Path,
    env: dict[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float = HANG_SECONDS,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([sys.executable, *command], capture_output=True, text=True, ...)`. The command may begin with
    `-W ACTION`, before `-c CODE`, `-m MODULE` or a file. One at a time in a process."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        output.touch()
        errors.touch()
        words = [str(word) for word in command]
        request = {
            "command": words,
            "environment": dict(os.environ if env is None else env),
            "folder": str(cwd or os.getcwd()),
            "output": str(output),
            "errors": str(errors),
        }
        code = _ended(request, timeout)
        done = subprocess.CompletedProcess(
            [sys.executable, *words], code, output.read_text(errors="replace"), errors.read_text(errors="replace")
        )
    if check and code != 0:
        print(done.stderr, file=sys.stderr)  # pytest shows it
        done.check_returncode()
    return done


def _ended(request: dict[str, object], timeout: float) -> int:
    """Has the server run the program; returns its exit code."""
    global _server
    if _server is None or _server.poll() is not None:
        _server = _begin()
    assert _server.stdin is not None and _server.stdout is not None
    _server.stdin.write(json.dumps(request).encode() + b"\n")
    child = int(_server.stdout.readline())
    if not select.select([_server.stdout], [], [], timeout)[0]:
        os.kill(child, signal.SIGKILL)
        _server.stdout.readline()
        raise subprocess.TimeoutExpired(str(request["command"]), timeout)
    return int(_server.stdout.readline())


def _begin() -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OMP_NUM_THREADS")}
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("fork_server.py"))],
        bufsize=0,  # select() sees what a buffer holds no more
        env=environment | {"HF_HUB_OFFLINE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    atexit.register(server.communicate)
    return server
