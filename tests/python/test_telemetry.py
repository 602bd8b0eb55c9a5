"""Telemetry sends nothing unless the user enables it. No event can hold a size, a name or a path, and no endpoint can
break or slow a run."""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import threading
import time

import pytest
import torch
from schema_support import schema, validator
from time_limits import HANG_SECONDS, comes_true
from torch import nn

import memscale
from memscale import Config, _core
from memscale.observability import telemetry

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMA = schema("telemetry")
EVENT = validator("telemetry")


@pytest.fixture(autouse=True)
def _off(monkeypatch: pytest.MonkeyPatch):
    for name in ("MEMSCALE_TELEMETRY", "MEMSCALE_TELEMETRY_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    telemetry._state.update(chosen=None, sender=None)
    yield
    memscale.disable_telemetry()
    telemetry._state.update(chosen=None, sender=None)


class SecretlyNamedNet(nn.Sequential):
    pass


def _train() -> float:
    """Wraps, trains and detaches; returns the seconds that this took."""
    model = SecretlyNamedNet(nn.Linear(37, 41), nn.ReLU(), nn.Linear(41, 3))
    start = time.perf_counter()
    memscale.wrap(model, Config(force_optimize=True, enable_logging=False), sample_input=torch.ones(5, 37))
    model(torch.ones(5, 37)).sum().backward()
    memscale.detach(model)
    return time.perf_counter() - start


class _Receiver:
    """An endpoint that records each request."""

    def __init__(self, status: int = 204) -> None:
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.paths.append(self.path)
                receiver.headers.append(dict(self.headers))
                receiver.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v2/events"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def wait_for(self, count: int) -> None:
        assert comes_true(lambda: len(self.bodies) >= count)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


# -- off by default ------------------------------------------------------------------------

_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    int (*real)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    char line[64];
    int log = open(getenv("CONNECT_LOG"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (write(log, line, (size_t)snprintf(line, sizeof line, "%d\n", address->sa_family)) < 0) {
        abort();
    }
    close(log);
    return real(fd, address, length);
}
"""

_CHILD = """
import os, sys, time, torch, memscale
if sys.argv[1] == "on":
    memscale.enable_telemetry("http://127.0.0.1:9/")
model = torch.nn.Sequential(torch.nn.Linear(8, 8))
memscale.wrap(model, memscale.Config(force_optimize=True, observability_port=None))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
model._memscale_executor.report(os.devnull)
memscale.detach(model)
until = time.monotonic() + 600
while sys.argv[1] == "on" and not os.path.exists(os.environ["CONNECT_LOG"]) and time.monotonic() < until:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("switch", ["off", "on"])
def test_nothing_connects_unless_it_was_asked_for(tmp_path: pathlib.Path, switch: str) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to trace connect(2) with")
    (tmp_path / "shim.c").write_text(_SHIM)
    shim = tmp_path / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, tmp_path / "shim.c", "-ldl"], check=True)
    log = tmp_path / "connects"
    environment = dict(os.environ, LD_PRELOAD=str(shim), CONNECT_LOG=str(log))
    subprocess.run([sys.executable, "-c", _CHILD, switch], env=environment, check=True, capture_output=True)
    families = log.read_text().split() if log.exists() else []
    internet = {str(int(socket.AF_INET)), str(int(socket.AF_INET6))}
    assert bool(internet & set(families)) == (switch == "on")


def test_the_environment_and_the_calls_switch_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMSCALE_TELEMETRY_ENDPOINT", "http://127.0.0.1:9/")
    assert not telemetry.is_enabled()
    monkeypatch.setenv("MEMSCALE_TELEMETRY", "1")
    assert telemetry.is_enabled()
    memscale.disable_telemetry()
    assert not telemetry.is_enabled()
    memscale.enable_telemetry()
    assert telemetry.is_enabled()


# -- the contents of events -------------------------------------------------------------------


def test_every_value_that_the_schema_allows_is_of_a_fixed_list() -> None:
    def leaves(part: dict) -> None:
        if "$ref" in part:
            file, _, place = part["$ref"].partition("#/$defs/")
            leaves(schema(file.removesuffix(".schema.json")) if file else SCHEMA["$defs"][place])
        elif "anyOf" in part:
            for each in part["anyOf"]:
                leaves(each)
        elif part.get("type") == "array":
            leaves(part["items"])
        elif part.get("type") == "string":
            assert part["pattern"] == r"^[0-9]{1,3}\.[0-9]{1,3}$"  # memscale's major and minor version
        else:
            assert "enum" in part or "const" in part or part["type"] == "boolean"

    assert SCHEMA["additionalProperties"] is False
    for part in SCHEMA["properties"].values():
        leaves(part)


def test_events_of_any_model_fit_the_schema() -> None:
    hardware = json.loads((ROOT / "tests/cli/data/hardware_gpu.json").read_text())
    hardware["cpu"]["name"] = "a name of a machine"
    random.seed(0)
    for _ in range(200):
        hardware["gpus"][0]["total_bytes"] = random.randrange(1, 2**40)
        hardware["gpus"][0]["free_bytes"] = 0
        config = Config(memory_budget_gb=random.choice([None, 1.2345]), disk_offload_dir="/data/secret")
        words = ("wrap_called", "finish", "decoder", "planned", "/data/secret", "SecretlyNamedNet", "7.123GB", "")
        text = _core.telemetry_event(
            random.choice(words),
            random.choice(words),
            random.choice(words),
            random.randrange(2**45),
            random.choice([2**64 - 1, 12345]),
            json.dumps(hardware),
            config.to_json(),
            None,
        )
        EVENT.validate(json.loads(text))
        assert "ecret" not in text


def test_what_is_sent_is_an_event_and_nothing_else() -> None:
    receiver = _Receiver()
    memscale.enable_telemetry(receiver.url)
    _train()
    with pytest.raises(memscale.BudgetInfeasibleError):
        memscale.wrap(
            nn.Linear(3, 3), Config(memory_budget_gb=0.001, enable_logging=False), sample_input=torch.ones(2, 3)
        )
    receiver.wait_for(3)
    receiver.close()
    events = [json.loads(body) for body in receiver.bodies]
    for event, headers in zip(events, receiver.headers, strict=True):
        EVENT.validate(event)
        assert set(headers) == {"Host", "Accept-Encoding", "Content-Length", "Content-Type", "User-Agent"}
        assert headers["User-Agent"] == "memscale"
    assert [(e["event"], e["outcome"]) for e in events] == [
        ("wrap_called", "planned"),
        ("finish", "finished"),
        ("wrap_called", "infeasible"),
    ]


def test_step_options_are_among_the_techniques_and_the_schema_knows_each() -> None:
    kinds = SCHEMA["properties"]["techniques"]["items"]["anyOf"][1]["enum"]
    model = SecretlyNamedNet(nn.Linear(37, 41), nn.ReLU(), nn.Linear(41, 3))
    wrapped = memscale.wrap(model, Config(enable_logging=False), sample_input=torch.ones(5, 37))
    plan = json.loads(wrapped._memscale_executor.plan.to_json())
    memscale.detach(model)
    assert kinds == [option["name"] for option in plan["step_options"]]
    for option in plan["step_options"]:
        option["chosen"] = True
    event = json.loads(_core.telemetry_event("wrap_called", "", "", 0, 0, None, None, json.dumps(plan)))
    EVENT.validate(event)
    assert event["techniques"] == ["keep", *kinds]


def test_an_endpoint_keeps_its_query() -> None:
    receiver = _Receiver()
    memscale.enable_telemetry(receiver.url + "?token=a%20b&x=1")
    _train()
    receiver.wait_for(1)
    receiver.close()
    assert set(receiver.paths) == {"/v2/events?token=a%20b&x=1"}


def test_architectures_are_told_by_their_modules() -> None:
    classify = telemetry.architecture_of
    assert classify(nn.Sequential(nn.Conv2d(1, 1, 1))) == "convolutional"
    assert classify(nn.LSTM(2, 2)) == "recurrent"
    assert classify(nn.TransformerEncoderLayer(4, 2)) == "attention"
    assert classify(nn.Linear(2, 2)) == "other"
    transformers = pytest.importorskip("transformers")
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16))
    assert classify(gpt2) == "decoder"


# -- broken endpoints -----------------------------------------------------------------------------


def test_no_endpoint_can_break_or_slow_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_TIMEOUT_SECONDS", 2 * HANG_SECONDS)
    with socket.socket() as silent:  # accepts, never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        failing = _Receiver(500)
        endpoints = [
            f"http://127.0.0.1:{silent.getsockname()[1]}/",
            "http://127.0.0.1:9/",
            failing.url,
            "https://127.0.0.1:9/",
            "http://no.such.host.invalid/",
        ]
        for endpoint in endpoints:
            memscale.enable_telemetry(endpoint)
            assert _train() < HANG_SECONDS
        failing.close()


def test_a_full_queue_drops_and_a_wrong_url_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        memscale.enable_telemetry(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        for _ in range(1000):
            telemetry.record("wrap_called", "planned", "other", 0, (None, None, None))
    for wrong in ("ftp://x/", "nothing", "http://", "http://host:99999/"):
        with pytest.raises(ValueError, match="http or https"):
            memscale.enable_telemetry(wrong)
    with pytest.raises(TypeError, match="str or None"):
        memscale.enable_telemetry(3)  # type: ignore[arg-type]
    telemetry._state.update(chosen=None, sender=None)
    monkeypatch.setenv("MEMSCALE_TELEMETRY", "1")
    monkeypatch.setenv("MEMSCALE_TELEMETRY_ENDPOINT", "nothing")
    _train()
    assert "nothing is sent" in caplog.text
