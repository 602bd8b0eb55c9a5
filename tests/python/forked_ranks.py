"""Runs a program on ranks that are forks of this process. As under torchrun, when one fails, the others are ended.
Not a test by itself.

    run_python("forked_ranks.py", RANKS, PROGRAM, ARGUMENT...)
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import sys


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _rank_of(ranks: int) -> int | None:
    """Forks; returns the rank in each child, and None here, when all have ended. Ends with 1 if one failed."""
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            return rank
        children.append(child)
    failed = False
    while children:
        ended, status = os.wait()
        children.remove(ended)
        if status != 0 and not failed:
            failed = True
            for child in children:
                os.kill(child, signal.SIGTERM)
    sys.exit(failed)


if __name__ == "__main__":
    count = int(sys.argv[1])
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()), WORLD_SIZE=str(count), OMP_NUM_THREADS="1"
    )
    rank = _rank_of(count)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    sys.argv = sys.argv[2:]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
