"""On a GPU, loss, gradients, buffers and random states have the plain run's bits: under each technique and mixed plans,
with and without transfers beside the compute, and under seeded schedules in which the host runs ahead, work takes time
and queues fill. The double counts unordered accesses."""

from __future__ import annotations

import zlib

import pytest
import torch
from cuda_support import MODELS, SEEDS, case_on, scheduled, twins_on
from execute_support import assert_nothing_left, assert_same, hook_tables, plan_json, train, uniform

import memscale
from memscale.execution.executor import Executor
from memscale.model.layers import find_layers

TECHNIQUES = ("recompute", "recompute_segment", "recompute_offload_input", "offload_host", "offload_disk", "mixed")


def plan_for(model: torch.nn.Module, technique: str) -> str:
    """A plan with one technique for every layer. With "mixed", layers alternate between offloading to host memory,
    recomputing, recomputing with an offloaded input, and keeping."""
    if technique == "mixed":
        turns = ["offload_host", "recompute", "recompute_offload_input", "keep"]
        entries = [("", 0, "offload_host")]
        for index, (name, _) in enumerate(find_layers(model)):
            entries += [(name, 0, turns[index % len(turns)]), ("", index + 1, "offload_host")]
        return plan_json(entries, host_cap=1 << 30)
    root = technique if technique.startswith("offload") else "keep"
    return uniform(model, technique, root=root, host_cap=0 if technique == "offload_disk" else 1 << 30)


def run_planned(name: str, technique: str, overlap: bool, directory: object, seed: int) -> dict[str, int]:
    """Trains without and with the plan, compares the two runs, and returns the executor's counters."""
    case, twin = twins_on(name)
    with scheduled(seed):
        expected = train(case, twin)
    config = memscale.Config(async_offload=overlap)
    executor = Executor(case.model, config=config, disk_dir=str(directory))
    executor.attach()
    try:
        executor.apply(plan_for(case.model, technique))
        with scheduled(seed + 1):
            assert_same(expected, train(case, case.model))
        assert_nothing_left(executor)
        return executor.counters()
    finally:
        executor.detach()


@pytest.mark.parametrize("name", MODELS)
def test_two_plain_runs_agree_whatever_the_schedule(name):
    case, twin = twins_on(name)
    with scheduled(1):
        expected = train(case, case.model)
    with scheduled(2):
        assert_same(expected, train(case, twin))


@pytest.mark.parametrize("technique", TECHNIQUES)
@pytest.mark.parametrize("name", MODELS)
def test_a_planned_run_is_the_plain_run(name, technique, tmp_path):
    overlap = technique != "recompute_offload_input"
    counters = run_planned(name, technique, overlap, tmp_path, zlib.crc32(f"{name}/{technique}".encode()))
    if technique.startswith("recompute"):
        assert counters["recomputed_layers"] > 0
    if technique not in ("recompute", "recompute_segment"):
        assert counters["offloaded_bytes"] > 0


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("technique", ["offload_host", "mixed"])
@pytest.mark.parametrize("name", ["mlp", "gpt2", "resnet"])
def test_no_schedule_changes_a_bit(name, technique, overlap, tmp_path):
    for seed in range(SEEDS):
        run_planned(name, technique, overlap, tmp_path, 1000 * seed)


# ---- the whole path ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("switches", "moves"),
    [
        ({"enable_checkpointing": False}, True),
        ({"enable_offloading": False}, False),
        ({"enable_checkpointing": False, "max_cpu_offload_gb": 0}, True),
        ({}, None),
    ],
    ids=["host", "recompute", "disk", "any"],
)
@pytest.mark.parametrize("name", ["gpt2", "gpt2_autocast", "resnet", "mlp", "vit", "lstm"])
def test_wrap_traces_plans_and_trains_with_the_same_bits(name, switches, moves, tmp_path):
    case, twin = twins_on(name)
    with scheduled(5):
        expected = train(case, twin)
    before = hook_tables(case.model)
    config = memscale.Config(force_optimize=True, enable_logging=False, disk_offload_dir=str(tmp_path), **switches)
    memscale.wrap(case.model, config, async_offload=True)
    with scheduled(6):
        assert_same(expected, train(case, case.model))
    executor = case.model._memscale_executor
    assert not executor.plan.skipped
    assert moves is None or (executor.counters()["offloaded_bytes"] > 0) == moves
    assert_nothing_left(executor)
    memscale.detach(case.model)
    assert hook_tables(case.model) == before


@pytest.mark.double
def test_a_budget_is_kept_and_the_bits_with_it(double):
    def train_steps(budget_gb):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            *[torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Dropout(0.1)) for _ in range(8)]
        ).to("cuda")
        if budget_gb is not None:
            memscale.wrap(model, memscale.Config(memory_budget_gb=budget_gb, enable_logging=False), async_offload=True)
        seen, peaks = [], []
        for step in range(3):
            torch.manual_seed(step)
            x = torch.randn(8192, 256, device="cuda")
            torch.cuda.reset_peak_memory_stats()
            loss = model(x).square().mean()
            loss.backward()
            seen.append([loss.detach().cpu(), *(p.grad.cpu() for p in model.parameters())])
            peaks.append(torch.cuda.max_memory_allocated())
            model.zero_grad()
        if budget_gb is not None:
            memscale.detach(model)
        return seen, max(peaks)

    expected, unmodified = train_steps(None)
    budget_gb = 0.55 * unmodified / 1e9
    found, peak = train_steps(budget_gb)
    assert_same(expected, found)
    assert peak <= budget_gb * 1e9 < unmodified


def test_detach_leaves_nothing_on_the_device(tmp_path):
    torch.cuda.synchronize()
    case = case_on("gpt2")
    train(case, case.model)
    allocated = torch.cuda.memory_allocated()
    memscale.wrap(
        case.model,
        memscale.Config(force_optimize=True, enable_checkpointing=False, enable_logging=False),
        async_offload=True,
    )
    train(case, case.model)
    memscale.detach(case.model)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == allocated


def test_backward_on_another_stream_gets_its_memory_ordered(tmp_path):
    case, twin = twins_on("mlp")
    with scheduled(7):
        expected = train(case, twin)
    executor = Executor(case.model, config=memscale.Config(async_offload=True), disk_dir=str(tmp_path))
    executor.attach()
    try:
        executor.apply(plan_for(case.model, "offload_host"))
        side = torch.cuda.Stream()
        with scheduled(8):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                found = train(case, case.model)
        assert_same(expected, found)
    finally:
        executor.detach()


def test_the_second_device_trains_exactly_too(tmp_path):
    case, twin = twins_on("gpt2", "cuda:1")
    with scheduled(9):
        expected = train(case, twin)
    executor = Executor(case.model, config=memscale.Config(async_offload=True), disk_dir=str(tmp_path))
    executor.attach()
    try:
        executor.apply(plan_for(case.model, "mixed"))
        with scheduled(10):
            assert_same(expected, train(case, case.model))
        assert executor.counters()["offloaded_bytes"] > 0
    finally:
        executor.detach()


class TwoBranches(torch.nn.Module):
    """Two chains of layers, each on a device of its own; their backwards run at the same time, on two threads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        here, there = (
            [torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Dropout(0.2)) for _ in range(4)]
            for _ in range(2)
        )
        self.here = torch.nn.Sequential(*here).to("cuda:0")
        self.there = torch.nn.Sequential(*there).to("cuda:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.here(x) + self.there(x.to("cuda:1")).to("cuda:0")


class UnsetSeed(torch.autograd.Function):
    """Saves a seed as attention does on a GPU: a scalar on the host that is set only if elements are dropped."""

    count = 0

    @staticmethod
    def forward(ctx, x):
        UnsetSeed.count += 1
        ctx.save_for_backward(x, torch.tensor(UnsetSeed.count))
        return x.square()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0]


class WithUnsetSeed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(32, 32)

    def forward(self, x):
        return x + UnsetSeed.apply(self.linear(x))


def test_a_seed_that_nothing_set_is_not_compared(tmp_path):
    model, x = torch.nn.Sequential(*[WithUnsetSeed() for _ in range(3)]).to("cuda"), torch.randn(16, 32, device="cuda")
    executor = Executor(model, disk_dir=str(tmp_path))
    executor.attach()
    try:
        executor.apply(plan_for(model, "recompute"))
        for _ in range(3):
            model(x).square().mean().backward()
        assert executor.counters()["recomputed_layers"] == 9
    finally:
        executor.detach()


@pytest.mark.parametrize("technique", ["recompute", "offload_host"])
def test_layers_on_two_devices_go_through_backward_at_once(technique, tmp_path):
    """Layers of both are recomputed; what lies on the device that is not the plan's stays there."""
    model, x = TwoBranches(), torch.randn(256, 32, device="cuda:0")

    def gradients(seed: int) -> list[torch.Tensor]:
        with scheduled(seed):
            seen = []
            for step in range(3):
                model.zero_grad()
                torch.manual_seed(step)
                model(x).square().mean().backward()
                seen += [parameter.grad.cpu() for parameter in model.parameters()]
            torch.cuda.synchronize(1)
            return seen

    expected = gradients(11)
    executor = Executor(model, disk_dir=str(tmp_path))
    executor.attach()
    try:
        executor.apply(plan_for(model, technique))
        found = gradients(12)
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        assert executor.counters()["recomputed_layers"] == (24 if technique == "recompute" else 0)
        assert (executor.counters()["offloaded_bytes"] > 0) == (technique == "offload_host")
    finally:
        executor.detach()
