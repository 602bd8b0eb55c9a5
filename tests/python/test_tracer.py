"""The tracer, called as by an owner of hooks, and its errors for wrong reports."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from torch import nn

from memscale import _core
from memscale.errors import MemScaleError
from memscale.tracing.profiler import MemoryProfiler
from memscale.tracing.tracer import LiveTracer


def test_a_paused_tracer_sees_only_deaths():
    tracer = LiveTracer("Toy", "", "empirical")
    tracer.start()
    try:
        x = torch.zeros(8)
        tracer.pause()
        y = x + 1
        tracer.resume()
        z = y * 2
        tracer.pause()
        del x, z
        tracer.resume()
    finally:
        tracer.stop()
    profile = json.loads(tracer.finish())["profiles"][0]
    assert profile["storage_bytes"] == [32, 32]  # x and z; the tracer was paused while y was made
    lifetimes = [event for event in profile["forward"] if event[0] != "work"]
    assert lifetimes == [["alloc", 0], ["alloc", 1], ["free", 0], ["free", 1]]
    assert y is not None


def test_views_are_no_work_and_no_storage():
    tracer = LiveTracer("Toy", "", "empirical")
    tracer.start()
    try:
        x = torch.zeros(2, 4)
        x.t().reshape(8)[2:].view(2, 3).unsqueeze(0).expand(5, 2, 3)
        torch.ops.aten._unsafe_view(x, [8])
    finally:
        tracer.stop()
    events = json.loads(tracer.finish())["profiles"][0]["forward"]
    assert [event[0] for event in events] == ["alloc", "work", "alloc", "work", "free"]  # zeros, reshape's copy


def test_gradients_of_the_step_before_count_from_backward_on():
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(2, 8)
    model(x).sum().backward()
    tracer = LiveTracer("Toy", "", "empirical")
    tracer.resident_parameters(model.parameters())
    tracer.start()
    try:
        loss = model(x).sum()
        tracer.phase("backward")
        loss.backward()
        tracer.gradients(model.parameters())
        tracer.phase("done")
    finally:
        tracer.stop()
    graph = json.loads(tracer.finish())
    assert sum(s["bytes"] for s in graph["storages"] if s["role"] == "gradient") == 2 * (64 + 8) * 4


def test_mistakes_of_the_reporter_are_errors():
    trace_object = _core.Trace("Toy", "", "static")
    with pytest.raises(MemScaleError, match="no layer to leave"):
        trace_object.leave()
    with pytest.raises(ValueError, match="phase"):
        trace_object.phase("dinner")
    with pytest.raises(ValueError, match="flag"):
        trace_object.flag(0, "tall")
    with pytest.raises(TypeError):
        trace_object.op("aten.mm.default", [1], ())
    with pytest.raises(TypeError):
        trace_object.op("aten.mm.default", ((1, 2),), ())
    with pytest.raises((OverflowError, TypeError)):
        trace_object.born(-1, 4)
    with pytest.raises(MemScaleError, match="malformed|graph"):
        _core.graph_check("{}")
    json.loads(trace_object.finish())
    with pytest.raises(MemScaleError, match="finished"):
        trace_object.born(1, 4)


def test_operators_with_many_dimensions_and_operands_are_reported():
    trace_object = _core.Trace("Toy", "", "static")
    trace_object.born(1, 4)
    many = tuple((tuple(range(1, 12)), 7) for _ in range(40))
    trace_object.op("aten.stack.default", many, (((), 4),))
    assert ["work", 0, 284] in json.loads(trace_object.finish())["profiles"][0]["forward"]


def test_devices_of_fake_tensors_are_told_without_bytecode():
    """torch asks for them in functions that let no exception out: an interrupt there would end the process."""
    asked, before = set(), sys.gettrace()

    def look(frame, event, _):
        if event == "call" and frame.f_code.co_name == "__torch_dispatch__" and "memscale" in frame.f_code.co_filename:
            asked.add(frame.f_locals.get("func"))

    model, rows = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(2, 4)
    profiler = MemoryProfiler()
    sys.settrace(look)
    try:
        profiler.trace(model, (rows,))
    finally:
        sys.settrace(before)
    assert torch.ops.aten.gelu.default in asked
    assert torch.ops.prim.device.default not in asked
