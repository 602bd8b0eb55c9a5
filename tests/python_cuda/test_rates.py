"""A device's rates are measured once, with torch's operators. Only the cached figures remain."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import FOLDER
from torch import nn

import memscale
from memscale import _core
from memscale.device import kind_of
from memscale.session import device_rates

CUDA = torch.device("cuda", 0)
RATES = (
    "matmul_flops_per_s",
    "bf16_flops_per_s",
    "fp16_flops_per_s",
    "stream_bytes_per_s",
    "to_host_bytes_per_s",
    "from_host_bytes_per_s",
    "pageable_to_host_bytes_per_s",
    "pageable_from_host_bytes_per_s",
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(device_rates, "_LIMIT_NS", 10**11)  # the host that plays the device may be slow
    return tmp_path / "memscale"


def described() -> str:
    return _core.hardware_probe(no_measure=True)


def test_all_rates_are_measured_once_and_then_read(cache):
    hardware, measured = device_rates.with_rates(described(), CUDA)
    gpu = json.loads(hardware)["gpus"][0]
    assert measured and all(gpu[name] > 0 for name in RATES)
    assert len(list(cache.glob("rates-gpu-*"))) == 1
    again, measured = device_rates.with_rates(described(), CUDA)
    assert not measured and json.loads(again)["gpus"][0] == gpu


@pytest.mark.parametrize("change", ["driver", "precision"])
def test_another_driver_or_precision_is_measured_again(change, monkeypatch):
    device_rates.with_rates(described(), CUDA)
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        if change == "driver":
            monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 13050, raising=False)
        else:
            torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert device_rates.with_rates(described(), CUDA)[1]
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_measuring_leaves_random_numbers_peaks_and_memory_alone():
    torch.manual_seed(7)
    states = torch.get_rng_state(), torch.cuda.get_rng_state()
    torch.cuda.reset_peak_memory_stats()
    kept = torch.cuda.memory_allocated()
    device_rates.with_rates(described(), CUDA)
    assert torch.equal(states[0], torch.get_rng_state()) and torch.equal(states[1], torch.cuda.get_rng_state())
    assert torch.cuda.memory_allocated() == kept == torch.cuda.max_memory_allocated()


def test_rates_that_cannot_be_measured_keep_their_estimates(monkeypatch, cache):
    monkeypatch.setattr(device_rates, "_LIMIT_NS", -1)
    before = json.loads(described())["gpus"][0]
    hardware, measured = device_rates.with_rates(described(), CUDA)
    assert measured and json.loads(hardware)["gpus"][0] == before
    assert not list(cache.glob("rates-gpu-*"))


def test_without_memory_for_a_trial_the_run_goes_on(double):
    torch.cuda.empty_cache()
    double.set_memory(0, 8 << 20, 7 << 20)
    hardware, _ = device_rates.with_rates(described(), CUDA)
    assert json.loads(hardware)["gpus"][0]["matmul_flops_per_s"] > 0
    torch.cuda.synchronize()


def test_a_plan_is_made_with_the_measured_rates():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to("cuda")
    plan = memscale.plan(model, torch.randn(4, 8, device="cuda"), memscale.Config(force_optimize=True))
    gpu = json.loads(plan._hardware)["gpus"][0]
    assert gpu["pageable_to_host_bytes_per_s"] > 0
    assert kind_of(CUDA).identity(CUDA).count("driver") == 1


def test_training_on_the_host_leaves_the_driver_alone():
    code = """
import memscale, torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
x = torch.randn(4, 8)
memscale.plan(model, x, memscale.Config(force_optimize=True))
memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False))
model(x).sum().backward()
assert "libcuda_double" not in open("/proc/self/maps").read()
"""
    driver = str(FOLDER / "cuda_double" / "libcuda_double.so")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MEMSCALE_LIBCUDA": driver},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
