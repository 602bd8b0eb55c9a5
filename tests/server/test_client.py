"""`memscale.connect()`: runs of a process reach the real server, and nothing that happens on the way reaches a step."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gate import Gate, Rule
from server_support import PATIENCE_S, Client, Server
from test_push import wait_until

# A run without a model: what RunWatch tells of each step.
FAKE = """
import json, os, signal, sys, time
import memscale
from memscale.observability import hosted

def numbers(step):
    return {"step": step, "step_ns": 1000 + step, "peak_bytes": 10 * step, "budget_bytes": 4000}

def train(first, last, pause=0.0):
    for step in range(first, last + 1):
        run.step(numbers(step))
        time.sleep(pause)

def begin(name="Net"):
    run = hosted.begin_run(name)
    if run is not None:
        plan = {"model": name, "signature": "x='/a/secret'", "pressure": {"allowed_bytes": 4000}}
        run.planned({"plan": plan})
    return run
"""

TRAIN = """
import sys
import torch
import memscale

memscale.connect(name=sys.argv[1], machine="node-7", exit_seconds=60)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
memscale.wrap(model, memscale.Config(force_optimize=True))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(12):
    model(torch.randn(16, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
"""


class Place:
    """Where a process runs: its server, token and cache, all of one test."""

    def __init__(self, folder: pathlib.Path, url: str, token: str) -> None:
        self.folder = folder
        self.token = token
        self.environment = {
            **os.environ, "MEMSCALE_SERVER": url, "MEMSCALE_TOKEN": token, "XDG_CACHE_HOME": str(folder / "cache")
        }  # fmt: skip

    def start(self, code: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        script = self.folder / "script.py"
        script.write_text(textwrap.dedent(code))
        return subprocess.Popen(
            [sys.executable, str(script), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**self.environment, **variables}, cwd=self.folder,
        )  # fmt: skip

    def run(self, code: str, *arguments: str, **variables: str) -> tuple[str, str]:
        """Runs a script to its end; what it printed."""
        output, errors = self.start(code, *arguments, **variables).communicate(timeout=PATIENCE_S)
        assert self.token not in output + errors
        return output, errors

    def spooled(self) -> list[pathlib.Path]:
        """The files that wait."""
        return sorted((self.folder / "cache").rglob("*.log"))


@pytest.fixture
def place(server: Server, program: Client, tmp_path: pathlib.Path) -> Place:
    return Place(tmp_path, f"http://127.0.0.1:{server.port}", str(program.token))


@pytest.fixture
def gated(server: Server, program: Client, tmp_path: pathlib.Path) -> Iterator[Callable[[Rule], tuple[Place, Gate]]]:
    """A place behind a gate with this rule."""
    gates: list[Gate] = []

    def make(rule: Rule) -> tuple[Place, Gate]:
        gates.append(Gate(server, rule))
        return Place(tmp_path, gates[-1].url, str(program.token)), gates[-1]

    yield make
    for gate in gates:
        gate.close()


@pytest.fixture(scope="session")
def rates(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cache for all tests that wrap a model, so that the machine is measured once."""
    return str(tmp_path_factory.mktemp("cache"))


def run_of(program: Client, name: str) -> dict[str, Any] | None:
    """The run of this name; None if there is none yet."""
    found = [run for run in program.get("/api/v1/runs?limit=200").json["items"] if run["name"] == name]
    assert len(found) <= 1, found
    return found[0] if found else None


def assert_run(program: Client, name: str, last: int, outcome: str | None) -> dict[str, Any]:
    run = run_of(program, name)
    assert run is not None
    columns = program.get(f"/api/v1/runs/{run['id']}/steps?points=5000").json["columns"]
    assert columns["step"] == list(range(1, last + 1))
    if outcome is not None:
        assert run["outcome"] == outcome
    return program.get(f"/api/v1/runs/{run['id']}").json


def test_a_wrapped_model_s_run_arrives(place: Place, program: Client, key: Callable[[], str], rates: str) -> None:
    name = key()
    output, errors = place.run(TRAIN, name, XDG_CACHE_HOME=rates)
    assert output == "trained\n", errors
    run = assert_run(program, name, 12, "finished")
    assert run["model"] == "Sequential" and run["versions"]["torch"].startswith("2.")
    assert run["predicted_peak_bytes"] > 0 and run["peak_bytes"] > 0 and run["mean_step_ns"] > 0
    assert run["machine"] == "node-7" and run["graph_digest"].startswith("xxh3-")
    assert run["config"]["force_optimize"] is True and run["config"]["log_file"] is None
    plan = program.get(f"/api/v1/runs/{run['id']}/plan").json
    assert plan["model"] == "Sequential" and plan["signature"] == ""
    graph = program.get(f"/api/v1/runs/{run['id']}/artifacts/graph").json
    hardware = program.get(f"/api/v1/runs/{run['id']}/artifacts/hardware").json
    assert graph["signature"] == "" and len(graph["nodes"]) >= 3 and hardware["disk"]["dir"] in ("", "disk")
    assert place.spooled() == []
    job = program.send("POST", f"/api/v1/runs/{run['id']}/frontier", {"points": 4}).json
    wait_until(lambda: program.get(f"/api/v1/frontiers/{job['id']}").json["state"] in ("done", "failed"))
    frontier = program.get(f"/api/v1/frontiers/{job['id']}/result").json
    assert len(frontier["points"]) == 4, frontier


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        ("", "finished"),
        ("raise ValueError('oh')", "failed"),
        ("raise KeyboardInterrupt", "stopped"),
        ("run.ended('infeasible')", "infeasible"),
        ("memscale.disconnect()", "stopped"),
        ("os.kill(os.getpid(), signal.SIGINT)", "stopped"),
    ],
)
def test_a_run_ends_as_its_process_does(
    place: Place, program: Client, key: Callable[[], str], ending: str, outcome: str
) -> None:
    name = key()
    place.run(FAKE + f"memscale.connect(name={name!r}, exit_seconds=60)\nrun = begin()\ntrain(1, 5)\n{ending}\n")
    assert_run(program, name, 5, outcome)
    assert place.spooled() == []


# A Hugging Face Trainer and a Lightning fit, each in a script that goes on after its training. argv: run name, what the
# data raises at its 7th sample.
RAISING_DATA = """
import sys
import torch

class Data(torch.utils.data.Dataset):
    def __init__(self, item):
        self.item = item
    def __len__(self):
        return 12
    def __getitem__(self, number):
        if number == 6 and raised is not None:
            raise raised
        return self.item()

raised = {"": None, "error": ValueError("oh"), "interrupt": KeyboardInterrupt()}[sys.argv[2]]
"""
TRAINERS = {
    "huggingface": """
        import sys
        import torch, transformers
        import memscale

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
            def forward(self, x):
                return {"loss": self.layers(x).square().mean()}

        settings = transformers.TrainingArguments(
            "out", per_device_train_batch_size=2, num_train_epochs=1, report_to=[], use_cpu=True, save_strategy="no",
            remove_unused_columns=False, disable_tqdm=True, data_seed=0, train_sampling_strategy="sequential",
        )
        trainer = transformers.Trainer(Net(), settings, train_dataset=Data(lambda: {"x": torch.ones(64)}))
        memscale.connect(name=sys.argv[1], exit_seconds=60)
        memscale.wrap(trainer, memscale.Config(force_optimize=True))
        fit = trainer.train
    """,
    "lightning": """
        import sys
        import lightning, torch
        import memscale

        class Net(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
            def training_step(self, batch, number):
                return self.layers(batch).square().mean()
            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters())

        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )
        memscale.connect(name=sys.argv[1], exit_seconds=60)
        memscale.wrap(trainer, memscale.Config(force_optimize=True))
        fit = lambda: trainer.fit(Net(), torch.utils.data.DataLoader(Data(lambda: torch.ones(64)), batch_size=2))
    """,
}
AFTER_FIT = """
try:
    fit()
except BaseException as error:
    print("caught", type(error).__name__)
print("goes on", flush=True)
input()
"""


@pytest.mark.parametrize(
    ("raised", "outcome", "steps"),
    [("", "finished", [6]), ("error", "failed", [2, 3]), ("interrupt", "stopped", [2, 3])],  # a batch is read ahead
)
@pytest.mark.parametrize("trainer", list(TRAINERS))
def test_a_run_ends_with_its_trainer_s_training(
    place: Place,
    program: Client,
    key: Callable[[], str],
    rates: str,
    trainer: str,
    raised: str,
    outcome: str,
    steps: list[int],
) -> None:
    pytest.importorskip("transformers" if trainer == "huggingface" else "lightning")
    name = key()
    process = place.start(
        RAISING_DATA + textwrap.dedent(TRAINERS[trainer]) + AFTER_FIT, name, raised, XDG_CACHE_HOME=rates
    )
    try:
        wait_until(lambda: (run_of(program, name) or {"outcome": "running"})["outcome"] != "running")
        assert process.poll() is None, "the script has ended, and its run with it"
        run = run_of(program, name)
        assert run is not None and run["outcome"] == outcome and run["step_count"] in steps
    finally:
        output, errors = process.communicate("\n", timeout=PATIENCE_S)
    assert output.endswith("goes on\n"), errors
    assert_run(program, name, run["step_count"], outcome)


def test_the_environment_is_enough_and_disconnect_ends_it(
    place: Place, program: Client, key: Callable[[], str]
) -> None:
    model = f"M{key()}"
    place.run(FAKE + f"run = begin({model!r})\ntrain(1, 3)\n")
    found = [run for run in program.get("/api/v1/runs?limit=200").json["items"] if run["model"] == model]
    assert [run["step_count"] for run in found] == [3]
    output, _ = place.run(FAKE + "memscale.disconnect()\nprint(begin())\n")
    assert output == "None\n"
    output, _ = place.run(FAKE + "print(begin())\n", MEMSCALE_TOKEN="")
    assert output == "None\n"


def test_nothing_is_sent_that_was_not_named(gated: Any, program: Client, key: Callable[[], str], rates: str) -> None:
    name = key()
    place, gate = gated(lambda number, path: "pass")
    place.run(TRAIN, name, XDG_CACHE_HOME=rates)
    sent = b"\n".join(body for _, _, body in gate.seen)
    assert name.encode() in sent and b'"step":[' in sent
    for secret in (socket.gethostname(), str(place.folder), "script.py", os.path.expanduser("~/"), place.token):
        assert secret.encode() not in sent, secret
    for path, headers, _ in gate.seen:
        assert place.token not in path and headers["Authorization"] == f"Bearer {place.token}"


def test_only_rank_0_sends(place: Place, program: Client, key: Callable[[], str]) -> None:
    name = key()
    place.run(FAKE + f"memscale.connect(name={name!r})\nassert begin() is None\n", RANK="1")
    assert run_of(program, name) is None


def test_a_dead_server_costs_nothing_and_the_next_process_sends(
    gated: Any, program: Client, key: Callable[[], str]
) -> None:
    name, other = key(), key()
    place, gate = gated(lambda number, path: "lose")
    begun = time.monotonic()
    output, errors = place.run(
        FAKE + f"memscale.connect(name={name!r}, exit_seconds=1)\nrun = begin()\ntrain(1, 500)\nprint('trained')\n"
    )
    assert output == "trained\n" and errors == "" and time.monotonic() - begun < PATIENCE_S
    assert len(place.spooled()) == 1 and place.token not in place.spooled()[0].read_text()
    assert place.spooled()[0].stat().st_mode & 0o077 == 0
    gate.rule = lambda number, path: "pass"
    place.run(FAKE + f"memscale.connect(name={other!r}, exit_seconds=60)\nrun = begin()\ntrain(1, 2)\n")
    assert_run(program, name, 500, "finished")
    assert_run(program, other, 2, "finished")
    assert place.spooled() == []


def test_a_slow_server_delays_the_end_by_what_was_allowed_at_most(gated: Any, key: Callable[[], str]) -> None:
    place, gate = gated(lambda number, path: "hang")
    code = f"""
    memscale.connect(name={key()!r}, exit_seconds=2)
    run = begin()
    train(1, 1000)
    print(time.monotonic(), flush=True)
    """
    with place.start(FAKE + textwrap.dedent(code)) as process:
        assert process.stdout is not None
        trained = float(process.stdout.readline())
        wait_until(lambda: process.poll() is not None)
    assert time.monotonic() - trained < 2 + 8  # a clock of the same machine; the rest is for a busy one
    assert gate.seen and process.returncode == 0


def test_a_refused_token_is_told_once(server: Server, tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path, f"http://127.0.0.1:{server.port}", "ms_" + "x" * 40)
    output, errors = place.run(FAKE + "run = begin()\ntrain(1, 40, 0.1)\nrun = begin()\nprint(run)\n")
    assert output == "None\n"
    assert errors.count("\n") == 1 and "token" in errors and "nothing more is sent" in errors
    assert len(place.spooled()) == 1  # for `memscale push` with a better one


def test_lost_answers_429_and_a_pause_of_the_server_change_nothing(
    gated: Any, program: Client, key: Callable[[], str]
) -> None:
    name = key()
    fates: list[Any] = ["mute", "pass", "mute", (429, {"Retry-After": "1"}), "lose", (503, {}), "pass"]
    place, gate = gated(lambda number, path: fates[number] if number < len(fates) else "pass")
    place.run(FAKE + f"memscale.connect(name={name!r}, exit_seconds=60)\nrun = begin()\ntrain(1, 300, 0.01)\n")
    assert len(gate.seen) > len(fates)
    assert_run(program, name, 300, "finished")


def test_a_killed_process_s_run_is_sent_by_the_next_one(place: Place, program: Client, key: Callable[[], str]) -> None:
    name = key()
    with place.start(
        FAKE + f"memscale.connect(name={name!r})\nrun = begin()\ntrain(1, 5)\ntime.sleep({PATIENCE_S})\n"
    ) as process:
        wait_until(lambda: (run_of(program, name) or {}).get("step_count") == 5)
        process.kill()
    assert len(place.spooled()) == 1
    place.run(FAKE + "memscale.connect(exit_seconds=60)\n")
    assert_run(program, name, 5, "stopped")
    assert place.spooled() == []


def test_two_processes_share_a_spool(place: Place, program: Client, key: Callable[[], str]) -> None:
    names = [key(), key()]
    code = FAKE + "memscale.connect(name=sys.argv[1], exit_seconds=60)\nrun = begin()\ntrain(1, 400, 0.005)\n"
    both = [place.start(code, name) for name in names]
    for process in both:
        assert process.communicate(timeout=PATIENCE_S) == ("", "")
    for name in names:
        assert_run(program, name, 400, "finished")
    assert place.spooled() == []


def test_forked_children_send_nothing_and_leave_the_parent_alone(
    place: Place, program: Client, key: Callable[[], str]
) -> None:
    name = key()
    code = f"""
    memscale.connect(name={name!r}, exit_seconds=60)
    run = begin()
    for step in range(1, 21):
        run.step(numbers(step))
        child = os.fork()
        if child == 0:
            run.step(numbers(1000 + step))
            run.ended("failed")
            assert begin() is None
            sys.exit(0)  # with its exit handlers
        assert os.waitpid(child, 0)[1] == 0
    """
    assert place.run(FAKE + textwrap.dedent(code)) == ("", "")
    assert_run(program, name, 20, "finished")


def test_interrupts_in_a_step_tear_nothing(place: Place, program: Client, key: Callable[[], str]) -> None:
    name = key()
    code = f"""
    memscale.connect(name={name!r}, exit_seconds=60)
    run = begin()
    is_armed = False

    def interrupt(number, frame):
        global is_armed
        if is_armed:  # once a step: a busy machine would be interrupted again while it counts the last one
            is_armed = False
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    step, caught, until = 1, 0, time.monotonic() + 2
    while time.monotonic() < until:
        try:
            is_armed = True
            run.step(numbers(step))
            time.sleep(0.0005)
            is_armed = False
        except KeyboardInterrupt:
            caught += 1
        step += 1  # whether it was told or not
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(json.dumps([step, caught]))
    """
    output, errors = place.run(FAKE + textwrap.dedent(code))
    assert output, errors
    last, caught = json.loads(output)
    run = run_of(program, name)
    assert run is not None and run["outcome"] == "finished" and caught > 10
    assert last - caught - 1 <= run["step_count"] <= last


def test_a_full_spool_drops_the_oldest_and_says_so_once(gated: Any, program: Client, key: Callable[[], str]) -> None:
    name = key()
    place, gate = gated(lambda number, path: "lose")
    code = f"""
    memscale.connect(name={name!r}, spool_mb=1, exit_seconds=1)
    run = begin()
    for part in range(10):
        train(1 + 1500 * part, 1500 * (part + 1))
        time.sleep(0.6)
    print("trained")
    """
    output, errors = place.run(FAKE + textwrap.dedent(code))
    assert output == "trained\n" and errors.count("\n") == 1 and "is full; the oldest steps" in errors
    assert sum(path.stat().st_size for path in place.spooled()) <= 1_048_576
    gate.rule = lambda number, path: "pass"
    place.run(FAKE + "memscale.connect(exit_seconds=60)\n")
    run = run_of(program, name)
    assert run is not None and run["last_step"] == 15_000 and 1000 < run["step_count"] < 15_000


def test_a_spool_that_can_t_be_used_is_refused_at_once(place: Place) -> None:
    open_to_all = place.folder / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    code = f"""
    for folder in ("/proc/none", {str(open_to_all)!r}):
        try:
            memscale.connect(spool_dir=folder)
        except memscale.MemScaleError as error:
            print(folder in str(error))
    """
    assert place.run(FAKE + textwrap.dedent(code)) == ("True\nTrue\n", "")


def test_what_is_not_allowed_is_refused_without_the_token(place: Place) -> None:
    code = """
    cases = [
        {"url": "http://runs.example.com"}, {"url": "https://a:hidden@b.example"}, {"url": "https://b.example?hidden"},
        {"url": ""}, {"token": ""}, {"token": "hidden token"}, {"token": "hidden\\n"}, {"spool_mb": 0},
        {"spool_mb": float("nan")}, {"exit_seconds": -1}, {"exit_seconds": float("inf")},
    ]
    for case in cases:
        try:
            memscale.connect(**case)
        except memscale.ConfigError as error:
            print("hidden" in str(error))
    """
    assert place.run(FAKE + textwrap.dedent(code)) == ("False\n" * 11, "")


def test_a_bad_environment_is_told_and_training_goes_on(place: Place) -> None:
    output, errors = place.run(FAKE + "print(begin(), begin())\n", MEMSCALE_SERVER="http://runs.example.com")
    assert output == "None None\n" and errors.count("nothing is sent") == 1


def test_connecting_after_the_wrap_and_again_is_fine(
    place: Place, program: Client, key: Callable[[], str], rates: str
) -> None:
    names = [key(), key()]
    code = TRAIN.replace('memscale.connect(name=sys.argv[1], machine="node-7", exit_seconds=60)', "").replace(
        "    model(torch",
        "    if _ in (3, 8):\n        memscale.connect(name=sys.argv[1 + _ // 8], exit_seconds=60)\n    model(torch",
    )
    output, errors = place.run(code, *names, XDG_CACHE_HOME=rates)
    assert output == "trained\n", errors
    for name, outcome in zip(names, ("stopped", "finished"), strict=True):
        run = run_of(program, name)
        assert run is not None and run["outcome"] == outcome and run["model"] == "Sequential"
        assert run["predicted_peak_bytes"] > 0


def test_a_sigterm_leaves_the_rest_to_the_next_process(place: Place, program: Client, key: Callable[[], str]) -> None:
    name = key()
    with place.start(
        FAKE + f"memscale.connect(name={name!r})\nrun = begin()\ntrain(1, 9)\ntime.sleep({PATIENCE_S})\n"
    ) as process:
        wait_until(lambda: (run_of(program, name) or {}).get("step_count") == 9)
        process.send_signal(signal.SIGTERM)
    place.run(FAKE + "memscale.connect(exit_seconds=60)\n")
    assert_run(program, name, 9, "stopped")
