"""Promises of the CUDA path other than exact bits: peaks, waits, failures, unusual scripts."""

from __future__ import annotations

import gc
import json
import subprocess
import threading

import pytest
import torch
from cuda_support import case_on, twins_on
from execute_support import assert_same, stored, train
from test_double import run_alone
from test_exact import plan_for
from torch import nn

import memscale
from memscale.errors import BudgetInfeasibleError, MemScaleError
from memscale.execution.executor import Executor

MB = 2**20


def blocks(count: int = 6, width: int = 128, p: float = 0.1) -> nn.Module:
    """A model of equal layers with dropout, which can be recomputed or offloaded."""
    torch.manual_seed(0)
    layer = [
        nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(p)) for _ in range(count)
    ]
    return nn.Sequential(*[nn.Sequential(one, nn.Linear(4 * width, width)) for one in layer])


def step_of(model: nn.Module, x: torch.Tensor) -> None:
    model(x).square().mean().backward()


# ---- bytes ---------------------------------------------------------------------------------------------


def test_the_peak_of_a_step_is_measured():
    model, x = blocks().to("cuda"), torch.randn(512, 128, device="cuda")
    with memscale.optimize(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        memscale.Config(force_optimize=True, enable_logging=False),
    ) as executor:
        for _ in range(3):
            model.zero_grad()
            step_of(model, x)
        assert (executor.take_peak_bytes() or 0) > 0


@pytest.mark.parametrize("foreach", [None, False])
def test_the_predicted_peak_holds_for_the_optimizers_step(foreach):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).to("cuda")
    x = torch.randn(16, 1024, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
    peaks = []
    config = memscale.Config(memory_budget_gb=0.4, enable_logging=False)
    with memscale.optimize(model, optimizer, config) as executor:
        for _ in range(3):
            torch.cuda.reset_peak_memory_stats()
            step_of(model, x)
            optimizer.step()
            peaks.append(torch.cuda.max_memory_allocated())
            optimizer.zero_grad()
        predicted = executor.plan.predicted_peak_bytes
    assert 0.92 * max(peaks) <= predicted <= 1.08 * max(peaks)


def test_without_a_budget_the_target_counts_what_is_free(double):
    total = torch.cuda.mem_get_info()[1]
    double.set_memory(0, total, taken_bytes=total - 2 * 10**9)
    model, x = blocks().to("cuda"), torch.randn(64, 128, device="cuda")
    plan = memscale.plan(model, x, memscale.Config(force_optimize=True))
    assert json.loads(plan.to_json())["pressure"]["allowed_bytes"] <= 2 * 10**9


def test_workspaces_of_matrix_products_are_planned():
    model, x = blocks(p=0.0).to("cuda"), torch.randn(64, 128, device="cuda")
    plan = json.loads(memscale.plan(model, x, memscale.Config(force_optimize=True)).to_json())
    assert plan.get("reserve_bytes", 0) >= 8 * MB


def test_memory_that_runs_out_in_a_fetch_is_torchs_error():
    gc.collect()  # other tests' memory, freed during this test, would give it room
    torch.cuda.empty_cache()
    model, x = blocks(4, 64).to("cuda"), torch.randn(4096, 64, device="cuda")
    config = memscale.Config(force_optimize=True, enable_checkpointing=False, enable_logging=False)
    memscale.wrap(model, config, async_offload=True)
    step_of(model, x)
    total = torch.cuda.mem_get_info()[1]
    failures = []
    # One more segment in each round lets backward get further.
    for spare in range(0, 24 * MB, 2 * MB):
        model.zero_grad()
        loss = model(x).square().mean()
        stored(model)  # waits for all stores, so that backward must fetch everything
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + spare) / total)
        try:
            loss.backward()
        except Exception as error:  # of any class; the class is checked below
            failures.append(error)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
            del loss
    memscale.detach(model)
    assert all(isinstance(error, torch.OutOfMemoryError) for error in failures), failures
    assert any("fetched back" in str(error) for error in failures), failures


# ---- the host runs ahead --------------------------------------------------------------------------------


def waits(double, call) -> bool:
    """Calls `call` while streams are stopped; returns whether the host waits for the device."""
    failures = []

    def guarded() -> None:
        torch.get_num_threads()  # sets this thread's number of threads; without it no layer would be recomputed
        try:
            call()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=guarded)
    with double.stopped():
        thread.start()
        thread.join(timeout=10)
        has_waited = thread.is_alive()
    thread.join()
    assert not failures, failures
    return has_waited


def offloaded(overlap: bool, tmp_path) -> tuple[nn.Module, Executor]:
    model = blocks().to("cuda")
    executor = Executor(model, config=memscale.Config(async_offload=overlap), disk_dir=str(tmp_path))
    executor.attach()
    executor.apply(plan_for(model, "offload_host"))
    return model, executor


def test_a_plain_step_does_not_wait(double):
    model, x = blocks().to("cuda"), torch.randn(512, 128, device="cuda")
    step_of(model, x)
    torch.cuda.synchronize()
    assert not waits(double, lambda: step_of(model, x))


def test_a_recomputed_step_does_not_wait(double, tmp_path):
    model, x = blocks().to("cuda"), torch.randn(512, 128, device="cuda")
    executor = Executor(model, disk_dir=str(tmp_path))
    executor.attach()
    executor.apply(plan_for(model, "recompute"))
    try:
        step_of(model, x)
        torch.cuda.synchronize()
        assert not waits(double, lambda: step_of(model, x))
    finally:
        executor.detach()


def test_transfers_that_wait_are_planned_as_waiting():
    model, x = blocks(p=0.0).to("cuda"), torch.randn(4096, 128, device="cuda")
    times = []
    for overlap in (True, False):
        config = memscale.Config(force_optimize=True, enable_checkpointing=False, async_offload=overlap)
        times.append(json.loads(memscale.plan(model, x, config).to_json())["predicted"]["step_ns"])
    assert times[1] > times[0]


def test_backward_with_fetches_does_not_wait(double, tmp_path):
    model, executor = offloaded(True, tmp_path)
    x = torch.randn(512, 128, device="cuda")
    try:
        step_of(model, x)
        loss = model(x).square().mean()
        torch.cuda.synchronize()
        assert not waits(double, loss.backward)
    finally:
        executor.detach()


class Masked(nn.Module):
    """A model that takes a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.body = blocks(3)

    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.body(x) * attention_mask[..., None]


def test_a_mask_does_not_make_forward_wait(double):
    model = Masked().to("cuda")
    x, mask = torch.randn(4, 16, 128, device="cuda"), torch.ones(4, 16, dtype=torch.long, device="cuda")
    memscale.wrap(model, memscale.Config(force_optimize=True, enable_offloading=False, enable_logging=False))
    for _ in range(2):
        model(x, attention_mask=mask).sum().backward()
    torch.cuda.synchronize()
    try:
        assert not waits(double, lambda: model(x, attention_mask=mask))
    finally:
        memscale.detach(model)


def test_a_steps_time_is_reported_once_the_device_has_run_the_step(double):
    """While streams are stopped, the host finishes steps. Their times come once the device has run them."""
    model, x = blocks(3).to("cuda"), torch.randn(64, 128, device="cuda")
    memscale.wrap(model, memscale.Config(force_optimize=True, enable_offloading=False, enable_logging=False))
    executor = model._memscale_executor
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told, teach = [], executor._planner.step_finished

    def step() -> None:
        step_of(model, x)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    executor._planner.step_finished = lambda seen: (told.append(seen), teach(seen))[1]
    try:
        with double.stopped():
            step()  # its own time can't be told yet
        torch.cuda.synchronize()
        told.clear()
        with double.stopped():
            step()
            step()
        assert [seen.get("time_lag") for seen in told] == [1, None]
        torch.cuda.synchronize()
        step()
        step()
    finally:
        memscale.detach(model)
    assert [seen["step"] - seen["time_lag"] for seen in told[2:]] == [told[0]["step"], told[1]["step"]]
    assert all(seen["step_ns"] > 0 for seen in told[2:])


# ---- failures ----------------------------------------------------------------------------------------


def test_without_pinned_memory_it_trains_alike(double, tmp_path):
    case, twin = twins_on("mlp")
    expected = train(case, twin)
    double.fail("cuMemHostRegister_v2", 1, 2)  # out of memory; memscale doesn't ask the driver again
    executor = Executor(case.model, disk_dir=str(tmp_path))
    executor.attach()
    try:
        executor.apply(plan_for(case.model, "offload_host"))
        assert_same(expected, train(case, case.model))
        assert executor.counters()["offloaded_bytes"] > 0
    finally:
        executor.detach()


@pytest.mark.double
@pytest.mark.breaks_rules  # destroys streams that still hold work of a lost device
def test_a_device_that_is_lost_ends_the_step_with_an_error():
    done = run_alone(
        """
        import memscale
        model = torch.nn.Sequential(
            *[torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)) for _ in range(4)]
        ).to("cuda")
        config = memscale.Config(force_optimize=True, enable_checkpointing=False, enable_logging=False)
        memscale.wrap(model, config)
        x = torch.randn(4096, 64, device="cuda")
        model(x).square().mean().backward()
        torch.cuda.synchronize()
        loss = model(x).square().mean()
        torch_double.fail("work", 1, 719)
        try:
            loss.backward()
            torch.cuda.synchronize()
        except (memscale.MemScaleError, RuntimeError) as error:
            print("told:", type(error).__name__)
        """
    )
    assert "told:" in done.stdout, (done.stdout, done.stderr)


# ---- unusual scripts --------------------------------------------------------------------------------------


def test_a_model_may_move_to_the_device_after_wrap():
    model = blocks()
    memscale.wrap(model, memscale.Config(memory_budget_gb=0.2, enable_logging=False))
    try:
        model.to("cuda")
        step_of(model, torch.randn(64, 128, device="cuda"))
    except BudgetInfeasibleError as error:  # raised if the host's resident memory is held against the GPU's budget
        pytest.fail(str(error))
    finally:
        memscale.detach(model)


@pytest.mark.double
def test_recomputation_needs_no_driver():
    done = run_alone(
        """
        import os
        os.environ["MEMSCALE_LIBCUDA"] = "/nonexistent"
        import memscale
        model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(3)])
        model.to("cuda")
        config = memscale.Config(force_optimize=True, enable_offloading=False, enable_logging=False)
        memscale.wrap(model, config)
        model(torch.randn(4, 8, device="cuda")).sum().backward()
        assert model._memscale_executor.counters()["recomputed_layers"] > 0
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.double
def test_a_script_that_ends_right_after_a_backward_ends_with_status_0():
    """Autograd's thread now and then drops what was queued only after backward() has returned, on one CPU in a tenth of
    the steps. The interpreter ends while it does so: the thread sleeps in the end of what the user queued, which comes
    before memscale's own, and the interpreter longer."""
    done = run_alone(
        """
        import os, sys, threading, time, memscale
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(3)])
        model.to("cuda")
        memscale.wrap(model, memscale.Config(force_optimize=True, enable_offloading=False, enable_logging=False))
        in_time = threading.Event()

        class Queued:
            def __call__(self):
                pass

            def __del__(self):
                if threading.current_thread() is not threading.main_thread():
                    in_time.set()
                    time.sleep(0.3)

        class Global:
            def __del__(self, sleep=time.sleep):
                sleep(0.6)

        kept = Global()
        x = torch.randn(4, 8, device="cuda")
        for _ in range(1000):
            loss = model(x).sum()
            queue = torch.autograd.Variable._execution_engine.queue_callback
            loss.register_hook(lambda _: queue(Queued()))
            loss.backward()
            if in_time.wait(0.001):
                sys.exit(0)
        sys.exit("autograd's thread never came second")
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.double
def test_rocms_driver_moves_what_cudas_does():
    done = run_alone(
        """
        torch.version.hip = "6.4"
        import copy, memscale
        blocks = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(4)]
        model = torch.nn.Sequential(*blocks).to("cuda:1")
        twin, x = copy.deepcopy(model), torch.randn(4096, 64, device="cuda:1")
        config = memscale.Config(force_optimize=True, enable_checkpointing=False, enable_logging=False)
        memscale.wrap(model, config)
        for one in (model, twin):
            for _ in range(3):
                one(x).square().mean().backward()
        assert model._memscale_executor.counters()["offloaded_bytes"] > 0
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
        torch.cuda.synchronize(1)
        assert torch_double.violations()[0] == 0, torch_double.violations()
        assert torch.cuda.current_device() == 0
        memscale.detach(model)
        """,
        rocm=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.double
@pytest.mark.parametrize("device", ["xpu", "mps"])
def test_other_accelerators_are_refused_by_name(device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = nn.Module()
        model.weight = nn.Parameter(torch.empty(4, 4, device=device))
    with pytest.raises(MemScaleError, match=device):
        memscale.wrap(model)


def test_is_tracing_is_true_in_a_traced_backward(tmp_path):
    from memscale.base.aside import is_tracing

    seen = tmp_path / "seen"  # a trace undoes what it changes in memory

    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.write_text(str(is_tracing()))
            return gradient * 2

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = blocks(2)

        def forward(self, x):
            return Asks.apply(self.body(x))

    memscale.trace(Model().to("cuda"), torch.randn(4, 128, device="cuda"))
    assert seen.read_text() == "True"


@pytest.mark.double
@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_doctor_knows_both_names_of_the_allocators_settings(name):
    program = memscale.__path__[0].split("/lib/")[0] + "/bin/memscale"
    done = subprocess.run(
        [program, "doctor"], env={name: "backend:cudaMallocAsync"}, capture_output=True, text=True, timeout=600
    )
    assert name in done.stdout, done.stdout


@pytest.mark.double
def test_a_plugins_device_is_refused_by_its_name():
    done = run_alone(
        """
        import types
        torch.utils.rename_privateuse1_backend("widget")
        module = types.ModuleType("torch.widget")
        module.is_available, module.device_count, module.current_device = lambda: True, lambda: 1, lambda: 0
        module.is_initialized = lambda: True
        torch._register_device_module("widget", module)
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode():
            model = torch.nn.Module()
            model.weight = torch.nn.Parameter(torch.empty(4, 4, device="widget"))
        import memscale
        try:
            memscale.wrap(model)
        except memscale.MemScaleError as error:
            assert "widget" in str(error), error
            assert not hasattr(model, "_memscale_executor") and not model._forward_pre_hooks
        else:
            raise AssertionError("wrap() accepted the device")
        """
    )
    assert done.returncode == 0, done.stderr


class DrawsElsewhere(nn.Module):
    """Dropout on a device that holds neither the layer's arguments nor its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dropped = nn.functional.dropout(self.up(x).to("cuda:1"), 0.5)
        return self.down(dropped.to("cuda:0"))


def test_dropout_on_another_device_is_replayed_alike(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(*[DrawsElsewhere() for _ in range(3)]).to("cuda:0")
    x = torch.randn(16, 32, device="cuda:0")

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(5)
        step_of(model, x)
        return [parameter.grad.clone() for parameter in model.parameters()]

    expected = gradients()
    executor = Executor(model, disk_dir=str(tmp_path))
    executor.attach()
    executor.apply(plan_for(model, "recompute"))
    try:
        found = gradients()
        assert executor.counters()["recomputed_layers"] == 3
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    finally:
        executor.detach()


def test_a_capture_is_refused_by_name(monkeypatch):
    model, x = blocks(2).to("cuda"), torch.randn(4, 128, device="cuda")
    memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False))
    try:
        with monkeypatch.context() as patch:  # as torch answers during a capture; the double has no graphs
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            with pytest.raises(MemScaleError, match="CUDA graph"):
                model(x)
        step_of(model, x)
    finally:
        memscale.detach(model)


@pytest.mark.double
def test_a_step_that_ran_out_of_memory_runs_again():
    gc.collect()
    torch.cuda.empty_cache()
    model, x = blocks(4, 64, p=0.0).to("cuda"), torch.randn(4096, 64, device="cuda")
    config = memscale.Config(memory_budget_gb=0.07, enable_logging=False)
    memscale.wrap(model, config)
    step_of(model, x)
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    executor = model._memscale_executor
    attempts = []

    def step() -> None:
        torch.cuda.set_per_process_memory_fraction(1.0)
        loss = model(x).square().mean()
        attempts.append(None)
        if len(attempts) == 1:  # the first attempt gets no more memory
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / torch.cuda.mem_get_info()[1])
        loss.backward()

    model.zero_grad()
    executor.run_step(step)
    assert len(attempts) == 2
    found = [parameter.grad for parameter in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    memscale.detach(model)


def test_a_model_that_moves_after_its_tensors_did_is_refused(tmp_path):
    model = blocks(3)
    config = memscale.Config(
        force_optimize=True, enable_checkpointing=False, enable_logging=False, disk_offload_dir=str(tmp_path)
    )
    memscale.wrap(model, config)
    try:
        step_of(model, torch.randn(4096, 128))
        assert model._memscale_executor.counters()["offloaded_bytes"] > 0
        model.to("cuda")
        with pytest.raises(MemScaleError, match=r"cpu to cuda:0"):
            model(torch.randn(64, 128, device="cuda"))
    finally:
        memscale.detach(model)


def test_a_users_peak_is_left_alone():
    model, x = blocks(3).to("cuda"), torch.randn(512, 128, device="cuda")
    memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.cuda.reset_peak_memory_stats()
    large = torch.empty(64 * MB, device="cuda", dtype=torch.uint8)
    del large
    seen = torch.cuda.max_memory_allocated()
    for _ in range(3):
        step_of(model, x)
        optimizer.step()
        optimizer.zero_grad()
    assert torch.cuda.max_memory_allocated() >= seen
    memscale.detach(model)


def test_detach_leaves_no_executor():
    case = case_on("mlp")
    memscale.wrap(case.model, memscale.Config(force_optimize=True, enable_logging=False))
    train(case, case.model)
    memscale.detach(case.model)
    assert not hasattr(case.model, "_memscale_executor")


# ---- several devices ------------------------------------------------------------------------------------


class OnTwoDevices(nn.Module):
    """Blocks on one device and then on another, as a device map places them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = blocks(4).to("cuda:0")
        self.second = blocks(6).to("cuda:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).to("cuda:1"))


def test_parts_on_two_devices_have_a_plan_and_a_budget_each():
    x = torch.randn(8192, 128, device="cuda:0")

    def steps(model: nn.Module) -> tuple[list[torch.Tensor], list[int]]:
        torch.manual_seed(3)
        seen: list[torch.Tensor] = []
        for device in (0, 1):
            torch.cuda.reset_peak_memory_stats(device)
        for _ in range(4):
            step_of(model, x)
            seen += [parameter.grad.cpu() for parameter in model.parameters()]
            model.zero_grad()
        return seen, [torch.cuda.max_memory_allocated(device) for device in (0, 1)]

    expected, plain = steps(OnTwoDevices())
    gc.collect()
    model = OnTwoDevices()
    budgets = [int(0.75 * peak) for peak in plain]
    for part, budget in zip((model.first, model.second), budgets, strict=True):
        memscale.wrap(part, memscale.Config(memory_budget_gb=budget / 1e9, enable_logging=False))
    found, peaks = steps(model)
    plans = [part._memscale_executor.plan for part in (model.first, model.second)]
    memscale.detach(model.first)
    memscale.detach(model.second)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    assert all(peak <= budget for peak, budget in zip(peaks, budgets, strict=True)), (peaks, budgets, plain)
    assert all(not json.loads(plan.to_json())["skipped"] for plan in plans)
