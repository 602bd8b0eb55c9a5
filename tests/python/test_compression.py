"""Bytes that go to a slow disk are compressed if that saves time, and are restored exactly."""

from __future__ import annotations

import copy
import json
import logging

import pytest
import torch
from execute_support import assert_same, executing, stored, train, uniform
from models import MODELS

import memscale


def test_a_step_through_compressed_extents_is_the_plain_step(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMSCALE_DISK_COMPRESSION", "always")
    case = MODELS["gpt2"]()
    twin = copy.deepcopy(case.model)
    expected = train(case, twin)
    with executing(case.model, uniform(case.model, "offload_disk", min_bytes=4096), tmp_path) as executor:
        found = train(case, case.model)
        assert executor.counters()["offloaded_bytes"] > 0
    assert_same(expected, found)


@pytest.mark.parametrize(
    ("bytes_per_s", "decision"),
    [(1_000_000, "pieces are compressed if that saves time"), (40_000_000_000, "nothing is compressed")],
)
def test_the_measured_link_decides_and_the_log_says_so(bytes_per_s, decision, tmp_path, monkeypatch, caplog):
    from memscale import _core

    probe = _core.hardware_probe

    def with_that_link(*arguments, **options):
        machine = json.loads(probe(*arguments, **options))
        machine["disk"]["write_bytes_per_s"] = machine["disk"]["read_bytes_per_s"] = bytes_per_s
        return json.dumps(machine)

    monkeypatch.delenv("MEMSCALE_DISK_COMPRESSION", raising=False)
    monkeypatch.setattr(_core, "hardware_probe", with_that_link)
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(4)))
    config = memscale.Config(
        force_optimize=True, enable_checkpointing=False, disk_offload_dir=str(tmp_path), max_cpu_offload_gb=0.0
    )
    memscale.wrap(model, config)
    with caplog.at_level(logging.DEBUG, logger="memscale"):
        loss = model(torch.randn(512, 256)).sum()
        stored(model)
        loss.backward()
        moved = model._memscale_executor.counters()["disk_bytes"]
        memscale.detach(model)
    assert moved > 0
    assert any(decision in record.getMessage() for record in caplog.records)
