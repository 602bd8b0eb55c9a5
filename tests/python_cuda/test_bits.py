"""Masks of a GPU as bits: the planner prices them, and they come back exactly (memscale/execution/bits.py)."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from cuda_support import peak_of, scheduled
from execute_support import assert_nothing_left, executing
from graph_support import observe_loop, trace
from torch import nn

import memscale
from memscale import _core
from memscale.execution.bits import Bits

WIDTH, ROWS, LAYERS = 64, 1 << 14, 4
MASK_BYTES = ROWS * WIDTH


def truths(count: int, device: str = "cuda") -> torch.Tensor:
    return torch.rand(count, device=device) < 0.4


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 15, 17, 63, 64, 65, 1000, 4097])
def test_every_truth_value_comes_back(count, double):
    mask = truths(count)
    bits = Bits(mask.untyped_storage())
    assert bits._bits.numel() == -(-count // 8)
    found = torch.empty(count, dtype=torch.bool, device="cuda")
    bits.unpack(found.untyped_storage())
    assert torch.equal(found.cpu(), mask.cpu())


def test_packing_needs_no_memory_beside_the_bits():
    mask = truths(1 << 20)
    found = torch.empty_like(mask)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    made: list[Bits] = []
    assert peak_of(lambda: made.append(Bits(mask.untyped_storage()))) - before == (1 << 17)
    assert peak_of(lambda: made[0].unpack(found.untyped_storage())) - before == (1 << 17)


@pytest.mark.parametrize("seed", range(4))
def test_other_streams_wait_for_the_bits_and_for_what_was_unpacked(seed):
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    with scheduled(seed):
        mask = truths(4099)
        expected = mask.cpu()
        one.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(one):
            bits = Bits(mask.untyped_storage())
        del mask  # its memory belongs to the default stream, and may be handed out at once
        torch.zeros(4099, dtype=torch.bool, device="cuda")
        with torch.cuda.stream(two):
            found = torch.empty(4099, dtype=torch.bool, device="cuda")
            bits.unpack(found.untyped_storage())
        bits.order()
        found.record_stream(torch.cuda.current_stream())
        assert torch.equal(found.cpu(), expected)


# ---- a plan's masks ---------------------------------------------------------------------------------------------


class Masked(nn.Module):
    """A layer that saves a mask as large as its output, in the way that `kind` says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.kind == "dropout":
            return x + nn.functional.dropout(y, 0.3)
        if self.kind == "comparison":
            return x + y * (y > 0)
        if self.kind == "turned":  # the mask isn't contiguous
            return x + torch.where((y.T > 0).T, y, -0.5 * y)
        return x + y.masked_fill(y.detach().abs() > 1, 0.25)


def model_of(kind: str, layers: int = LAYERS) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[Masked(kind) for _ in range(layers)]).to("cuda")


def plan_with_bits(model: nn.Module, x: torch.Tensor, missing: int) -> str:
    """A plan for a card whose link is slow, under a budget that lacks some masks' bytes."""
    graph = trace(model, x)
    observe_loop(graph)
    made = memscale.plan(model, x, memscale.Config(force_optimize=True))
    hardware = json.loads(made._hardware)
    hardware["gpus"][0].update(to_host_bytes_per_s=10**6, from_host_bytes_per_s=10**6)

    def at(budget_bytes: int) -> str:
        config = memscale.Config(memory_budget_gb=budget_bytes / 1e9, enable_checkpointing=False)
        return _core.plan_make(json.dumps(graph), json.dumps(hardware), config.to_json())

    need = json.loads(at(10**12))["pressure"]["need_bytes"]
    return at(need - missing * (MASK_BYTES - MASK_BYTES // 8))


def steps(model: nn.Module, x: torch.Tensor, count: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(3)
    seen = []
    for _ in range(count):
        loss = model(x).square().mean()
        loss.backward()
        seen += [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]
        model.zero_grad()
    return seen


@pytest.mark.parametrize("kind", ["dropout", "comparison", "turned", "filled"])
def test_what_a_plan_packs_becomes_bits_and_comes_back(kind, tmp_path):
    model = model_of(kind)
    x = torch.randn(ROWS, WIDTH, device="cuda")
    expected = steps(copy.deepcopy(model), x)
    plan = plan_with_bits(model, x, LAYERS - 1)
    named = [entry for entry in json.loads(plan)["entries"] if entry.get("packing", {}).get("packed", 0) > 0]
    assert len(named) >= LAYERS - 1
    for seed in range(3):
        with executing(model, plan, tmp_path) as executor, scheduled(seed):
            found = steps(model, x)
            counters = executor.counters()
            assert_nothing_left(executor)
        assert counters["packed_bytes"] == 2 * len(named) * MASK_BYTES
        assert counters["packed_into_bytes"] * 8 == counters["packed_bytes"]
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


def test_the_replay_has_the_bytes_that_the_bits_free(tmp_path):
    model = model_of("comparison")
    x = torch.randn(ROWS, WIDTH, device="cuda")
    plain = peak_of(lambda: steps(model, x))
    plan = plan_with_bits(model, x, LAYERS - 1)
    with executing(model, plan, tmp_path):
        packed = peak_of(lambda: steps(model, x))
    predicted = json.loads(plan)
    freed = predicted["unoptimized"]["peak_bytes"] - predicted["predicted"]["peak_bytes"]
    assert freed > 2 * MASK_BYTES
    assert plain - packed == freed


def test_a_step_fits_a_card_that_its_masks_would_fill(tmp_path):
    model = model_of("dropout", 24)
    x = torch.randn(ROWS, WIDTH, device="cuda")
    plan = plan_with_bits(model, x, 23)

    def reserved_by_a_step() -> int:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        steps(model, x, 1)
        return torch.cuda.max_memory_reserved()

    try:
        with executing(model, plan, tmp_path):
            limit = reserved_by_a_step()
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info()[1])
            assert reserved_by_a_step() <= limit
        with pytest.raises(torch.OutOfMemoryError):
            reserved_by_a_step()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_mask_that_finds_no_memory_for_its_bits_stays(tmp_path):
    model = model_of("comparison")
    x = torch.randn(ROWS, WIDTH, device="cuda")
    expected = steps(copy.deepcopy(model), x, 1)
    plan = plan_with_bits(model, x, LAYERS - 1)

    def refused(_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with executing(model, plan, tmp_path) as executor:
        executor._core.set_device("cuda", 0, refused)
        found = steps(model, x, 1)
        assert executor.counters()["packed_bytes"] == 0
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


def test_a_byte_that_is_no_truth_value_comes_back_as_the_truth_that_torch_reads(double):
    mask = torch.tensor([0, 2, 1, 255, 0, 128] * 5, dtype=torch.uint8, device="cuda").view(torch.bool)
    found = torch.empty_like(mask)
    Bits(mask.untyped_storage()).unpack(found.untyped_storage())
    assert found.view(torch.uint8).tolist() == [0, 1, 1, 1, 0, 1] * 5
