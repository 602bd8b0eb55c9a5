"""A GPU or its driver refuses something: the run continues, or ends in a typed error that names the cause. Nothing
hangs, and after detach() the model trains as before."""

from __future__ import annotations

import os

import pytest
import torch
from cuda_support import twins_on
from execute_support import assert_same, train
from test_double import run_alone
from test_exact import plan_for

import memscale
from memscale import _core
from memscale.errors import MemScaleError
from memscale.execution.executor import Executor
from memscale.session import device_rates

# The calls that the engine makes when it opens, each with an error that real drivers return: a library older than the
# kernel's module (803), no such device (101), a device that another process has for itself (46), a lost device (719),
# no more memory or handles (2).
REFUSALS = [
    ("cuInit", 803),
    ("cuDeviceGet", 101),
    ("cuDevicePrimaryCtxRetain", 46),
    ("cuCtxPushCurrent_v2", 719),
    ("cuStreamCreate", 2),
    ("cuEventCreate", 2),
]


@pytest.mark.double
@pytest.mark.parametrize(("call", "result"), REFUSALS)
def test_a_driver_that_refuses_to_open_is_named(double, tmp_path, call, result):
    case, twin = twins_on("mlp")
    expected = train(case, twin)
    executor = Executor(case.model, disk_dir=str(tmp_path))
    executor.attach()
    double.fail(call, 1, result)
    try:
        executor.apply(plan_for(case.model, "offload_host"))
    except MemScaleError as error:
        assert "GPU 0: " in str(error) and "driver error" in str(error), error
    else:
        assert_same(expected, train(case, case.model))
        return
    finally:
        executor.detach()
    double.reset()
    assert_same(expected, train(case, case.model))


def wrapped(caplog, **switches) -> Executor:
    """Wraps a model that is forced to save memory, trains two steps beside a twin, and compares the gradients."""
    case, twin = twins_on("mlp")
    expected = train(case, twin)
    with caplog.at_level("INFO", "memscale"):
        config = memscale.Config(force_optimize=True, **switches)
        executor = memscale.wrap(case.model, config)._memscale_executor
        try:
            assert_same(expected, train(case, case.model))
        finally:
            memscale.detach(case.model)
    return executor


# The call that fails for good, the driver's answer, and what the warning says.
UNUSABLE = [
    ("cuInit", 803, "different versions"),
    ("cuInit", 804, "the driver is too old"),
    ("cuInit", 3, "a forked child"),
    ("cuDeviceGetCount", 100, "no device is visible"),
]


@pytest.mark.double
@pytest.mark.parametrize(("call", "result", "why"), UNUSABLE)
def test_a_driver_that_gives_no_device_is_told_and_nothing_is_moved(double, caplog, call, result, why):
    double.fail(call, 0, result)
    executor = wrapped(caplog)
    (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "GPU 0: nothing can be moved" in told and f"driver error {result}: " in told and why in told
    assert executor.counters()["offloaded_bytes"] == 0 and executor.counters()["recomputed_layers"] > 0


@pytest.mark.double
def test_a_missing_driver_is_told_at_wrap():
    done = run_alone(
        """
        import logging, os
        os.environ["MEMSCALE_LIBCUDA"] = "/nonexistent/libcuda.so.1"
        logging.basicConfig(level=logging.WARNING)
        import memscale
        memscale.wrap(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).to("cuda"))
        """
    )
    assert done.returncode == 0, done.stderr
    assert "GPU 0: nothing can be moved from it" in done.stderr and "no CUDA driver: /nonexistent" in done.stderr


def test_a_device_that_another_process_has_for_itself_is_told_by_that(double, tmp_path):
    case, _ = twins_on("mlp")
    executor = Executor(case.model, disk_dir=str(tmp_path))
    executor.attach()
    double.fail("cuDevicePrimaryCtxRetain", 0, 46)
    try:
        with pytest.raises(MemScaleError, match=r"GPU 0: no context \(driver error 46: another process has it"):
            executor.apply(plan_for(case.model, "offload_host"))
    finally:
        executor.detach()


def test_memory_that_the_driver_does_not_pin_is_told_with_its_rate(double, caplog):
    device_rates.with_rates(_core.hardware_probe(), torch.device("cuda", 0))  # while it can be pinned
    double.limit_pinned(0)
    executor = wrapped(caplog, enable_checkpointing=False)
    assert executor.counters()["offloaded_bytes"] > 0
    (told,) = [record.message for record in caplog.records if "the driver pins" in record.message]
    assert "0 B of host memory" in told and told.count("B/s") == 2


def test_a_slice_of_a_card_that_the_driver_shows_whole_is_refused(monkeypatch):
    model = torch.nn.Linear(8, 8).to("cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (4 << 30, 5 << 30))
    with pytest.raises(MemScaleError, match="MIG"):
        memscale.wrap(model)
    assert not hasattr(model, "_memscale_executor") and not model._forward_pre_hooks


def test_a_child_forked_in_training_may_use_the_host_and_ends(tmp_path):
    """A data loader's worker does so. The parent trains on."""
    case, twin = twins_on("mlp")
    expected = train(case, twin)
    executor = Executor(case.model, disk_dir=str(tmp_path))
    executor.attach()
    try:
        executor.apply(plan_for(case.model, "offload_host"))
        args, kwargs = case.batch(0)
        case.model(*args, **kwargs)
        torch.cuda.synchronize()
        child = os.fork()
        if child == 0:
            os._exit(int(float(torch.ones(1000).sum()) != 1000.0))
        assert os.waitpid(child, 0)[1] == 0
        assert_same(expected, train(case, case.model))
    finally:
        executor.detach()
