"""The databases that servers under test keep their data in: a file of SQLite's, or a PostgreSQL cluster of our own.

A folder stands for a database: servers that are started with the same folder, one after the other or at once, use the
same one. The cluster is Debian's, started once per test process on loopback, below a folder of its own.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time
from typing import Any

import pytest

UNPACKED = pathlib.Path(__file__).resolve().parents[2] / "build" / "programs"  # by scripts/test_server.sh
PASSWORD = "pg-secret-of-the-tests"
USER = "memscale"
PATIENCE_S = 120.0


# No sync: what a killed process has written is kept by the system. But a commit isn't even written before it is
# acknowledged, unless the server asks for that.
QUICK = """\
fsync = off
synchronous_commit = off
wal_writer_delay = 10s
shared_buffers = 16MB
max_connections = 200
autovacuum = off
"""


class Sqlite:
    """One file below the folder."""

    name = "sqlite"

    def options(self, data: pathlib.Path) -> list[str]:
        """What tells a server where its database is."""
        return ["--data", str(data)]

    def environment(self) -> dict[str, str]:
        """What a server needs to get at it."""
        return {}

    def forget(self, data: pathlib.Path) -> None:
        """The test's folder goes with the test."""

    def sql(self, data: pathlib.Path, text: str) -> str:
        """Past the server: the first row, if there is one."""
        with contextlib.closing(sqlite3.connect(data / "memscale.db")) as file, file:
            file.execute("PRAGMA foreign_keys = ON")
            return "|".join(map(str, file.execute(text).fetchone() or ()))


def find_programs() -> pathlib.Path | None:
    """The folder of `initdb` and `postgres`: Debian has one for each version, none of them on the PATH."""
    found = shutil.which("initdb")
    if found is not None:
        return pathlib.Path(found).resolve().parent
    places = ["/usr/lib/postgresql", UNPACKED / "usr" / "lib" / "postgresql"]
    folders = [path.parent for place in places for path in pathlib.Path(place).glob("*/bin/initdb")]
    return max(folders, key=lambda path: float(path.parent.name), default=None)


def other_user() -> dict[str, Any]:
    """PostgreSQL refuses to run as root; Debian's package has a user for it."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return {}


def runs(program: pathlib.Path) -> bool:
    """Whether a program and its libraries are there, for that user."""
    try:
        return subprocess.run([program, "--version"], capture_output=True, cwd="/", **other_user()).returncode == 0
    except OSError:
        return False


def free_port() -> int:
    """A port of loopback that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def quick_folder() -> str | None:
    """Memory if there is enough: a database has 300 files, and a test needs one database or more."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage("/dev/shm").free > 1 << 30:
            return "/dev/shm"
    return None


class Postgres:
    """A cluster, quick or as Debian has it. It may be stopped, killed and started again."""

    name = "postgresql"

    def __init__(self, programs: pathlib.Path, is_quick: bool = True) -> None:
        self.programs = programs
        self.folder = pathlib.Path(
            tempfile.mkdtemp(prefix="memscale-postgresql-", dir=quick_folder() if is_quick else None)
        )
        self.port = free_port()
        self._names: dict[pathlib.Path, str] = {}
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._as = other_user()
        if self._as:
            os.chown(self.folder, self._as["user"], self._as["group"])
        (self.folder / "password").write_text(PASSWORD)
        self.run(
            "initdb", "-D", self.folder / "data", "-U", USER, "-E", "UTF8", "--locale=C.UTF-8", "--no-sync",
            "--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={self.folder / 'password'}",
        )  # fmt: skip
        (self.folder / "data" / "postgresql.auto.conf").write_text(
            f"listen_addresses = '127.0.0.1'\nport = {self.port}\nunix_socket_directories = '{self.folder}'\n"
            + (QUICK if is_quick else "")
        )
        self.start()

    def run(self, program: str, *arguments: object) -> str:
        """Runs one of PostgreSQL's programs and gives what it prints."""
        line = [str(self.programs / program), *map(str, arguments)]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S, cwd="/", **self._as)
        assert ran.returncode == 0, ran.stderr
        return str(ran.stdout)

    def start(self) -> None:
        """Starts it and waits until it answers."""
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [str(self.programs / "postgres"), "-D", str(self.folder / "data")],
                stdout=log, stderr=log, cwd="/", **self._as,
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(AssertionError):
                self.run("psql", "-h", self.folder, "-p", self.port, "-U", USER, "-c", "", "postgres")
                return
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self, how: int) -> None:
        """SIGINT: it ends its clients first. SIGQUIT: at once, as after a crash."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(PATIENCE_S)

    def close(self) -> None:
        """Ends it for good, and without writing anything more."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def database_of(self, data: pathlib.Path) -> str:
        """The name of the folder's database, which is made at its first use."""
        if data not in self._names:
            self._count += 1
            self._names[data] = f"test{self._count}"
            self.run("createdb", "-h", self.folder, "-p", self.port, "-U", USER, self._names[data])
        return self._names[data]

    def forget(self, data: pathlib.Path) -> None:
        """Drops the folder's database."""
        name = self._names.pop(data, None)
        if name is not None:
            self.run("dropdb", "-h", self.folder, "-p", self.port, "-U", USER, "--force", name)

    def url(self, data: pathlib.Path) -> str:
        """What `--database` takes; without the password."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{self.database_of(data)}"

    def sql(self, data: pathlib.Path, text: str) -> str:
        """Past the server."""
        line = ["-h", self.folder, "-p", self.port, "-U", USER, "-At", "-v", "ON_ERROR_STOP=1", "-c", text]
        return self.run("psql", *line, self.database_of(data)).strip()

    def options(self, data: pathlib.Path) -> list[str]:
        """What tells a server where its database is."""
        return ["--database", self.url(data)]

    def environment(self) -> dict[str, str]:
        """What a server needs to get at it."""
        return {"PGPASSWORD": PASSWORD}


def why_no_postgres(program: str) -> str | None:
    """The reason to skip tests with PostgreSQL; None if there is none."""
    help_text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    built = subprocess.run(
        [program, "restore", "--check", "--database", "postgresql://x:1/x"], capture_output=True, text=True
    )
    if "--database" not in help_text or re.search("without PostgreSQL", built.stderr):
        return "memscale-server was built without libpq"
    programs = find_programs()
    if programs is None or not all(runs(programs / name) for name in ("initdb", "postgres", "psql")):
        return "PostgreSQL is not installed (Debian: postgresql)"
    return None


class Choice:
    """The database that servers get which are started now."""

    def __init__(self) -> None:
        self.now: Sqlite | Postgres = Sqlite()
        self._cluster: Postgres | None = None

    def use(self, name: str, program: str) -> Sqlite | Postgres:
        """Skips if it can't be had."""
        if name == "sqlite":
            self.now = Sqlite()
            return self.now
        why = why_no_postgres(program)
        programs = find_programs()
        if why is not None or programs is None:
            pytest.skip(f"skipped with PostgreSQL: {why}")
        if self._cluster is None:
            self._cluster = Postgres(programs)
        self.now = self._cluster
        return self.now

    def close(self) -> None:
        """Ends the cluster, if there is one."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


choice = Choice()
