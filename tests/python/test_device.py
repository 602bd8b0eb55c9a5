"""The device seam in Python: every kind has a complete row, and its states and errors are as promised."""

import dataclasses
import random
import subprocess
import sys

import numpy
import pytest
import torch

import memscale
from memscale import _core, device


def test_every_kind_of_the_library_has_a_whole_row():
    assert list(device.KINDS) == [row["name"] for row in _core.device_kinds()]
    for name, kind in device.KINDS.items():
        assert kind.name == name
        for column in dataclasses.fields(kind):
            value = getattr(kind, column.name)
            assert isinstance(value, (str, bool)) or callable(value), f"{name} has no {column.name}"


def test_a_row_that_lacks_a_column_is_refused():
    columns = {column.name: getattr(device.HOST, column.name) for column in dataclasses.fields(device.Kind)}
    del columns["synchronize"]
    with pytest.raises(TypeError, match="synchronize"):
        device.Kind(**columns)


def test_the_host_comes_first_and_is_there():
    assert next(iter(device.KINDS.values())) is device.HOST
    assert device.HOST.is_there() and device.HOST.is_active()
    assert not any(kind.is_host for kind in device.ACCELERATORS)


def test_rows_name_what_torch_has():
    for kind in device.ACCELERATORS:  # holds without such a device too; is_there() is false then
        module = getattr(torch, kind.name)
        names = (
            *("is_available", "is_initialized", "device_count", "current_device", "get_rng_state", "set_rng_state"),
            *("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats", "synchronize", "empty_cache"),
            *("mem_get_info", "memory_reserved", "get_device_name", "is_current_stream_capturing"),
        )
        assert all(callable(getattr(module, name)) for name in names)
        assert torch.device(kind.name).type == kind.name
        assert kind.is_there() == module.is_available()


@pytest.mark.parametrize("name", ["xpu", "mps", "privateuseone"])
def test_an_unknown_kind_is_refused_by_its_name(name):
    with pytest.raises(memscale.errors.MemScaleError, match=f'not on devices of kind "{name}"'):
        device.kind_of(torch.device(name, 0))
    with pytest.raises(memscale.errors.MemScaleError, match=name):
        _core.hardware_set_process(_core.hardware_probe(no_measure=True), name, 0, "", 0, 0, 0, 0)


def test_meta_tensors_are_planned_for_the_host():
    assert device.kind_of(torch.device("meta")) is device.HOST


def test_a_wrap_names_the_kind_that_it_refuses(monkeypatch):
    model = torch.nn.Linear(2, 2)
    monkeypatch.setattr("memscale.session.session.planned_device", lambda model, placement: torch.device("mps"))
    with pytest.raises(memscale.errors.MemScaleError, match='kind "mps"'):
        memscale.wrap(model, memscale.Config(memory_budget_gb=4))


def test_random_states_are_put_back():
    def draws():
        return torch.rand(3).tolist(), random.random(), numpy.random.rand()

    before = device.RandomState()
    first = draws()
    assert draws() != first
    before.put_back()
    assert draws() == first


def test_states_of_accelerators_that_nobody_used_are_not_asked_for():
    if any(kind.is_there() for kind in device.ACCELERATORS):
        pytest.skip("there is an accelerator")
    assert device._devices_in_use() == []


def test_the_peak_of_the_host_starts_again():
    held = torch.ones(50_000_000, dtype=torch.uint8)
    high = device.HOST.peak_bytes(None)
    assert high > 50_000_000
    del held
    device.HOST.reset_peak(None)
    assert device.HOST.peak_bytes(None) < high
    assert device.HOST.allocated_bytes(None) == 0


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("DefaultCPUAllocator: can't allocate memory"), False),
    ],
)
def test_allocators_errors_are_told_from_others(error, is_memory):
    assert device.is_out_of_memory(error) == is_memory


def test_the_module_does_not_import_torch():
    code = "import sys, memscale.device; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
