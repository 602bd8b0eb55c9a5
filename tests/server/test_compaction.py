"""Batches of runs older than a day are merged: the same steps before and after, whoever appends or dies meanwhile."""

from __future__ import annotations

import pathlib
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from databases import Postgres, choice
from server_support import Client, Server, check_database, first_team, make_token, on_postgresql, sign_up, steps
from test_push import wait_until

OPTIONS = ("--limits", "1000000")
DAY_MS = 24 * 3600 * 1000
BATCHES = 6


def count_batches(data: pathlib.Path) -> int:
    return int(choice.now.sql(data, "SELECT count(*) FROM batch"))


class Old:
    """Runs that began more than a day ago, with some batches each. The server that made them is stopped."""

    def __init__(self, data: pathlib.Path, count: int) -> None:
        server = Server(data, *OPTIONS)
        owner = sign_up(server, server.first_key(), "owner")
        self.data = data
        self.token = make_token(owner, first_team(owner), "runs:write", "runs:read")
        program = Client(server, self.token)
        self.runs = {program.begin_run(f"run-{i}"): 0 for i in range(count)}
        for run in self.runs:
            for _ in range(BATCHES):
                self.append(program, run)
        self.before = {run: program.get(f"/api/v1/runs/{run}").json for run in self.runs}
        assert server.stop() == 0
        assert count_batches(data) == count * BATCHES
        choice.now.sql(data, f"UPDATE run SET started_at = started_at - {DAY_MS} RETURNING 1")

    def append(self, program: Client, run: str) -> None:
        """The next batch: seven steps, of which not all are known."""
        sequence = self.runs[run] + 1
        answer = program.append(run, sequence, self.batch(sequence))
        assert answer.status == 200 and answer.json["counted"], answer.text
        self.runs[run] = sequence

    @staticmethod
    def batch(sequence: int) -> list[dict[str, Any]]:
        batch: list[dict[str, Any]] = [dict(step) for step in steps(sequence * 10, 7)]
        batch[sequence % 7]["peak_bytes"] = None
        batch[sequence % 5]["step_ns"] = sequence * 2**40
        return batch

    def check(self, program: Client) -> None:
        """Every acknowledged step is there, as it was sent, and nothing else."""
        for run, last in self.runs.items():
            sent = [step for sequence in range(1, last + 1) for step in self.batch(sequence)]
            page = program.get(f"/api/v1/runs/{run}/steps?points=5000").json
            for name in sent[0]:
                assert page["columns"][name] == [step[name] for step in sent], (run, name)
            assert (page["last_sequence"], page["step_count"]) == (last, 7 * last)
            shown = program.get(f"/api/v1/runs/{run}").json
            assert shown["last_sequence"] == last
            if last == BATCHES:
                assert {**shown, "started_at": ""} == {**self.before[run], "started_at": ""}


def test_batches_become_one_and_nothing_else_changes(data: pathlib.Path) -> None:
    old = Old(data, 3)
    young = "UPDATE run SET started_at = started_at + 3600000 WHERE id = (SELECT min(id) FROM run) RETURNING id"
    left = choice.now.sql(data, young).split()[0]
    server = Server(data, *OPTIONS)
    try:
        program = Client(server, old.token)
        wait_until(lambda: count_batches(data) == BATCHES + 2)  # one of each old run, all of the young one
        old.check(program)
        sizes = "SELECT sum(stored_bytes) - (SELECT sum(length(data)) FROM batch) FROM run"
        others = int(choice.now.sql(data, sizes))
        for run in old.runs:
            assert program.append(run, 3, steps(1, 1)).json["counted"] is False  # a late repetition
            assert program.append(run, BATCHES + 2, steps(9999, 1)).status == 409
            old.append(program, run)
        assert int(choice.now.sql(data, sizes)) == others  # the quota counts what is stored
        old.check(program)
        assert choice.now.sql(data, f"SELECT count(*) FROM batch WHERE run = '{left}'") == str(BATCHES + 1)
        run = next(run for run in old.runs if run != left)
        after = program.get(f"/api/v1/runs/{run}/steps?after=25").json["columns"]["step"]
        assert after == [10 * sequence + i for sequence in range(1, BATCHES + 2) for i in range(7)][7 + 6 :]
    finally:
        assert server.stop() == 0
    check_database(data)


def wait_for_a_part(data: pathlib.Path, everything: int) -> int:
    """Returns in the middle of a pass, or a little behind it."""
    deadline = time.monotonic() + 0.5
    while (count := count_batches(data)) == everything and time.monotonic() < deadline:
        pass
    return count


def test_a_kill_in_between_loses_nothing(data: pathlib.Path) -> None:
    count = 30
    old = Old(data, count)
    random.seed(5)
    in_between = 0
    for _ in range(4):
        before = count_batches(data)
        server = Server(data, *OPTIONS)
        program = Client(server, old.token)
        for run in random.sample(list(old.runs), 5):
            old.append(program, run)  # appends go on meanwhile
        wait_for_a_part(data, before + 5)
        server.stop(signal.SIGKILL)
        in_between += count_batches(data) > count
        server = Server(data, *OPTIONS)
        old.check(Client(server, old.token))
        server.stop(signal.SIGKILL)
    server = Server(data, *OPTIONS)
    try:
        wait_until(lambda: count_batches(data) == count)
        old.check(Client(server, old.token))
    finally:
        assert server.stop() == 0
    check_database(data)
    assert in_between > 0 or choice.now.name == "postgresql"  # where a look takes longer than the pass


@on_postgresql
def test_two_servers_merge_and_append_at_once(database: Postgres, data: pathlib.Path) -> None:
    count = 40
    old = Old(data, count)
    servers = [Server(data, *OPTIONS) for _ in range(2)]
    try:
        programs = [Client(server, old.token) for server in servers]
        order = list(old.runs) * 4
        random.Random(3).shuffle(order)
        for number, run in enumerate(order):
            old.append(programs[number % 2], run)
            if number == len(order) // 2:  # whichever leads may be the one that goes
                servers[0].stop(signal.SIGKILL)
                servers[0] = Server(data, *OPTIONS)
                programs[0] = Client(servers[0], old.token)
        old.check(programs[1])
        servers[1].stop(signal.SIGKILL)
        servers[1] = Server(data, *OPTIONS)  # a pass of its own, if it leads
        old.check(programs[0])
        wait_until(lambda: count_batches(data) <= 5 * count)
    finally:
        for server in servers:
            server.stop()
    check_database(data)


@pytest.fixture
def damaged(data: pathlib.Path) -> Callable[[], Old]:
    """Three old runs, of which the first has a batch that can't be read."""

    def make() -> Old:
        old = Old(data, 3)
        choice.now.sql(
            data, "UPDATE batch SET steps = 6 WHERE run = (SELECT min(id) FROM run) AND sequence = 2 RETURNING 1"
        )
        return old

    return make


def test_a_damaged_batch_is_told_and_the_others_are_merged(data: pathlib.Path, damaged: Callable[[], Old]) -> None:
    old = damaged()
    server = Server(data, *OPTIONS)
    try:
        wait_until(lambda: count_batches(data) == BATCHES + 2)
        wait_until(lambda: any("steps:" in str(line) for line in server.log()))
        assert Client(server, old.token).get("/api/v1/runs").status == 200
    finally:
        server.stop()
