"""Logs and metrics: their contents, rotation and closing. None of their failures stops a training run."""

from __future__ import annotations

import contextlib
import json
import logging
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import urllib.request

import jsonschema
import pytest
import torch
from forked_python import run_python
from time_limits import HANG_SECONDS
from torch import nn

import memscale
from memscale import Config

prometheus_parser = pytest.importorskip("prometheus_client.parser")

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINE = jsonschema.Draft202012Validator(json.loads((ROOT / "docs/formats/log.schema.json").read_text()))


@pytest.fixture(autouse=True)
def _logger(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="memscale")
    logger = logging.getLogger("memscale")
    before = list(logger.handlers)
    yield
    assert logger.handlers == before, "a wrap left a handler behind"


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)])


def _train(model: nn.Module, steps: int = 3, batch: int = 32) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.ones(batch, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _lines(path: pathlib.Path) -> list[dict]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        LINE.validate(line)
    return lines


def _free_port() -> int:
    """A free port, outside the range that the kernel assigns from, such that rank 3's port is free too."""
    with contextlib.ExitStack() as probes:
        for port in random.SystemRandom().sample(range(20000, 32000, 10), 100):
            with contextlib.suppress(OSError):
                for address in (port, port + 3):
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", address))
                return port
    raise AssertionError("no port is free")


def _scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG_SECONDS) as answer:
        return answer.read().decode()


def _samples(text: str) -> dict[str, list]:
    found: dict[str, list] = {}
    for family in prometheus_parser.text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


# -- the log file --------------------------------------------------------------------


def test_the_log_file_holds_json_lines_and_one_summary_per_wrap(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.log"
    model = memscale.wrap(_model(), Config(force_optimize=True, log_file=str(path)))
    _train(model)
    _train(model, batch=64)  # a new shape needs a new plan
    memscale.detach(model)
    events = [line["event"] for line in _lines(path)]
    assert events.count("plan") == 1
    assert events.count("replan") >= 1
    [summary] = [line for line in _lines(path) if line["event"] == "plan"]
    assert "memscale plan for Sequential" in summary["message"]
    assert summary["plan"]["model"] == "Sequential"


def test_steps_are_lines_too_where_the_logger_is_at_debug(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="memscale")
    path = tmp_path / "run.log"
    model = memscale.wrap(_model(), Config(force_optimize=True, log_file=path))
    _train(model)
    memscale.detach(model)
    steps = [line["step"] for line in _lines(path) if line["event"] == "step"]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(step["step_ns"] > 0 and step["predicted_peak_bytes"] > 0 for step in steps)


@pytest.mark.parametrize(
    ("ending", "outcomes"),
    [
        ("", ["finished"]),
        ("raise ValueError('oh')", ["failed"]),
        ("raise KeyboardInterrupt", ["stopped"]),
        ("memscale.detach(model)", ["finished"]),
        ("model._memscale_executor.training_ended(ValueError()); train()", ["failed", "finished"]),
        ("if os.fork() == 0: sys.exit()\nos.wait()", ["finished"]),
    ],
)
def test_a_log_says_how_its_runs_ended(tmp_path: pathlib.Path, ending: str, outcomes: list[str]) -> None:
    log = tmp_path / "run.log"
    script = f"""
import os, sys, torch, memscale
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
optimizer = torch.optim.AdamW(model.parameters())
def train():
    for _ in range(2):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
memscale.wrap(model, memscale.Config(log_file={str(log)!r}))
train()
"""
    run_python("-c", script + ending)
    lines = _lines(log)
    ends = [line for line in lines if line["event"] == "finish"]
    assert [line["outcome"] for line in ends] == outcomes
    assert [line["counters"]["steps"] for line in ends] == [2 * (number + 1) for number in range(len(ends))]
    assert [line["event"] for line in lines if line["event"] in ("plan", "finish")] == ["plan", "finish"] * len(
        outcomes
    )


def test_a_file_that_was_rotated_away_is_opened_again(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.log"
    model = memscale.wrap(_model(), Config(force_optimize=True, log_file=str(path)))
    path.rename(tmp_path / "run.log.1")
    _train(model)
    memscale.detach(model)
    assert any(line["event"] == "plan" for line in _lines(path))


def test_two_wraps_of_one_file_write_each_line_once(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.log"
    config = Config(force_optimize=True, log_file=str(path))
    first, second = memscale.wrap(_model(), config), memscale.wrap(_model(), config)
    memscale.detach(first)
    _train(second)
    memscale.detach(second)
    assert [line["event"] for line in _lines(path)].count("plan") == 1


@pytest.mark.parametrize("where", ["none/run.log", "a-folder", "gone/run.log"])
def test_a_log_file_that_cannot_be_written_costs_a_warning(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "gone").mkdir()
    model = memscale.wrap(_model(), Config(force_optimize=True, log_file=str(tmp_path / where)))
    if where.startswith("gone"):
        shutil.rmtree(tmp_path / "gone")
    _train(model)
    memscale.detach(model)
    assert caplog.text.count("can't be written") == 1


def test_logging_that_is_off_can_be_switched_on_again() -> None:
    code = """
import logging, torch, memscale
from memscale import Config
logger = logging.getLogger("memscale")
for enabled, level in ((False, 30), (True, 20)):
    memscale.detach(memscale.wrap(torch.nn.Linear(2, 2), Config(enable_logging=enabled)))
    assert logger.level == level, logger.level
logger.setLevel(logging.ERROR)
memscale.detach(memscale.wrap(torch.nn.Linear(2, 2), Config()))
assert logger.level == logging.ERROR
"""
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr


# -- metrics ---------------------------------------------------------------------------


def test_logging_that_is_set_up_after_the_first_wrap_writes_each_line_once() -> None:
    script = (
        "import io, logging, sys, memscale, torch\n"
        "log = logging.getLogger('memscale')\n"
        "model = memscale.wrap(torch.nn.Linear(2, 2))\n"
        "log.info('first')\n"
        "sys.stderr = io.StringIO()\n"  # as notebooks and test runners do
        "log.info('second')\n"
        "print(sys.stderr.getvalue())\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s')\n"
        "log.info('third')\n"
        "sys.stderr = sys.__stderr__\n"
    )
    done = run_python("-c", script)
    assert done.returncode == 0, done.stderr
    assert "memscale: first" in done.stderr and "second" not in done.stderr and "third" not in done.stderr
    assert "memscale: second" in done.stdout and done.stdout.count("third") == 1


def test_metrics_are_the_counters_in_base_units() -> None:
    port = _free_port()
    model = memscale.wrap(_model(), Config(force_optimize=True, observability_port=port))
    _train(model)
    text = _scrape(port)
    counters = model._memscale_executor.counters()
    plan = model._memscale_executor.plan
    memscale.detach(model)
    found = _samples(text)
    [steps] = found["memscale_steps_total"]
    assert steps.value == counters["steps"] == 3
    assert steps.labels["model"] == "Sequential"
    assert found["memscale_recomputed_layers_total"][0].value == counters["recomputed_layers"] > 0
    assert found["memscale_forward_stall_seconds_total"][0].value == counters["forward_stall_ns"] / 1e9
    assert found["memscale_predicted_peak_bytes"][0].value == plan.predicted_peak_bytes
    assert found["memscale_step_duration_seconds_count"][0].value == 3
    assert 0 < found["memscale_step_duration_seconds_sum"][0].value < 600
    assert set(found["memscale_build_info"][0].labels) == {"version"}
    with pytest.raises(OSError, match="refused"):
        _scrape(port)


def test_promtool_finds_nothing_to_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool (Debian package prometheus) is not installed; the official parser has read the metrics")
    port = _free_port()
    model = memscale.wrap(_model(), Config(force_optimize=True, observability_port=port))
    _train(model)
    text = _scrape(port)
    memscale.detach(model)
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_two_models_share_a_port_and_are_told_apart() -> None:
    port = _free_port()
    config = Config(force_optimize=True, observability_port=port)
    first, second = memscale.wrap(_model(), config), memscale.wrap(_model(), config)
    _train(second, steps=2)
    values = {s.labels["run"]: s.value for s in _samples(_scrape(port))["memscale_steps_total"]}
    assert sorted(values.values()) == [0, 2]
    memscale.detach(first)
    assert len(_samples(_scrape(port))["memscale_steps_total"]) == 1
    memscale.detach(second)


def test_a_port_in_use_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = Config(force_optimize=True, observability_port=taken.getsockname()[1])
        model = memscale.wrap(_model(), config)
        assert model._memscale_executor.run_watch.metrics_address is None
        _train(model)
        memscale.detach(model)
    assert "can't be served" in caplog.text


def test_ranks_take_ports_of_their_own_on_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    port = _free_port()
    monkeypatch.setenv("LOCAL_RANK", "3")
    model = memscale.wrap(_model(), Config(observability_port=port))
    assert model._memscale_executor.run_watch.metrics_address == ("127.0.0.1", port + 3)
    memscale.detach(model)


def test_without_the_client_there_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    model = memscale.wrap(_model(), Config(observability_port=_free_port()))
    _train(model)
    memscale.detach(model)
    assert "prometheus_client is missing" in caplog.text


def test_a_client_that_is_broken_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import prometheus_client

    monkeypatch.setattr(prometheus_client, "make_wsgi_app", None)
    port = _free_port()
    model = memscale.wrap(_model(), Config(force_optimize=True, observability_port=port))
    _train(model)
    assert model._memscale_executor.counters()["steps"] == 3
    memscale.detach(model)
    assert f"127.0.0.1:{port} can't be served" in caplog.text


def test_a_watch_that_fails_leaves_training_alone(caplog: pytest.LogCaptureFixture) -> None:
    model = memscale.wrap(_model(), Config(force_optimize=True))
    model._memscale_executor.run_watch.history = None  # adding a step raises without a history
    _train(model)
    assert model._memscale_executor.counters()["steps"] == 3
    memscale.detach(model)
    assert caplog.text.count("goes on unwatched") == 1
