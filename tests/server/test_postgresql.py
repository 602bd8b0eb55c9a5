"""A server with PostgreSQL: a database that goes and comes back, locks, copies, and a password that nobody is told."""

from __future__ import annotations

import http.client
import os
import pathlib
import signal
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator

import pytest
from databases import PASSWORD, USER, Postgres
from server_support import (
    AS_USER,
    PATIENCE_S,
    PROGRAM,
    Client,
    Server,
    check_database,
    first_team,
    make_token,
    on_postgresql,
    run_program,
    sign_up,
    steps,
)

pytestmark = on_postgresql
WRITE_LOCK = int.from_bytes(b"memscale", "big")


@pytest.fixture
def running(data: pathlib.Path) -> Iterator[Server]:
    """A server of one's own, with an account."""
    server = Server(data, "--limits", "1000000")
    yield server
    server.stop()


def make_program(server: Server) -> Client:
    owner = sign_up(server, server.first_key(), "owner")
    return Client(server, make_token(owner, first_team(owner), "runs:write", "runs:read"))


def messages(server: Server, part: str) -> list[str]:
    """Lines of the log that are about no request, and have this part."""
    return [line["message"] for line in server.log() if part in line.get("message", "")]


def wait_for(what, *arguments):
    """The first true value of what(*arguments)."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = what(*arguments)
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"in vain: {what}")


@pytest.mark.parametrize("name", ["compact", "sql", "second_factor"])
def test_the_store_s_own_tests_pass(database: Postgres, data: pathlib.Path, name: str) -> None:
    program = pathlib.Path(PROGRAM).parents[1] / "tests" / "server" / f"test_server_{name}"
    if not program.exists():
        pytest.skip("the C tests are not built")
    environment = {**os.environ, **database.environment(), "MEMSCALE_TEST_DATABASE": database.url(data)}
    ran = subprocess.run([program], env=environment, capture_output=True, text=True, cwd=data.parent)
    assert ran.returncode == 0, ran.stdout + ran.stderr


# ---- faults ----------------------------------------------------------------------


def is_problem(answer, status: int) -> bool:
    return answer.status == status and answer.headers["content-type"] == "application/problem+json"


class Stubborn(threading.Thread):
    """Appends to a run whatever happens, as a client does: what was refused is sent again."""

    def __init__(self, server: Server, token: str | None, run: str) -> None:
        super().__init__(daemon=True)
        self.client = Client(server, token)
        self.run_id = run
        self.acknowledged = 0
        self.refused: list = []
        self.is_ending = False

    def run(self) -> None:
        while not self.is_ending:
            sequence = self.acknowledged + 1
            answer = self.client.append(self.run_id, sequence, steps(sequence * 10, 10))
            if answer.status == 200:
                self.acknowledged = sequence
            else:
                self.refused.append(answer)
                time.sleep(0.02)


def have_grown(writers: list[Stubborn], before: list[int], by: int) -> bool:
    return all(writer.acknowledged > count + by for writer, count in zip(writers, before, strict=True))


def has_more(refused: list, than: int) -> bool:
    return len(refused) > than


def test_a_database_that_crashes_and_comes_back_has_lost_nothing(database: Postgres, running: Server) -> None:
    program = make_program(running)
    writers = [Stubborn(running, program.token, program.begin_run(f"writer-{i}")) for i in range(3)]
    for writer in writers:
        writer.start()
    for _ in range(2):
        before = [writer.acknowledged for writer in writers]
        wait_for(have_grown, writers, before, 5)
        seen = len(writers[0].refused)
        database.stop(signal.SIGQUIT)
        try:
            wait_for(has_more, writers[0].refused, seen)
            assert program.get("/healthz").status == 200
            assert is_problem(program.get("/readyz"), 503)
        finally:
            database.start()
    last = [writer.acknowledged for writer in writers]
    wait_for(have_grown, writers, last, 0)
    for writer in writers:
        writer.is_ending = True
        writer.join(PATIENCE_S)
        assert all(is_problem(answer, 503) and int(answer.headers["retry-after"]) > 0 for answer in writer.refused)
        run = program.get(f"/api/v1/runs/{writer.run_id}").json
        assert run["last_sequence"] == writer.acknowledged and run["step_count"] == 10 * writer.acknowledged
    for answer in (answer for writer in writers for answer in writer.refused):
        assert running.wait_for_log(answer.json["instance"])["reason"]
    wait_for(lambda: len(messages(running, "the database is back")) == 2)
    assert len(messages(running, "the database is gone")) == 2  # one line each time
    assert [line for line in running.log() if line.get("status") == 500] == []
    check_database(running.data)


def test_a_restart_between_two_requests_is_not_noticed(database: Postgres, running: Server) -> None:
    program = make_program(running)
    run = program.begin_run("one")
    database.stop(signal.SIGINT)
    database.start()
    for sequence in range(1, 8):
        assert program.append(run, sequence, steps(sequence * 10, 10)).status == 200
        assert program.get(f"/api/v1/runs/{run}").json["last_sequence"] == sequence


def test_a_server_without_its_database_does_not_start(database: Postgres, data: pathlib.Path) -> None:
    url = database.url(data)
    started = run_program("--database", url.replace(f":{database.port}/", ":1/"), "--port", "0", *AS_USER)
    assert started.returncode == 1 and "Connection refused" in started.stderr
    started = run_program("--database", url + "-none", "--port", "0", *AS_USER)
    assert started.returncode == 1 and "does not exist" in started.stderr


def test_a_locked_database_is_told_after_ten_seconds(database: Postgres, running: Server) -> None:
    """Another holds the write lock: reads go on, and a write is a 503."""
    program = make_program(running)
    run = program.begin_run("one")
    line = [
        database.programs / "psql", "-h", database.folder, "-p", str(database.port), "-U", USER, "-At",
        database.database_of(running.data),
    ]  # fmt: skip
    other = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None and other.stdout is not None
    other.stdin.write(f"SELECT 'has it', pg_advisory_lock({WRITE_LOCK});\n")
    other.stdin.flush()
    assert "has it" in other.stdout.readline()
    refused = program.append(run, 1, steps(1, 10))
    assert is_problem(refused, 503) and int(refused.headers["retry-after"]) > 0
    assert "lock timeout" in running.wait_for_log(refused.json["instance"])["reason"]
    assert program.get(f"/api/v1/runs/{run}").json["last_sequence"] == 0
    other.communicate("")
    assert program.append(run, 1, steps(1, 10)).json["counted"] is True


def test_a_commit_is_on_the_disk_whatever_the_database_s_default(database: Postgres, running: Server) -> None:
    assert database.sql(running.data, "SHOW synchronous_commit") == "off"
    make_program(running)
    before = database.sql(running.data, "SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn()")
    assert before == "0"


def test_a_viewer_that_may_have_missed_something_is_told_to_look_again(database: Postgres, running: Server) -> None:
    program = make_program(running)
    run = program.begin_run("one")
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=PATIENCE_S)
    connection.request("GET", f"/api/v1/runs/{run}/events", headers={"Authorization": f"Bearer {program.token}"})
    stream = connection.getresponse()
    assert stream.readline()
    cut_off = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = "
    assert database.sql(running.data, f"{cut_off} current_database()") == "t"
    while stream.readline() != b"event: reload\n":
        pass
    assert program.append(run, 1, steps(1, 5)).status == 200
    while b'"sequence":1' not in stream.readline():
        pass
    connection.close()


def test_a_unix_socket_is_a_way_too(database: Postgres, data: pathlib.Path) -> None:
    """Also again, from within the confined process."""

    class Local(Server):
        def command(self, data: pathlib.Path, options: tuple[str, ...]) -> list[str]:
            folder = urllib.parse.quote(str(database.folder), safe="")
            url = f"postgresql://{USER}@{folder}:{database.port}/{database.database_of(data)}"
            return [PROGRAM, "--data", str(data), "--database", url, "--port", "0", *AS_USER, *options]

    database.folder.chmod(0o711)  # root without capabilities goes through no door that is closed to others
    server = Local(data, "--limits", "1000000")
    try:
        program = make_program(server)
        database.stop(signal.SIGINT)
        database.start()
        assert program.append(program.begin_run("one"), 1, steps(1, 10)).status == 200
        assert list(data.iterdir()) == []
    finally:
        server.stop()


def test_full_buckets_are_forgotten(database: Postgres, running: Server) -> None:
    """A bucket of an hour ago goes; one that has yet to fill stays."""
    now = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT) * 1000"
    hour = "CAST(3600 AS BIGINT) * 1000000000"
    database.sql(running.data, f"INSERT INTO bucket VALUES (1, {now} - {hour}), (2, {now} + {hour})")
    make_program(running)
    assert database.sql(running.data, "SELECT key FROM bucket WHERE key IN (1, 2)") == "2"


def test_a_database_of_another_encoding_is_refused(database: Postgres, data: pathlib.Path) -> None:
    name = f"latin{os.getpid()}"
    database.run(
        "createdb", "-h", database.folder, "-p", database.port, "-U", USER, "-E", "LATIN1", "--locale=C",
        "-T", "template0", name,
    )  # fmt: skip
    started = run_program(
        "--database", f"postgresql://{USER}@127.0.0.1:{database.port}/{name}", "--port", "0", *AS_USER
    )
    assert started.returncode == 1 and "LATIN1; it must be UTF8" in started.stderr


# ---- the password -------------------------------------------------------------------


def test_a_password_is_told_nowhere(database: Postgres, running: Server) -> None:
    make_program(running)
    database.stop(signal.SIGQUIT)
    try:
        assert Client(running).get("/readyz").status == 503
    finally:
        database.start()
    process = pathlib.Path(f"/proc/{running.process.pid}")
    assert PASSWORD not in (process / "cmdline").read_text() + (process / "comm").read_text()
    assert PASSWORD not in "".join(running.log_lines)


@pytest.mark.parametrize("form", ["postgresql://u:{}@127.0.0.1:1/x", "postgres://127.0.0.1:1/x?password={}"])
@pytest.mark.parametrize("command", [[], ["backup", "copy"], ["restore", "copy"], ["restore", "--check"]])
def test_a_password_on_the_command_line_is_refused(data: pathlib.Path, form: str, command: list[str]) -> None:
    ran = run_program(*command, "--database", form.format("s3cret"))
    assert ran.returncode == 1 and "PGPASSFILE" in ran.stderr and "s3cret" not in ran.stderr


def test_a_malformed_url_is_not_repeated(data: pathlib.Path) -> None:
    ran = run_program("--database", "postgresql://u:s3cret@host:1:2/x?nothing=1")
    assert ran.returncode == 1 and "no URL" in ran.stderr and "s3cret" not in ran.stderr
    for wrong in ("mysql://host/x", "/a/file", ""):
        assert run_program("--database", wrong).returncode == 2


def test_a_wrong_password_is_told_without_it(database: Postgres, data: pathlib.Path) -> None:
    environment = {**os.environ, "PGPASSWORD": "wr0ng-one"}
    line = [PROGRAM, "--database", database.url(data), "--port", "0", *AS_USER]
    ran = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode == 1 and "authentication failed" in ran.stderr and "wr0ng-one" not in ran.stderr


def test_a_password_may_come_from_a_file(database: Postgres, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "passwords"
    file.write_text(f"127.0.0.1:{database.port}:*:{USER}:{PASSWORD}\n")
    file.chmod(0o600)
    environment = {name: value for name, value in os.environ.items() if name != "PGPASSWORD"}
    line = [PROGRAM, "restore", "--check", "--database", database.url(data)]
    run_program("--database", database.url(data) + "-none", *AS_USER)
    Server(data).stop()
    for passwords, status in ((file, 0), (tmp_path / "none", 1)):
        ran = subprocess.run(line, env={**environment, "PGPASSFILE": str(passwords)}, capture_output=True, text=True)
        assert ran.returncode == status, ran.stderr


# ---- copies ----------------------------------------------------------------------


def test_backup_and_restore_name_the_programs_to_use(database: Postgres, data: pathlib.Path) -> None:
    url = database.url(data)
    ran = run_program("backup", "--database", url, "copy")
    assert ran.returncode == 2 and f"pg_dump --format=custom --file=COPY {url}" in ran.stderr
    ran = run_program("restore", "--database", url, "copy")
    assert ran.returncode == 2 and f"pg_restore COPY --dbname={url}" in ran.stderr
    assert run_program("dashboard", "--database", url).returncode == 2


def test_a_copy_is_made_by_pg_dump_checked_and_put_back(
    database: Postgres, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    server = Server(data, "--limits", "1000000")
    program = make_program(server)
    writer = Stubborn(server, program.token, program.begin_run("one"))
    writer.start()
    wait_for(lambda: writer.acknowledged >= 3)
    before = writer.acknowledged
    copy, again = database.folder / f"copy-{os.getpid()}", tmp_path / "again"
    to = ["-h", database.folder, "-p", database.port, "-U", USER]
    database.run("pg_dump", *to, "--format=custom", f"--file={copy}", database.database_of(data))
    writer.is_ending = True
    writer.join(PATIENCE_S)
    server.stop()
    database.run("pg_restore", *to, f"--dbname={database.database_of(again)}", copy)
    checked = run_program("restore", "--check", "--database", database.url(again))
    assert checked.returncode == 0 and "rows of audit" in checked.stdout
    restored = Server(again)
    try:
        run = Client(restored, program.token).get(f"/api/v1/runs/{writer.run_id}").json
        assert run["last_sequence"] >= before
    finally:
        restored.stop()
    database.sql(again, "DROP TRIGGER audit_change ON audit")
    database.sql(again, "UPDATE audit SET verb = 'nothing' WHERE number = 2")
    checked = run_program("restore", "--check", "--database", database.url(again))
    assert checked.returncode == 1 and "audit: row 2" in checked.stderr


def test_a_database_of_a_newer_program_is_left_alone(database: Postgres, data: pathlib.Path) -> None:
    Server(data).stop()
    database.sql(data, "UPDATE schema_version SET version = 99")
    started = run_program("--database", database.url(data), "--port", "0", *AS_USER)
    assert started.returncode == 1 and "99" in started.stderr
