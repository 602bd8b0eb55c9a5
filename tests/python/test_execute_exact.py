"""Under any plan, loss, gradients, buffers and random state equal those of the unwrapped run to the bit."""

from __future__ import annotations

import copy

import pytest
from execute_support import (
    TECHNIQUES,
    assert_nothing_left,
    assert_same,
    executing,
    hook_counts,
    hook_tables,
    train,
    twins,
    uniform,
)
from models import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_two_plain_runs_agree(name):
    case, twin = twins(MODELS[name])
    assert_same(train(case, case.model), train(case, twin))


@pytest.mark.parametrize("technique", TECHNIQUES)
@pytest.mark.parametrize("name", MODELS)
def test_a_planned_run_is_the_plain_run(name, technique, tmp_path):
    case, twin = twins(MODELS[name])
    expected = train(case, twin)
    with executing(case.model, uniform(case.model, technique), tmp_path) as executor:
        found = train(case, case.model)
        counters = executor.counters()
        assert_nothing_left(executor)
    assert_same(expected, found)
    assert counters["steps"] == 2
    if technique.startswith("recompute"):
        assert counters["recomputed_layers"] > 0
    if technique in ("mixed", "offload_disk", "recompute_offload_input"):
        assert counters["offloaded_bytes"] > 0
    assert hook_counts(case.model) == hook_counts(twin)


@pytest.mark.parametrize("window", [0, 4096])
@pytest.mark.parametrize("name", ["gpt2", "resnet", "albert"])
def test_narrow_windows_change_nothing_but_time(name, window, tmp_path):
    case, twin = twins(MODELS[name])
    expected = train(case, twin)
    plan = uniform(case.model, "offload_disk", write_window=window, read_window=window, min_bytes=64)
    with executing(case.model, plan, tmp_path) as executor:
        assert_same(expected, train(case, case.model))
        assert executor.counters()["fetched_bytes"] > 0
        assert_nothing_left(executor)


def test_the_model_works_as_before_after_detach(tmp_path):
    case, twin = twins(MODELS["gpt2"])
    before = hook_tables(case.model)
    with executing(case.model, uniform(case.model, "recompute"), tmp_path):
        pass
    assert hook_tables(case.model) == before
    assert_same(train(case, twin), train(case, case.model))


def test_a_deep_copy_trains_unwrapped(tmp_path):
    case, twin = twins(MODELS["llama"])
    with executing(case.model, uniform(case.model, "recompute"), tmp_path) as executor:
        inner = copy.deepcopy(case.model)
        assert hook_tables(inner) == hook_tables(twin)
        assert_same(train(case, twin), train(case, inner))
        assert executor.counters()["recomputed_layers"] == 0
