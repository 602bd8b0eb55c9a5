"""The dashboard for one: logs below a folder become runs, as they grow; everyone may look, nobody changes anything."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import time
from collections.abc import Callable, Iterator

import jsonschema
import pytest
from server_support import PATIENCE_S, PROGRAM, ROOT, Client, Server, steps

from memscale import _core


class Dashboard(Server):
    """The same binary, told to read logs."""

    def __init__(self, folder: pathlib.Path, temporary: pathlib.Path) -> None:
        self.temporary = temporary
        super().__init__(folder)

    def command(self, data: pathlib.Path, options: tuple[str, ...]) -> list[str]:
        return [PROGRAM, "dashboard", str(data), "--port", "0", *options]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "TMPDIR": str(self.temporary)}


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    made = tmp_path / "logs"
    made.mkdir()
    return made


@pytest.fixture
def dashboard(folder: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Dashboard]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    started = Dashboard(folder, temporary)
    yield started
    assert started.stop() == 0
    assert list(temporary.iterdir()) == []  # the database ended with it


def line(event: str, **members: object) -> str:
    """One of a log, as docs/formats has it."""
    value = {
        "version": 1, "time": "2026-01-31T12:00:00.000+00:00", "level": "debug", "process": 1, "rank": None,
        "event": event, "message": event, **members,
    }  # fmt: skip
    jsonschema.Draft202012Validator(json.loads((ROOT / "docs/formats/log.schema.json").read_text())).validate(value)
    return json.dumps(value) + "\n"


PLAN = {
    "model": "GPT2LMHeadModel", "pressure": {"allowed_bytes": 4000}, "predicted": {"peak_bytes": 3900, "step_ns": 77},
    "entries": [{"name": "layer.0", "technique": "recompute", "rule": "pressure", "saved_bytes": 5, "cost_ns": 7}],
}  # fmt: skip


def wait_for(client: Client, holds: Callable[[list[dict]], bool]) -> list[dict]:
    """The list of runs, as soon as it is as wanted."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        runs = client.get("/api/v1/runs?limit=200").json["items"]
        if holds(runs):
            return runs
        time.sleep(0.05)
    raise AssertionError(runs)


def test_a_log_becomes_a_run_and_grows(dashboard: Dashboard, folder: pathlib.Path) -> None:
    client = Client(dashboard)
    log = folder / "sub" / "run.log"
    log.parent.mkdir()
    with log.open("w") as file:
        file.write(line("message") + line("plan", plan=PLAN))
        file.write("".join(line("step", step=step) for step in steps(1, 5)))
        file.flush()
        (run,) = wait_for(client, lambda runs: len(runs) == 1 and runs[0]["step_count"] == 5)
        assert run["name"] == "sub/run.log" and run["model"] == "GPT2LMHeadModel"
        assert run["started_at"] == "2026-01-31T12:00:00.000Z" and run["outcome"] == "running"
        assert client.get(f"/api/v1/runs/{run['id']}/plan").json == PLAN
        half = line("step", step=steps(6, 1)[0])
        file.write(half[:50])  # the end of a line is not there yet
        file.flush()
        time.sleep(1.5)
        file.write(half[50:] + "".join(line("step", step=step) for step in steps(7, 3)))
        file.flush()
        wait_for(client, lambda runs: runs[0]["step_count"] == 9)
    columns = client.get(f"/api/v1/runs/{run['id']}/steps").json["columns"]
    assert columns["step"] == list(range(1, 10))
    assert columns["peak_bytes"] == [3_900_000_000 + 1000 * number for number in range(1, 10)]
    page = client.get(f"/runs/{run['id']}").text
    assert "sub/run.log" in page and "layer.0" in page and "Sign out" not in page


def test_each_wrap_is_a_run(dashboard: Dashboard, folder: pathlib.Path) -> None:
    text = line("plan", plan=PLAN) + line("step", step={"step": 1}) + line("step", step={"step": 2})
    (folder / "twice.log").write_text(text + line("replan", plan=PLAN) + text)
    runs = wait_for(Client(dashboard), lambda runs: [run["step_count"] for run in runs] == [2, 2])
    assert len({run["id"] for run in runs}) == 2


def test_other_files_are_left_alone_and_torn_lines_are_passed_over(dashboard: Dashboard, folder: pathlib.Path) -> None:
    (folder / "notes.txt").write_text("hello\n" * 1000)
    (folder / "numbers.json").write_text('{"version": 1}\n')
    (folder / "binary").write_bytes(bytes(range(256)) * 100)
    (folder / "endless").write_bytes(b"x" * 20_000_000)
    os.symlink("/etc/passwd", folder / "link.log")
    os.mkfifo(folder / "pipe.log")
    good = line("step", step={"step": 1})
    bad = ["{\n", "\x00\n", '{"version": 1, "event": "step", "time": 5}\n', line("step", step={"step": None})]
    bad += [line("step", step={}), line("step", step={"step": 1}), line("step", step={"step": 2, "peak_bytes": -1})]
    (folder / "torn.log").write_text(good + "".join(bad) + line("step", step={"step": 3}))
    (run,) = wait_for(Client(dashboard), lambda runs: bool(runs) and runs[0]["last_step"] == 3)
    columns = Client(dashboard).get(f"/api/v1/runs/{run['id']}/steps").json["columns"]
    assert columns["step"] == [1, 2, 3] and columns["peak_bytes"] == [None] * 3


def test_a_run_that_nobody_writes_to_has_stopped(dashboard: Dashboard, folder: pathlib.Path) -> None:
    (folder / "old.log").write_text(line("step", step={"step": 1}))
    os.utime(folder / "old.log", (1_700_000_000, 1_700_000_000))
    (run,) = wait_for(Client(dashboard), lambda runs: bool(runs) and runs[0]["outcome"] == "stopped")
    assert run["finished_at"] == "2023-11-14T22:13:20.000Z"


@pytest.mark.parametrize("outcome", ["finished", "failed", "stopped"])
def test_a_run_ends_as_its_log_says(dashboard: Dashboard, folder: pathlib.Path, outcome: str) -> None:
    text = line("plan", plan=PLAN) + line("step", step={"step": 1}) + line("step", step={"step": 2})
    end = line("finish", outcome=outcome, counters={"steps": 2})
    (folder / "run.log").write_text(text + end + text)
    runs = wait_for(Client(dashboard), lambda runs: [run["step_count"] for run in runs] == [2, 2])
    assert sorted(run["outcome"] for run in runs) == sorted([outcome, "running"])
    (ended,) = [run for run in runs if run["outcome"] == outcome]
    assert ended["finished_at"] == "2026-01-31T12:00:00.000Z"
    assert Client(dashboard).get(f"/api/v1/runs/{ended['id']}").json["counters"] == {"steps": 2}


def report(model: str, note: str = "") -> str:
    """As `executor.report()` writes it."""
    return _core.report_html(model, None, None, None, None, None, None) + f"<!-- {note} -->\n"


def report_of(client: Client, run: dict) -> str | None:
    """The stored page, once there is one."""
    kinds = [artifact["kind"] for artifact in client.get(f"/api/v1/runs/{run['id']}").json["artifacts"]]
    return client.get(f"/api/v1/runs/{run['id']}/artifacts/report").text if kinds == ["report"] else None


def test_reports_belong_to_the_log_of_their_name_or_are_runs(dashboard: Dashboard, folder: pathlib.Path) -> None:
    client = Client(dashboard)
    (folder / "a.html").write_text(report("Net", "first"))
    (folder / "a.log").write_text(line("plan", plan=PLAN) + line("step", step={"step": 1}))
    (folder / "b.html").write_text(report("Other"))
    (folder / "page.html").write_text("<!doctype html>\n<title>something else</title>\n")
    (folder / "empty.html").write_text("")
    os.symlink("/etc/passwd", folder / "link.html")
    runs = wait_for(client, lambda runs: len(runs) == 2)
    with_log, alone = sorted(runs, key=lambda run: run["name"])
    assert (with_log["name"], with_log["step_count"], alone["name"], alone["model"]) == ("a.log", 1, "b.html", "Other")
    assert alone["outcome"] == "finished"
    wait_for(client, lambda runs: report_of(client, with_log) == report("Net", "first"))
    assert report_of(client, alone) == report("Other")
    assert f'href="/api/v1/runs/{alone["id"]}/artifacts/report"' in client.get(f"/runs/{alone['id']}").text
    (folder / "a.html").write_text(report("Net", "second"))
    os.utime(folder / "a.html", (1_700_000_000, 1_700_000_000))
    wait_for(client, lambda runs: report_of(client, with_log) == report("Net", "second"))
    assert len(client.get("/api/v1/runs").json["items"]) == 2


def test_a_log_that_began_anew_is_another_run(dashboard: Dashboard, folder: pathlib.Path) -> None:
    log = folder / "run.log"
    log.write_text("".join(line("step", step={"step": number}) for number in range(1, 10)))
    wait_for(Client(dashboard), lambda runs: len(runs) == 1 and runs[0]["step_count"] == 9)
    log.write_text(line("step", step={"step": 1}))
    wait_for(Client(dashboard), lambda runs: sorted(run["step_count"] for run in runs) == [1, 9])


def test_nobody_changes_anything(dashboard: Dashboard, folder: pathlib.Path) -> None:
    client = Client(dashboard)
    (folder / "run.log").write_text(line("step", step={"step": 1}))
    (run,) = wait_for(client, lambda runs: bool(runs))
    routes = json.loads(subprocess.run([PROGRAM, "routes"], capture_output=True, check=True).stdout)
    for route in routes:
        if route["method"] == "GET":
            continue
        path = route["path"].replace("{run}", run["id"]).replace("{team}", "t0000000000000000")
        for name in ("{account}", "{invitation}", "{token}", "{key}"):
            path = path.replace(name, "a0000000000000000")
        sent = {"none": {}, "json": {"Content-Type": "application/json"}, "html": {"Content-Type": "text/html"}}.get(
            route["body"], {"Content-Type": "application/x-www-form-urlencoded"}
        )
        body = {"none": None, "json": b"{}", "form": b"csrf=", "html": b"<p>"}[route["body"]]
        assert client.request(route["method"], path, body, sent).status == 403, route
    assert client.request("GET", "/runs", None, {"Host": "evil.example"}).status == 421  # a name that points here
    assert client.get("/metrics").status == 403


def test_ten_thousand_runs(dashboard: Dashboard, folder: pathlib.Path) -> None:
    """The first page is there while older logs are still read, and all are read in the end."""
    text = line("plan", plan=PLAN) + "".join(line("step", step={"step": number}) for number in range(1, 4))
    for number in range(10_000):
        path = folder / f"{number % 100}"
        path.mkdir(exist_ok=True)
        (path / f"{number}.log").write_text(text)
    client = Client(dashboard)
    wait_for(client, lambda runs: len(runs) == 200)
    deadline = time.monotonic() + PATIENCE_S
    count = 0
    while count < 10_000 and time.monotonic() < deadline:
        time.sleep(0.5)
        items = client.get("/api/v1/projects").json["items"]
        count = items[0]["runs"]
    assert count == 10_000


def test_a_folder_that_is_not_there_is_told(tmp_path: pathlib.Path) -> None:
    ran = subprocess.run([PROGRAM, "dashboard", str(tmp_path / "none")], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and "none" in ran.stderr


def test_the_program_finds_the_server(folder: pathlib.Path) -> None:
    """`memscale dashboard` is one command."""
    beside = pathlib.Path(PROGRAM).parent
    environment = {**os.environ, "PATH": f"{beside}:{os.environ['PATH']}"}
    line_ = [str(beside.parent / "memscale"), "dashboard", str(folder), "--port", "0"]
    with subprocess.Popen(
        line_, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert "http://127.0.0.1:" in process.stdout.readline()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
