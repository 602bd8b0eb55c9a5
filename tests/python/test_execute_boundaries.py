"""The executor's boundaries: copies and pickles, caches, opaque arguments, failing tiers, and the state of the
process afterwards."""

from __future__ import annotations

import copy
import decimal
import io
import logging
import os
import pickle
import threading

import pytest
import torch
from execute_support import (
    TECHNIQUES,
    assert_nothing_left,
    assert_same,
    executing,
    forward,
    gradients,
    hook_tables,
    no_hooks_left,
    plan_json,
    seed_everything,
    stored,
    train,
    twins,
    uniform,
)
from models import MODELS, SharedLayer, loss_of
from process_support import thread_count
from time_limits import comes_true
from torch import nn

import memscale
from memscale import _core
from memscale.errors import IntegrationError, OffloadError
from memscale.execution.executor import Executor
from memscale.planning.planner import NullPlanner

every_technique = pytest.mark.parametrize("technique", TECHNIQUES)


# ---- copies -----------------------------------------------------------------------------


def _by_pickle(model):
    return pickle.loads(pickle.dumps(model))


def _by_torch_save(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("make", [copy.deepcopy, copy.copy, _by_pickle, _by_torch_save])
def test_copies_come_out_unwrapped(make, tmp_path):
    case, twin = twins(MODELS["mlp"])
    user_calls = []
    case.model[1].register_forward_pre_hook(_UserHook(user_calls))
    with executing(case.model, uniform(case.model, "recompute"), tmp_path) as executor:
        loss_of(forward(case, case.model, 0)).backward()
        case.model.zero_grad()
        other = make(case.model)
        if make is copy.copy:
            # a shallow copy shares the children; its root has none of our attributes and hooks
            assert "_memscale_executor" not in other.__dict__ and "__getstate__" not in other.__dict__
            assert not other._forward_pre_hooks and not other._forward_hooks
            assert case.model._forward_pre_hooks
            return
        tables = hook_tables(other)
        expected = hook_tables(twin)
        assert {name: keys for name, (keys, _) in tables.items()} == {
            name: keys for name, (keys, _) in expected.items()
        }
        assert [name for name, (_, hooks) in tables.items() if hooks] == ["1"]  # the user's hook
        recomputed = executor.counters()["recomputed_layers"]
        loss_of(forward(case, other, 0)).backward()
        assert executor.counters()["recomputed_layers"] == recomputed
        assert_nothing_left(executor)


def test_modules_that_copy_themselves_come_out_unwrapped(tmp_path):
    """Parametrized modules and modules of torch.fx copy the instance's dictionary."""
    seed_everything(1)
    parametrized = nn.Sequential(*(_normed(12) for _ in range(3)), nn.Linear(12, 2))
    for model in (parametrized, torch.fx.symbolic_trace(nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 2)))):
        x = torch.randn(4, 12)
        before = hook_tables(model)
        with executing(model, uniform(model, "recompute"), tmp_path) as executor:
            model(x).sum().backward()
            recomputed = executor.counters()["recomputed_layers"]
            other = copy.deepcopy(model)
            assert hook_tables(other) == hook_tables(copy.deepcopy(other))
            assert not any(_OURS & set(module.__dict__) for module in other.modules())
            assert not any(module._forward_hooks or module._forward_pre_hooks for module in other.modules())
            other(x).sum().backward()
            assert executor.counters()["recomputed_layers"] == recomputed
            assert all(a is not b for a, b in zip(model.parameters(), other.parameters(), strict=True))
            if model is not parametrized:  # parametrized modules refuse to be pickled, wrapped or not
                loaded = _by_torch_save(model)
                assert not any(_OURS & set(module.__dict__) for module in loaded.modules())
                assert torch.equal(loaded(x), other(x))
        assert hook_tables(model) == before


_OURS = {"_memscale_executor", "__getstate__", "__deepcopy__", "__reduce_ex__"}


def _normed(width):
    return nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(width, width)), nn.Tanh())


class _UserHook:
    def __init__(self, calls):
        self.calls = calls

    def __call__(self, module, args):
        self.calls.append(1)


def test_a_model_with_a_state_function_of_its_own_keeps_it(tmp_path):
    model = _OwnState()
    with executing(model, uniform(model, "recompute"), tmp_path):
        model(torch.ones(2, 4, requires_grad=True)).sum().backward()
        other = pickle.loads(pickle.dumps(model))
    assert other.restored and not other._forward_hooks
    assert "__getstate__" not in model.__dict__


class _OwnState(nn.Module):
    restored = False

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def __getstate__(self):
        return {**self.__dict__, "own": True}

    def __setstate__(self, state):
        assert state.pop("own")
        super().__setstate__(state)
        self.restored = True


def test_an_executor_is_not_copied_by_itself(tmp_path):
    case, _ = twins(MODELS["mlp"])
    with executing(case.model, uniform(case.model, "recompute"), tmp_path) as executor:
        with pytest.raises(TypeError, match="can't be copied"):
            copy.deepcopy(executor)
        hooks = copy.deepcopy(case.model._forward_pre_hooks)
        assert all(hook(case.model, (), {}) is None for hook in hooks.values())


# ---- models of transformers -----------------------------------------------------------------


@every_technique
def test_no_cache_is_collected_while_wrapped(technique, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="memscale")
    case, twin = twins(MODELS["gpt2_padded_eager"])
    assert forward(case, twin, 0).past_key_values.get_seq_length() == 12
    with executing(case.model, uniform(case.model, technique), tmp_path):
        assert forward(case, case.model, 0).past_key_values is None
        assert forward(case, case.model, 1).past_key_values is None
        said = [record for record in caplog.records if "use_cache=False is passed" in record.message]
        assert len(said) == 1
        case.model.eval()
        assert forward(case, case.model, 0).past_key_values.get_seq_length() == 12
        case.model.train()
    assert forward(case, case.model, 0).past_key_values.get_seq_length() == 12
    assert case.model.config.use_cache


def test_a_cache_that_layers_compute_with_is_left_on(caplog):
    """Without a cache, gradients of linear attention differ in their last bits."""
    import transformers

    if not hasattr(transformers, "Qwen3NextConfig"):
        pytest.skip("transformers has no Qwen3-Next yet")
    config = transformers.Qwen3NextConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    seed_everything(0)
    model = transformers.Qwen3NextForCausalLM(config).train()
    ids = torch.randint(0, 64, (4, 32))

    def run(model, **how):
        seed_everything(1)
        model.zero_grad()
        loss = model(input_ids=ids, labels=ids, **how).loss
        loss.backward()
        return [loss.detach(), *gradients(model).values()]

    plain, without = run(model), run(model, use_cache=False)
    memscale.wrap(model, memscale.Config(force_optimize=True))
    executor = model._memscale_executor
    with caplog.at_level(logging.INFO, logger="memscale"):
        assert all(map(torch.equal, plain, run(model)))
    assert "computes through the states in its cache" in caplog.text
    assert executor.counters()["recomputed_layers"] == 0
    assert all(map(torch.equal, without, run(model, use_cache=False)))
    assert executor.counters()["recomputed_layers"] > 0
    memscale.detach(model)


@every_technique
def test_a_cache_of_the_callers_is_filled_once(technique, tmp_path, caplog):
    from transformers import DynamicCache

    caplog.set_level(logging.INFO, logger="memscale")
    case, twin = twins(MODELS["gpt2_padded_eager"])

    def run(model):
        seed_everything(5)
        args, kwargs = case.batch(0)
        cache = DynamicCache(config=model.config)
        loss = model(*args, **kwargs, past_key_values=cache, use_cache=True).loss
        loss.backward()
        return cache.get_seq_length(), loss.detach(), gradients(model)

    expected = run(twin)
    with executing(case.model, uniform(case.model, technique), tmp_path) as executor:
        assert_same(expected, run(case.model))
        assert executor.counters()["recomputed_layers"] == 0
        assert_nothing_left(executor)
    if technique != "offload_disk":
        assert any("the layer is not recomputed" in record.message for record in caplog.records)


# ---- how models are called --------------------------------------------------------------------


@every_technique
def test_layers_work_when_the_root_is_passed_by(technique, tmp_path):
    """Some adapters call the inner model's forward directly, so the root's hooks don't run."""
    case, twin = twins(MODELS["mlp"])

    def run(model):
        results = []
        for step in range(3):
            seed_everything(step)
            (x,), _ = case.batch(step)
            loss = model.forward(x).square().mean()
            stored(model)
            loss.backward()
            results.append((loss.detach(), gradients(model)))
        return results

    expected = run(twin)
    with executing(case.model, uniform(case.model, technique), tmp_path) as executor:
        assert_same(expected, run(case.model))
        counters = executor.counters()
        assert counters["recomputed_layers"] + counters["offloaded_storages"] > 0
        executor._core.backward_ended()
        assert_nothing_left(executor)


@every_technique
def test_replicas_on_threads(technique, tmp_path):
    """Replicas of the kind that DataParallel makes share the original's hooks."""
    case, twin = twins(lambda: _eval_case("resnet"))

    def run(model):
        results = [None, None]

        def work(index, replica):
            (x,), _ = case.batch(index)
            loss = loss_of(replica(x))
            results[index] = torch.autograd.grad(loss, list(replica.parameters()))

        replicas = [copy.copy(model), model]
        threads = [threading.Thread(target=work, args=(i, replica)) for i, replica in enumerate(replicas)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    expected = run(twin)
    with executing(case.model, uniform(case.model, technique), tmp_path) as executor:
        assert_same(expected, run(case.model))
        executor._core.backward_ended()
        assert_nothing_left(executor)


def _eval_case(name):
    case = MODELS[name]()
    case.model.eval()
    return case


def test_the_calls_of_a_layer_have_techniques_of_their_own(tmp_path):
    seed_everything(1)
    model = SharedLayer()
    twin = copy.deepcopy(model)
    plan = plan_json(
        [
            ("layers.0", 0, "recompute"),
            ("other.0", 0, "keep"),
            ("layers.0", 1, "keep"),
            ("other.0", 1, "offload_disk"),
            ("layers.0", 2, "offload_disk"),
            ("other.0", 2, "recompute"),
        ]
    )
    x = torch.randn(4, 12)
    seed_everything(2)
    twin(x).sum().backward()
    with executing(model, plan, tmp_path) as executor:
        seed_everything(2)
        model(x).sum().backward()
        assert_same(gradients(twin), gradients(model))
        assert executor.counters()["recomputed_layers"] == 2
        assert_nothing_left(executor)


def test_a_plan_may_change_between_steps(tmp_path):
    case, twin = twins(MODELS["gpt2"])
    expected = train(case, twin, 4)
    plans = [uniform(case.model, technique) for technique in ("recompute", "offload_disk", "keep", "mixed")]

    class Planner(NullPlanner):
        def plan_for(self, model, signature, args, kwargs, wait_until_alone):
            return plans.pop(0)

        def step_finished(self, observation):
            return plans.pop(0) if plans else None

        def close(self):
            self.closed = True

    planner = Planner()
    executor = Executor(case.model, None, planner, disk_dir=str(tmp_path))
    executor.attach()
    assert_same(expected, train(case, case.model, 4))
    counters = executor.counters()
    assert counters["replans"] == 3 and counters["recomputed_layers"] > 0 and counters["offloaded_bytes"] > 0
    assert_nothing_left(executor)
    executor.detach()
    assert planner.closed


def test_a_planner_that_raises_leaves_the_model_usable(tmp_path):
    case, twin = twins(MODELS["mlp"])

    class Planner(NullPlanner):
        def plan_for(self, model, signature, args, kwargs, wait_until_alone):
            raise IntegrationError("no plan today")

    executor = Executor(case.model, None, Planner())
    executor.attach()
    with pytest.raises(IntegrationError, match="no plan today"):
        forward(case, case.model, 0)
    executor.detach()
    assert_same(train(case, twin), train(case, case.model))


# ---- layers that can't be replayed ---------------------------------------------------------------


class _Unsteady(nn.Module):
    def __init__(self, calls):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = calls

    def forward(self, x):
        self.calls.append(1)
        if len(self.calls) > 2:
            return self.linear(x[:2]).tanh()
        return self.linear(x).tanh()


@pytest.mark.parametrize("technique", ["recompute", "recompute_offload_input"])
def test_a_layer_that_saves_something_else_is_refused_by_name(technique, tmp_path):
    calls = _Tally()
    model = nn.Sequential(nn.Sequential(_Unsteady(calls)), nn.Sequential(_Unsteady(calls)))
    with executing(model, uniform(model, technique), tmp_path) as executor:
        out = model(torch.randn(3, 4, requires_grad=True))
        with pytest.raises(IntegrationError, match=r"layer 1 \(call 0\): saved tensor \d is torch.float32\[2, 4\]"):
            out.sum().backward()
        assert no_hooks_left()
        del out
        assert_nothing_left(executor)


class _Tally:
    """Counts in an object of C's library, which a replay can't restore."""

    def __init__(self):
        self.count = decimal.Context(prec=1)

    def append(self, item):
        self.count.prec += 1

    def __len__(self):
        return self.count.prec - 1


def test_an_error_inside_a_replay_reaches_the_caller(tmp_path):
    calls = _Tally()

    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            calls.append(1)
            if len(calls) > 2:
                raise ZeroDivisionError
            return self.linear(x).tanh()

    model = nn.Sequential(nn.Sequential(Failing()), nn.Sequential(Failing()))
    with executing(model, uniform(model, "recompute"), tmp_path) as executor:
        state = torch.get_rng_state()
        out = model(torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
        with pytest.raises(ZeroDivisionError):
            out.sum().backward()
        assert torch.equal(state, torch.get_rng_state())
        assert no_hooks_left()
        del out
        assert_nothing_left(executor)


# ---- a tier that fails -----------------------------------------------------------------------------


@pytest.fixture
def disarmed():
    yield
    _core.fault_disarm_all()


def test_a_failing_write_costs_memory_not_correctness(tmp_path, disarmed):
    case, twin = twins(MODELS["gpt2"])
    expected = train(case, twin)
    with executing(case.model, uniform(case.model, "offload_disk"), tmp_path) as executor:
        _core.fault_arm("write", 5, 5)
        assert_same(expected, train(case, case.model))
        assert executor.counters()["tier_fallbacks"] > 0
        assert_nothing_left(executor)


def test_a_full_disk_costs_memory_not_correctness(tmp_path, disarmed):
    case, twin = twins(MODELS["gpt2"])
    expected = train(case, twin)
    with executing(case.model, uniform(case.model, "offload_disk"), tmp_path) as executor:
        _core.fault_arm("write", 9, 28)
        assert_same(expected, train(case, case.model))
        counters = executor.counters()
        assert counters["tier_fallbacks"] > 0
        assert counters["fetched_bytes"] > 0  # the next step uses the tier again
        assert_nothing_left(executor)


@pytest.mark.parametrize("technique", ["offload_disk", "recompute_offload_input"])
@pytest.mark.parametrize("fault", ["read", "flip"])
def test_a_failing_read_raises_before_a_gradient_sees_it(fault, technique, tmp_path, disarmed):
    case, twin = twins(MODELS["gpt2"])
    with executing(case.model, uniform(case.model, technique, read_window=0), tmp_path) as executor:
        loss = loss_of(forward(case, case.model, 0))
        stored(case.model)
        _core.fault_arm(fault, 1, 5)
        with pytest.raises(OffloadError):
            loss.backward()
        _core.fault_disarm_all()
        del loss
        case.model.zero_grad()
        expected = train(case, twin)
        assert_same(expected, train(case, case.model))
        assert_nothing_left(executor)


# ---- the process afterwards -------------------------------------------------------------------------


def _descriptors():
    return {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)}


def _is_link(fd):
    try:
        os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return False
    return True


@every_technique
def test_nothing_of_ours_is_left_after_detach(technique, tmp_path):
    case, _ = twins(MODELS["mlp"])
    train(case, case.model)

    def once():
        with executing(case.model, uniform(case.model, technique), tmp_path):
            train(case, case.model)
        _core.log_drain()  # undelivered log lines would count as memory

    once()

    def kept():
        return _core.memory_live(), thread_count(), len(_descriptors())

    before = kept()
    once()
    assert comes_true(lambda: kept() == before), (before, kept())
    assert os.listdir(tmp_path) == []


def test_the_report_is_one_page(tmp_path):
    case, _ = twins(MODELS["mlp"])
    with executing(case.model, uniform(case.model, "recompute"), tmp_path) as executor:
        train(case, case.model)
        path = tmp_path / "report.html"
        executor.report(str(path))
    page = path.read_text()
    assert "recomputed_layers" in page and "<td>recompute</td>" in page
    assert "http" not in page and "src=" not in page


# ---- steps that end without an optimizer ---------------------------------------------------------


def test_forwards_without_a_backward_are_one_step_with_those_that_have_one(tmp_path):
    discriminator = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    with executing(discriminator, None, tmp_path) as executor:
        for _ in range(3):
            real, fake = discriminator(torch.randn(4, 8)), discriminator(torch.randn(4, 8))
            (real.mean() - fake.mean()).backward()
        assert executor.counters()["steps"] == 2  # the third ends at the next forward
        assert discriminator[0].weight.grad is not None
        kept = discriminator(torch.randn(4, 8)).sum()
        assert executor.counters()["steps"] == 3
    kept.backward()  # a graph still works after detach()
