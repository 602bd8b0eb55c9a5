"""Ranks on two hosts: two network namespaces, each with an address of its own, joined by a cable of two virtual cards.
Needs root and iproute2."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_distributed import told_in
from time_limits import HANG_SECONDS

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")

_CASE = Path(__file__).with_name("distributed_case.py")
_CARD = "memscale0"
_ADDRESSES = ("10.213.77.1", "10.213.77.2")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[str, str]]:
    """The names of two namespaces that reach each other."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("two hosts need root and iproute2")
    names = (f"memscale-{os.getpid()}-a", f"memscale-{os.getpid()}-b")
    with contextlib.ExitStack() as cleanup:
        try:
            for name in names:
                _ip("netns", "add", name)
                cleanup.callback(_ip, "netns", "del", name)
            cards = ("link", "add", _CARD, "netns", names[0], "type", "veth", "peer", "name", _CARD, "netns", names[1])
            _ip(*cards)
            for name, address in zip(names, _ADDRESSES, strict=True):
                _ip("-n", name, "address", "add", f"{address}/24", "dev", _CARD)
                for card in (_CARD, "lo"):
                    _ip("-n", name, "link", "set", card, "up")
        except OSError as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield names


def _launch(hosts: tuple[str, str], case: str, folder: Path) -> dict[str, list[list[Any]]]:
    """Runs a rank of `distributed_case.py` on each host; returns what both reported."""
    torchrun = ["torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    meeting = ["--master-addr", _ADDRESSES[0], "--master-port", "29400"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": _CARD, "OMP_NUM_THREADS": "1"}
    children = []
    for rank, host in enumerate(hosts):
        command = [sys.executable, "-m", *torchrun, "--node-rank", str(rank), *meeting, str(_CASE), case, str(folder)]
        children.append(
            subprocess.Popen(
                ["ip", "netns", "exec", host, *command], env=environment, stderr=subprocess.PIPE, text=True
            )
        )
    try:
        errors = [child.communicate(timeout=HANG_SECONDS)[1] for child in children]
    finally:
        for child in children:
            child.kill()
    sys.stderr.write("".join(text[-4000:] for text in errors))  # shown if a test fails
    assert [child.returncode for child in children] == [0, 0]
    return told_in(folder)


def test_ranks_on_two_hosts_train_with_the_bits_of_the_unwrapped_run_and_one_plan(
    hosts: tuple[str, str], tmp_path: Path
) -> None:
    told = _launch(hosts, "hosts", tmp_path)
    assert told["equal"] == [[True] * 2] * 2
    assert told["plan"][0] == told["plan"][1]
    assert told["allowed"] == [[3_000_000_000], [3_000_000_000]]
    for rank in told["schedule"]:
        ((_, is_same, recomputed),) = rank
        assert is_same and recomputed > 0
