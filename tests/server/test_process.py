"""The real program gives its rights up: what the kernel says of it, and what code inside it is refused.

Each right is attacked on its own in tests/server/c/test_process.c and test_filter.c.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import pathlib
import platform
import pwd
import shutil
import sqlite3
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator

import databases
import pytest
from server_support import PATIENCE_S, PROGRAM, Client, Server, on_sqlite, run_program, sign_up, steps
from test_dashboard import Dashboard, wait_for
from test_dashboard import line as log_line

HERE = pathlib.Path(__file__).parent
HAS_FILTERS = "Seccomp:" in pathlib.Path("/proc/self/status").read_text() and platform.machine() in (
    "x86_64", "aarch64", "riscv64", "ppc64le", "loongarch64",
)  # fmt: skip
LANDLOCK = max(
    0, ctypes.CDLL(None).syscall(444, None, 0, 1)
)  # its level: landlock_create_ruleset has this number everywhere
with_filters = pytest.mark.skipif(not HAS_FILTERS, reason="no filter of system calls on this machine")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def status_of(process: int | str) -> dict[str, str]:
    """What the kernel says of a process or thread."""
    lines = pathlib.Path(f"/proc/{process}/status").read_text().splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def assert_closed(process: int) -> None:
    """No new privileges and a filter of system calls, for every thread."""
    for thread in pathlib.Path(f"/proc/{process}/task").iterdir():
        status = status_of(f"{process}/task/{thread.name}")
        assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", (thread, status)


# ---- code inside the program -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def takeover(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """takeover.c as a library."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("takeover") / "takeover.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, HERE / "takeover.c", "-ldl"], check=True)
    return library


def attacker(library: pathlib.Path, elsewhere: pathlib.Path) -> dict[str, str]:
    """What a program that holds the attacker's code has in its environment."""
    return {
        "LD_PRELOAD": str(library),
        "ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0",
        "MEMSCALE_TEST_ELSEWHERE": str(elsewhere),
    }


def attacks_on(server: Server) -> dict[str, int]:
    """What each attack met."""
    Client(server).get("/healthz")
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        met = {line["attack"]: line["errno"] for line in server.log() if "attack" in line}
        if len(met) == 5:
            return met
        time.sleep(0.01)
    raise AssertionError("the attacker's code did not run")


class TakenOver(Server):
    """A server that holds the attacker's code."""

    def __init__(self, data: pathlib.Path, more: dict[str, str]) -> None:
        self.more = more
        super().__init__(data)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.more}


class TakenOverDashboard(Dashboard):
    """A dashboard that holds it."""

    def __init__(self, folder: pathlib.Path, temporary: pathlib.Path, more: dict[str, str]) -> None:
        self.more = more
        super().__init__(folder, temporary)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.more}


@pytest.fixture
def elsewhere() -> Iterator[pathlib.Path]:
    """A file in a folder that anyone may write to, so that only the process's own limits protect it."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder).chmod(0o777)
        yield pathlib.Path(folder) / "file"


BY_LANDLOCK = {"write elsewhere": errno.EACCES, "call home": errno.EACCES}
BY_FILTER = {"listen elsewhere": errno.ENOSYS, "hide a program in memory": errno.ENOSYS, "write code": errno.ENOSYS}


def assert_refused(met: dict[str, int], elsewhere: pathlib.Path) -> None:
    """What this kernel can refuse."""
    for wanted, has in ((BY_LANDLOCK, LANDLOCK >= 4), (BY_FILTER, HAS_FILTERS)):
        assert not has or {name: met[name] for name in wanted} == wanted, met
    assert LANDLOCK == 0 or not elsewhere.exists()


@on_sqlite
def test_code_inside_the_server_is_confined(
    data: pathlib.Path, takeover: pathlib.Path, elsewhere: pathlib.Path
) -> None:
    server = TakenOver(data, attacker(takeover, elsewhere))
    try:
        assert_refused(attacks_on(server), elsewhere)
    finally:
        server.stop()


def test_code_inside_the_dashboard_is_confined(
    tmp_path: pathlib.Path, takeover: pathlib.Path, elsewhere: pathlib.Path
) -> None:
    folder, temporary = tmp_path / "logs", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    dashboard = TakenOverDashboard(folder, temporary, attacker(takeover, elsewhere))
    try:
        assert_refused(attacks_on(dashboard), elsewhere)
        (folder / "run.log").write_text(log_line("step", step={"step": 1}))
        wait_for(Client(dashboard), bool)  # it still does its work
    finally:
        dashboard.stop()
    assert list(temporary.iterdir()) == []


# ---- what the kernel says ----------------------------------------------------------------------------------


@with_filters
def test_every_thread_of_the_server_is_filtered(server: Server, program: Client, key) -> None:
    program.append(program.begin_run(key()), 1, steps(1, 3))
    assert_closed(server.process.pid)


@with_filters
def test_every_thread_of_the_dashboard_is_filtered(tmp_path: pathlib.Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    dashboard = Dashboard(tmp_path, temporary)
    try:
        Client(dashboard).get("/healthz")
        assert status_of(dashboard.process.pid)["Seccomp"] == "2"
        assert_closed(dashboard.process.pid)
    finally:
        dashboard.stop()


@with_filters
@pytest.mark.parametrize("worker", ["plan-worker", "frontier-worker"])
def test_a_worker_is_filtered_before_it_reads(worker: str) -> None:
    line = [PROGRAM, worker]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + PATIENCE_S
        while status_of(process.pid)["Seccomp"] != "2":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        told, _ = process.communicate(b"{}")
        assert b"$." in told  # and it still reads


@with_filters
@on_sqlite
def test_a_command_that_opens_a_database_is_filtered(data: pathlib.Path) -> None:
    """It waits for whoever reads what it prints, and can be looked at."""
    Server(data).stop()
    with contextlib.closing(sqlite3.connect(data / "memscale.db")) as database:
        database.execute("INSERT INTO telemetry VALUES ('2026-01-31', ?)", ("x" * 1_000_000,))
        database.commit()
    line = [PROGRAM, "telemetry", "--data", str(data)]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.read(1) == b"x"
        assert_closed(process.pid)
        assert len(process.stdout.read()) == 1_000_000
    assert process.returncode == 0


# ---- root ----------------------------------------------------------------------------------------------------

NOBODY = "nobody"


@pytest.fixture
def open_folder() -> Iterator[pathlib.Path]:
    """A folder that every user reaches; pytest's are this user's alone."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder).chmod(0o711)
        yield pathlib.Path(folder)


class AsNobody(Server):
    """Started by root, told to become someone else."""

    def command(self, data: pathlib.Path, options: tuple[str, ...]) -> list[str]:
        return [PROGRAM, "--data", str(data), "--port", "0", "--user", NOBODY, *options]


@as_root
@on_sqlite
def test_a_server_that_root_starts_becomes_another_user(database: databases.Sqlite, open_folder: pathlib.Path) -> None:
    del database
    data = open_folder / "data"
    wanted = pwd.getpwnam(NOBODY)
    server = AsNobody(data)
    try:
        owner = sign_up(server, server.first_key(), "owner")
        assert owner.get("/api/v1/account").status == 200
        for thread in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
            status = status_of(f"{server.process.pid}/task/{thread.name}")
            assert status["Uid"].split() == [str(wanted.pw_uid)] * 4
            assert status["Gid"].split() == [str(wanted.pw_gid)] * 4
            assert status["Groups"] == "" and int(status["CapPrm"], 16) == 0
        for path in (data, *data.iterdir()):
            assert path.stat().st_uid == wanted.pw_uid and stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    finally:
        server.stop()
    assert run_program("restore", "--check", data / "memscale.db").returncode == 0


@as_root
@on_sqlite
def test_root_that_keeps_its_number_has_no_capability(data: pathlib.Path) -> None:
    server = Server(data)  # with --user root, as all servers of these tests
    try:
        status = status_of(server.process.pid)
        assert status["Uid"].split()[0] == "0"
        assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {0}
    finally:
        server.stop()


def refused(*options: object) -> str:
    """The one line of a server that doesn't start."""
    ran = run_program(*options)
    assert ran.returncode == 1 and ran.stdout == "" and ran.stderr.count("\n") == 1, ran
    return ran.stderr


@as_root
@on_sqlite
def test_root_that_names_nobody_is_told_what_to_do(data: pathlib.Path, database: databases.Sqlite) -> None:
    del database
    assert "--user" in refused("--data", data, "--port", 0)
    assert "no such user" in refused("--data", data, "--port", 0, "--user", "nobody-at-all")
    assert not data.exists()


@as_root
@on_sqlite
def test_a_database_that_the_user_may_not_open_is_told(database: databases.Sqlite, open_folder: pathlib.Path) -> None:
    del database
    data = open_folder / "data"
    data.mkdir(mode=0o700)
    assert "memscale.db" in refused("--data", data, "--port", 0, "--user", NOBODY)


@as_root
@on_sqlite
def test_only_root_becomes_another_user(database: databases.Sqlite, open_folder: pathlib.Path) -> None:
    del database
    line = [PROGRAM, "--data", str(open_folder / "data"), "--port", "0", "--user", "root"]
    ran = subprocess.run(
        line, user=NOBODY, group=0, extra_groups=[], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ran.returncode == 1 and "only root" in ran.stderr
