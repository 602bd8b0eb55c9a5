"""`memscale push`: logs reach the real server whole and once, whatever lies between; the token goes nowhere else."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gate import Gate, Rule
from server_support import PATIENCE_S, Client, Server, first_team, make_token, sign_up, steps

PUSH = [sys.executable, "-P", "-m", "memscale.observability.push"]


def line(event: str, **members: Any) -> str:
    """One line of a log."""
    head = {"version": 1, "time": "2026-01-01T00:00:00.000+00:00", "level": "info", "process": 1, "rank": None}
    return json.dumps({**head, "event": event, "message": "/a/secret/path", **members}) + "\n"


def log_text(first: int, count: int, model: str = "Net") -> str:
    """A plan and steps, as a run writes them."""
    plan = {"model": model, "signature": "path='/a/secret'", "pressure": {"allowed_bytes": 4_000_000_000}}
    begin = line("plan", plan=plan) if first == 1 else ""
    return begin + "".join(line("step", step=step) for step in steps(first, count))


@pytest.fixture
def log(tmp_path: pathlib.Path, key: Callable[[], str]) -> pathlib.Path:
    """Where a log lies; its name is no other test's, so that its run is found by it."""
    return tmp_path / f"{key()}.log"


@pytest.fixture
def gate_of(server: Server) -> Iterator[Callable[[Rule], Gate]]:
    """Makes a gate in front of the server."""
    gates: list[Gate] = []

    def make(rule: Rule) -> Gate:
        gates.append(Gate(server, rule))
        return gates[-1]

    yield make
    for gate in gates:
        gate.close()


def environment(url: str, token: str) -> dict[str, str]:
    """For the program: where to, and with what."""
    return {**os.environ, "MEMSCALE_SERVER": url, "MEMSCALE_TOKEN": token}


def push(
    url: str, token: str | None, *arguments: object, command: list[str] = PUSH
) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end. The token is not in anything that it prints."""
    words = [*command, *map(str, arguments)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, env=environment(url, token or ""))
    assert token is None or token not in ran.stdout + ran.stderr
    return ran


def url_of(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def run_of(program: Client, name: str) -> dict[str, Any]:
    """The only run of this name."""
    found = [run for run in program.get("/api/v1/runs?limit=200").json["items"] if run["name"] == name]
    assert len(found) == 1, found
    return program.get(f"/api/v1/runs/{found[0]['id']}").json


def assert_all_steps(program: Client, name: str, last: int) -> dict[str, Any]:
    """The run has each step once, with all of its values."""
    run = run_of(program, name)
    columns = program.get(f"/api/v1/runs/{run['id']}/steps?points=5000").json["columns"]
    assert columns["step"] == list(range(1, last + 1))
    wanted = steps(1, last)
    for column, values in columns.items():
        assert values == [step.get(column) for step in wanted], column
    assert run["step_count"] == last
    return run


def test_a_finished_log_arrives_whole(server: Server, program: Client, log: pathlib.Path) -> None:
    log.write_text(log_text(1, 2500) + line("finish", outcome="finished", counters={"steps": 2500}))
    ran = push(url_of(server), program.token, log)
    assert ran.returncode == 0 and ran.stdout == "2500 new steps of 1 runs sent\n" and ran.stderr == ""
    run = assert_all_steps(program, log.name, 2500)
    assert run["outcome"] == "finished" and run["model"] == "Net" and run["budget_bytes"] == 4_000_000_000
    assert run["project"] == "default" and run["machine"] is None
    plan = program.get(f"/api/v1/runs/{run['id']}/plan")
    assert plan.json["model"] == "Net" and "secret" not in plan.text + json.dumps(run)


def test_pushing_again_sends_only_the_new_steps(server: Server, program: Client, log: pathlib.Path) -> None:
    for first, count in ((1, 5), (6, 1200), (1206, 3)):
        with log.open("a") as file:
            file.write(log_text(first, count))
        ran = push(url_of(server), program.token, log)
        assert ran.stdout == f"{count} new steps of 1 runs sent\n"
    assert assert_all_steps(program, log.name, 1208)["outcome"] == "running"
    assert push(url_of(server), program.token, "--ended", log).returncode == 0
    assert run_of(program, log.name)["outcome"] == "stopped"


def test_a_folder_s_logs_are_found_and_other_files_left_alone(
    server: Server, program: Client, tmp_path: pathlib.Path, key: Callable[[], str]
) -> None:
    names = [f"{key()}.log" for _ in range(5)]
    for number, name in enumerate(names):
        place = tmp_path / f"sub{number % 2}"
        place.mkdir(exist_ok=True)
        (place / name).write_text(log_text(1, 3, f"Net{number}"))
    (tmp_path / "notes.txt").write_text("hello\n")
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 10)
    (tmp_path / ".hidden").write_text(log_text(1, 3))
    os.symlink("/etc/passwd", tmp_path / "link.log")
    os.mkfifo(tmp_path / "pipe.log")
    ran = push(url_of(server), program.token, "--project", names[0], tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "15 new steps of 5 runs sent\n", "")
    for name in names:
        assert run_of(program, name)["project"] == names[0]


def test_a_growing_log_is_followed(server: Server, program: Client, log: pathlib.Path) -> None:
    log.write_text(log_text(1, 2))
    with subprocess.Popen(
        [*PUSH, "--follow", str(log.parent)], env=environment(url_of(server), program.token or ""),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        wait_until(lambda: has_steps(program, log.name, 2))
        with log.open("a") as file:
            for number in range(3, 40):
                text = log_text(number, 1)
                file.write(text[:20])
                file.flush()
                file.write(text[20:])
        wait_until(lambda: has_steps(program, log.name, 39))
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output, errors) == (0, "39 new steps of 1 runs sent\n", "")
    assert_all_steps(program, log.name, 39)


def has_steps(program: Client, name: str, count: int) -> bool:
    items = program.get("/api/v1/runs?limit=200").json["items"]
    return any(run["name"] == name and run["step_count"] == count for run in items)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_lost_requests_and_lost_answers_neither_lose_nor_double(
    program: Client, gate_of: Callable[[Rule], Gate], log: pathlib.Path
) -> None:
    log.write_text(log_text(1, 3500))
    fates = ["lose", "mute", "pass", "mute", "mute", "pass"]
    gate = gate_of(lambda number, path: fates[number] if number < len(fates) else "pass")
    ran = push(gate.url, program.token, log)
    assert ran.returncode == 0, ran.stderr
    assert_all_steps(program, log.name, 3500)
    bodies = [body for path, _, body in gate.seen if path.endswith("/steps")]
    assert len(bodies) > len(set(bodies))  # a batch was sent twice


def test_429_is_waited_for_as_long_as_it_says(
    program: Client, gate_of: Callable[[Rule], Gate], log: pathlib.Path
) -> None:
    log.write_text(log_text(1, 10))
    times: list[float] = []

    def rule(number: int, path: str) -> Any:
        times.append(time.monotonic())
        return (429, {"Retry-After": "3"}) if number == 1 else "pass"

    assert push(gate_of(rule).url, program.token, log).returncode == 0
    assert times[2] - times[1] >= 2.9
    assert_all_steps(program, log.name, 10)


def test_413_makes_batches_smaller(program: Client, gate_of: Callable[[Rule], Gate], log: pathlib.Path) -> None:
    log.write_text(log_text(1, 900))
    gate = gate_of(lambda number, path: "pass")
    gate.rule = lambda number, path: (413, {}) if len(gate.seen[-1][2]) > 10_000 else "pass"
    assert push(gate.url, program.token, log).returncode == 0
    assert_all_steps(program, log.name, 900)


def test_a_refused_token_is_told_once_and_shown_never(server: Server, log: pathlib.Path) -> None:
    log.write_text(log_text(1, 10))
    ran = push(url_of(server), "ms_unknown", log)
    assert ran.returncode == 1 and "token" in ran.stderr and ran.stderr.count("\n") == 1


def test_a_token_that_may_not_write_is_told(server: Server, owner: Client, team: str, log: pathlib.Path) -> None:
    log.write_text(log_text(1, 10))
    ran = push(url_of(server), make_token(owner, team, "runs:read"), log)
    assert ran.returncode == 1 and "runs:write" in ran.stderr


def test_a_redirect_is_not_followed(program: Client, gate_of: Callable[[Rule], Gate], log: pathlib.Path) -> None:
    log.write_text(log_text(1, 10))
    other = gate_of(lambda number, path: "pass")
    gate = gate_of(lambda number, path: (307, {"Location": other.url + path}))
    ran = push(gate.url, program.token, log)
    assert ran.returncode == 1 and "elsewhere" in ran.stderr and not other.seen


def test_a_dead_server_ends_patience(log: pathlib.Path) -> None:
    log.write_text(log_text(1, 10))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        ran = push(url, "ms_a", "--patience", 2, log)
    assert ran.returncode == 1 and "refused" in ran.stderr and "goes on from here" in ran.stderr


def test_a_server_killed_in_the_middle_gets_the_rest_later(data: pathlib.Path, log: pathlib.Path) -> None:
    log.write_text(log_text(1, 40_000))
    server = Server(data, "--limits", "1000000")
    owner = sign_up(server, server.first_key(), "owner")
    team = first_team(owner)
    token = make_token(owner, team, "runs:write", "runs:read")
    with subprocess.Popen(
        [*PUSH, "--patience", "1", str(log)], env=environment(url_of(server), token), stderr=subprocess.PIPE, text=True
    ) as process:
        program = Client(server, token)
        wait_until(lambda: any(run["step_count"] > 0 for run in program.get("/api/v1/runs").json["items"]))
        server.stop(signal.SIGKILL)
        _, errors = process.communicate(timeout=PATIENCE_S)
    again = Server(data, "--limits", "1000000")
    try:
        if process.returncode != 0:  # else it had sent everything in time
            assert "goes on from here" in errors
        assert push(url_of(again), token, log).returncode == 0
        program = Client(again, token)
        run = run_of(program, log.name)
        assert run["step_count"] == 40_000 and run["last_step"] == 40_000 and run["last_sequence"] == 40
    finally:
        assert again.stop() == 0


def test_two_at_once_send_each_step_once(server: Server, program: Client, log: pathlib.Path) -> None:
    log.write_text(log_text(1, 4000))
    sent = environment(url_of(server), program.token or "")
    both = [
        subprocess.Popen([*PUSH, str(log)], env=sent, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]  # fmt: skip
    total = 0
    for process in both:
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        total += int(re.match(r"(\d+)", output)[1])  # type: ignore[index]
    assert total == 4000
    assert_all_steps(program, log.name, 4000)


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("http://runs.example.com", "https"),
        ("https://me:hidden@runs.example.com", "password"),
        ("https://runs.example.com/?token=hidden", "query"),
        ("runs.example.com", "begin with"),
        ("", "--server"),
    ],
)
def test_bad_addresses_are_refused_before_anything_is_sent(url: str, part: str, log: pathlib.Path) -> None:
    ran = push(url, "ms_a", log)
    assert ran.returncode == 2 and part in ran.stderr and "hidden" not in ran.stderr


def test_the_token_comes_from_a_file_or_the_environment(
    server: Server, program: Client, log: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    log.write_text(log_text(1, 3))
    assert "token is missing" in push(url_of(server), None, log).stderr
    secret = tmp_path / "token"
    secret.write_text(f"{program.token}\n")
    assert push(url_of(server), None, "--token-file", secret, log).returncode == 0
    secret.write_text(f"{program.token}\nmore\n")
    ran = push(url_of(server), None, "--token-file", secret, log)
    assert ran.returncode == 2 and str(program.token) not in ran.stderr
    assert push(url_of(server), None, "--token-file", tmp_path / "none", log).returncode == 2


def test_the_program_finds_its_python(server: Server, program: Client, log: pathlib.Path) -> None:
    """`memscale push`, installed beside python3, in a folder that holds modules of the library's names."""
    log.write_text(log_text(1, 3))
    (log.parent / "http.py").write_text("raise SystemExit('a module of the folder was imported')\n")
    command = [str(pathlib.Path(sys.executable).parent / "memscale"), "push"]
    words = [*command, log.name]
    ran = subprocess.run(
        words, capture_output=True, text=True, timeout=PATIENCE_S, cwd=log.parent,
        env=environment(url_of(server), program.token or ""),
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "3 new steps of 1 runs sent\n"), ran.stderr


def test_names_and_messages_of_any_kind_are_no_trouble(server: Server, program: Client, tmp_path: pathlib.Path) -> None:
    name = "läuft \u2028 " + "x" * 150 + ".log"
    (tmp_path / name).write_text(log_text(1, 2))
    (tmp_path / os.fsdecode(b"\xff.log")).write_text(log_text(1, 2))
    ran = push(url_of(server), program.token, tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert any(run["name"].startswith("läuft") for run in program.get("/api/v1/runs?limit=200").json["items"])
