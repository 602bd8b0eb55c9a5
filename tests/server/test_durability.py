"""What was acknowledged is kept: kill -9 under load, full disk, copies while others write, tampering that shows."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import threading
import time

import pytest
from databases import UNPACKED
from server_support import (
    AS_USER,
    PROGRAM,
    Client,
    Server,
    check_database,
    first_team,
    invite,
    make_token,
    on_sqlite,
    run_program,
    sign_up,
    steps,
)

_LIBRARY = f"usr/lib/{os.uname().machine}-linux-gnu/faketime/libfaketime.so.1"
FAKETIME = next((str(root / _LIBRARY) for root in (pathlib.Path("/"), UNPACKED) if (root / _LIBRARY).exists()), None)
KILLS = int(os.environ.get("MEMSCALE_SERVER_KILLS", "6"))


class Writer(threading.Thread):
    """Appends to one run until the server dies, and remembers what was acknowledged."""

    def __init__(self, server: Server, token: str, run: str, acknowledged: int) -> None:
        super().__init__(daemon=True)
        self.client = Client(server, token)
        self.run_id = run
        self.acknowledged = acknowledged

    def run(self) -> None:
        sequence = self.acknowledged
        try:
            while True:
                sequence += 1
                answer = self.client.append(self.run_id, sequence, steps(sequence * 10, 10))
                if answer.status != 200:
                    return
                self.acknowledged = sequence
        except OSError:
            return
        except Exception:  # half an answer is none
            return


def test_what_was_acknowledged_outlives_kill_9(data: pathlib.Path) -> None:
    options = ("--limits", "1000000")
    server = Server(data, *options)
    owner = sign_up(server, server.first_key(), "owner")
    token = make_token(owner, first_team(owner), "runs:write", "runs:read")
    program = Client(server, token)
    acknowledged = {program.begin_run(f"writer-{i}"): 0 for i in range(4)}
    random.seed(7)
    for _ in range(KILLS):
        writers = [Writer(server, token, run, count) for run, count in acknowledged.items()]
        for writer in writers:
            writer.start()
        threading.Event().wait(random.uniform(0.05, 0.4))
        server.stop(signal.SIGKILL)
        for writer in writers:
            writer.join(60)
            assert not writer.is_alive()
        server = Server(data, *options)
        program = Client(server, token)
        for writer in writers:
            kept = program.get(f"/api/v1/runs/{writer.run_id}").json["last_sequence"]
            assert kept >= writer.acknowledged  # one more may have been kept without an answer
            assert kept <= writer.acknowledged + 1
            acknowledged[writer.run_id] = kept
            columns = program.get(f"/api/v1/runs/{writer.run_id}/steps?points=5000").json
            assert columns["steps_per_point"] > 1 or len(columns["columns"]["step"]) == 10 * kept
    assert sum(acknowledged.values()) > 0
    assert server.stop() == 0
    check_database(data)


@on_sqlite
def test_a_copy_is_taken_while_others_write_and_put_back(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    server = Server(data, "--limits", "1000000")
    owner = sign_up(server, server.first_key(), "owner")
    token = make_token(owner, first_team(owner), "runs:write", "runs:read")
    run = Client(server, token).begin_run("one")
    writer = Writer(server, token, run, 0)
    writer.start()
    copy, again = tmp_path / "copy.db", tmp_path / "again"
    while writer.acknowledged < 3:
        assert writer.is_alive()
    before = writer.acknowledged
    assert run_program("backup", "--data", data, copy).returncode == 0
    assert run_program("backup", "--data", data, copy).returncode == 2  # never over a file
    server.stop()
    writer.join(60)
    checked = run_program("restore", "--check", copy)
    assert checked.returncode == 0 and "rows of audit" in checked.stdout
    assert run_program("restore", "--data", again, copy).returncode == 0
    assert run_program("restore", "--data", again, copy).returncode == 2
    restored = Server(again)
    try:
        assert Client(restored, token).get(f"/api/v1/runs/{run}").json["last_sequence"] >= before
        assert Client(restored).sign_in("owner@example.com").status == 303
    finally:
        restored.stop()


@on_sqlite
def test_a_copy_that_is_killed_leaves_no_file_of_its_name(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    server = Server(data, "--limits", "1000000")
    owner = sign_up(server, server.first_key(), "owner")
    program = Client(server, make_token(owner, first_team(owner), "runs:write", "runs:read"))
    run = program.begin_run("one")
    for sequence in range(1, 41):  # some MB
        noise = [{"step": sequence * 1000 + i, "peak_bytes": random.getrandbits(60)} for i in range(900)]
        assert program.append(run, sequence, noise).status == 200
    server.stop()
    copy, again = tmp_path / "copy.db", tmp_path / "again"
    seconds, killed = 0.0, 0
    for command in (["backup", "--data", data, copy], ["restore", "--data", again, copy]):
        made = command[-1] if command[0] == "backup" else again / "memscale.db"
        while not made.exists():
            with subprocess.Popen([PROGRAM, *map(str, command)], stdout=subprocess.DEVNULL) as process:
                time.sleep(seconds)
                process.kill()
            killed += process.returncode == -signal.SIGKILL
            seconds += 0.002
            assert made.exists() or not list(made.parent.glob(made.name + "-*"))
        assert run_program("restore", "--check", made).returncode == 0
        assert not made.with_name(made.name + ".part").exists()
        seconds = 0.0
    assert killed > 4
    restored = Server(again)
    try:
        assert Client(restored).sign_in("owner@example.com").status == 303
    finally:
        restored.stop()


@pytest.fixture
def whole_copy(data: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    server = Server(data)
    owner = sign_up(server, server.first_key(), "owner")
    program = Client(server, make_token(owner, first_team(owner), "runs:write"))
    program.append(program.begin_run("one"), 1, steps(1, 500))
    server.stop()
    copy = tmp_path / "copy.db"
    assert run_program("backup", "--data", data, copy).returncode == 0
    return copy


def change(path: pathlib.Path, statements: str) -> None:
    """Past the server; closed, so that the file alone holds it."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(statements)
        database.commit()


@on_sqlite
@pytest.mark.parametrize(
    "damage, part",
    [
        ("DROP TRIGGER audit_update; UPDATE audit SET verb = 'nothing' WHERE number = 2", "audit: row 2"),
        ("DROP TRIGGER audit_delete; DELETE FROM audit WHERE number = 2", "audit: row 3"),
        ("DROP TRIGGER audit_update; UPDATE audit SET happened_at = happened_at - 1 WHERE number = 1", "audit: row 1"),
        ("PRAGMA foreign_keys = OFF; DELETE FROM account", "foreign_key_check"),
    ],
)
def test_a_copy_that_was_tampered_with_is_found(whole_copy: pathlib.Path, damage: str, part: str) -> None:
    change(whole_copy, damage)
    checked = run_program("restore", "--check", whole_copy)
    assert checked.returncode == 1 and part in checked.stderr


@on_sqlite
def test_a_copy_with_a_damaged_page_is_found(whole_copy: pathlib.Path) -> None:
    data = bytearray(whole_copy.read_bytes())
    for at in range(4096 * 2, len(data), 4096):
        data[at : at + 16] = bytes(16)
    whole_copy.write_bytes(data)
    assert run_program("restore", "--check", whole_copy).returncode == 1


@on_sqlite
def test_a_database_of_a_newer_program_is_left_alone(whole_copy: pathlib.Path, tmp_path: pathlib.Path) -> None:
    change(whole_copy, "UPDATE schema_version SET version = 99")
    newer = tmp_path / "newer"
    newer.mkdir()
    shutil.copy(whole_copy, newer / "memscale.db")
    started = run_program("--data", newer, "--port", "0", *AS_USER)
    assert started.returncode == 1 and "99" in started.stderr


class FullDisk:
    """A file system of 4 MB for the database, and a file that takes what is left of it but for 200 kB."""

    status = 503  # no room

    def __init__(self, data: pathlib.Path) -> None:
        data.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "memscale-test", str(data)], capture_output=True
        )
        if done.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {done.stderr.decode().strip()}")
        self.data, self._ballast = data, data / "ballast"

    def fill(self, server: Server) -> None:
        free = os.statvfs(self.data)
        self._ballast.write_bytes(bytes(free.f_bavail * free.f_bsize - 200_000))

    def empty(self, server: Server) -> None:
        self._ballast.unlink()

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.data)], check=True)


class SizeLimit:
    """The server's files may not grow by more than 200 kB."""

    status = 500  # an error of writing

    def __init__(self, data: pathlib.Path) -> None:
        self.data = data

    def fill(self, server: Server) -> None:
        size = sum(path.stat().st_size for path in self.data.iterdir())
        subprocess.run(["prlimit", "--pid", str(server.process.pid), f"--fsize={size + 200_000}:"], check=True)

    def empty(self, server: Server) -> None:
        subprocess.run(["prlimit", "--pid", str(server.process.pid), "--fsize=unlimited:"], check=True)

    def close(self) -> None:
        pass


@on_sqlite
@pytest.mark.parametrize("disk", [FullDisk, SizeLimit])
def test_a_full_disk_is_told_and_nothing_is_lost(data: pathlib.Path, disk: type[FullDisk] | type[SizeLimit]) -> None:
    """The database may not grow: what was acknowledged stays, and what can't be stored is refused."""
    place = disk(data)
    try:
        fill_and_empty(data, place)
    finally:
        place.close()


def fill_and_empty(data: pathlib.Path, place: FullDisk | SizeLimit) -> None:
    server = Server(data, "--limits", "1000000")
    owner = sign_up(server, server.first_key(), "owner")
    token = make_token(owner, first_team(owner), "runs:write", "runs:read")
    program = Client(server, token)
    run = program.begin_run("one")
    place.fill(server)
    kept = 0
    for sequence in range(1, 500):
        noise = [{"step": sequence * 1000 + i, "peak_bytes": random.getrandbits(60)} for i in range(300)]
        answer = program.append(run, sequence, noise)
        if answer.status != 200:
            break
        kept = sequence
    assert answer.status == place.status and answer.headers["content-type"] == "application/problem+json"
    assert server.wait_for_log(answer.json["instance"])["reason"]
    assert program.get(f"/api/v1/runs/{run}").json["last_sequence"] == kept
    place.empty(server)
    assert program.append(run, kept + 1, steps((kept + 1) * 1000, 1)).status == 200
    server.stop(signal.SIGKILL)
    again = Server(data)
    try:
        assert Client(again, token).get(f"/api/v1/runs/{run}").json["last_sequence"] == kept + 1
    finally:
        again.stop()


@on_sqlite
def test_a_locked_database_is_told_and_waited_for(data: pathlib.Path) -> None:
    """Another process holds the write lock: reads go on, a short lock is waited for, a long one is a 503."""
    server = Server(data, "--limits", "1000000")
    try:
        owner = sign_up(server, server.first_key(), "owner")
        token = make_token(owner, first_team(owner), "runs:write", "runs:read")
        program = Client(server, token)
        run = program.begin_run("one")
        with contextlib.closing(sqlite3.connect(data / "memscale.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            writer = Writer(server, token, run, 0)
            writer.start()
            assert program.get(f"/api/v1/runs/{run}").json["last_sequence"] == 0
            other.execute("ROLLBACK")
            while writer.acknowledged == 0:
                assert writer.is_alive()
            other.execute("BEGIN IMMEDIATE")
            writer.join(120)  # it ends at the first answer that is no 200
            kept = writer.acknowledged
            refused = program.append(run, kept + 1, steps((kept + 1) * 10, 10))
            assert refused.status == 503 and int(refused.headers["retry-after"]) > 0
            assert "locked" in server.wait_for_log(refused.json["instance"])["reason"]
            assert program.get(f"/api/v1/runs/{run}").json["last_sequence"] == kept
            other.execute("ROLLBACK")
        assert program.append(run, kept + 1, steps((kept + 1) * 10, 10)).json["counted"] is True
    finally:
        server.stop()


class Shifted(Server):
    """The server under libfaketime, whose shift of the wall clock is in a file."""

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(), "LD_PRELOAD": FAKETIME, "FAKETIME_TIMESTAMP_FILE": str(self.data.parent / "shift"),
            "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # An instrumented build wants to be loaded first.
            "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0:detect_leaks=0",
        }  # fmt: skip

    def shift(self, days: int) -> None:
        (self.data.parent / "shift").write_text(f"{days:+d}d\n")


def test_a_clock_that_jumps_ends_what_has_expired_and_loses_nothing(data: pathlib.Path) -> None:
    if FAKETIME is None:
        pytest.skip("libfaketime is not installed")
    (data.parent / "shift").write_text("+0d\n")
    server = Shifted(data, "--limits", "1000000")
    try:
        owner = sign_up(server, server.first_key(), "owner")
        team = first_team(owner)
        program = Client(server, make_token(owner, team, "runs:write", "runs:read"))
        run = program.begin_run("now")
        assert program.append(run, 1, steps(1, 5)).status == 200
        links = [invite(owner, team, "viewer") for _ in range(2)]
        server.shift(6)
        assert owner.get("/account").status == 200
        sign_up(server, links[0], "in-time")
        server.shift(8)
        assert Client(server).get(f"/welcome/{links[1]}").status == 404
        server.shift(15)
        assert owner.get("/account").status == 303  # the session has expired
        assert program.append(run, 2, steps(6, 5)).status == 200  # tokens do not
        later = program.begin_run("later")
        server.shift(-400)
        assert program.append(run, 3, steps(11, 5)).status == 200
        earlier = program.begin_run("earlier")
        assert Client(server).sign_in("owner@example.com").status == 303
        seen, cursor = [], ""
        while cursor is not None:
            page = program.get(f"/api/v1/runs?limit=1{cursor}").json
            seen += [item["id"] for item in page["items"]]
            cursor = page["next_cursor"] and f"&cursor={page['next_cursor']}"
        assert seen == [later, run, earlier]
        assert program.send("POST", f"/api/v1/runs/{run}/finish", {"outcome": "finished"}).status == 204
        assert [line for line in server.log() if line.get("status", 0) >= 500] == []
    finally:
        server.stop()
    check_database(data)


def test_the_process_leaves_no_core_and_gains_no_privileges(server: Server) -> None:
    process = pathlib.Path(f"/proc/{server.process.pid}")
    core = next(line for line in (process / "limits").read_text().splitlines() if line.startswith("Max core"))
    assert core.split()[4:6] == ["0", "0"]
    assert "NoNewPrivs:\t1" in (process / "status").read_text()
