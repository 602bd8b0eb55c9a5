"""Position-wise modules in tiles: found by their operators. Loss and gradients are equal up to rounding, dropout
included; the step needs less memory, as planned; and nothing is left behind."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import textwrap

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import models  # noqa: E402
import planned_steps  # noqa: E402
import test_loss_mode as heads  # noqa: E402

import memscale  # noqa: E402
from memscale import _core  # noqa: E402
from memscale.execution.executor import Executor  # noqa: E402
from memscale.session.machine import probe_machine  # noqa: E402
from memscale.techniques.position_wise import find_position_wise  # noqa: E402
from memscale.tracing.profiler import MemoryProfiler  # noqa: E402

CONFIG = memscale.Config(force_optimize=True, enable_tiling=True, enable_logging=False)


class Dropping(torch.nn.Module):
    """Has dropout in the middle and at the end, as in T5 and GPT-2, and an in-place activation."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(32, 96)
        self.act = torch.nn.ReLU(inplace=True)
        self.inner = torch.nn.Dropout(0.3)
        self.narrow = torch.nn.Linear(96, 32)
        self.outer = torch.nn.Dropout(0.1)

    def forward(self, x):
        return self.outer(self.narrow(self.inner(self.act(self.wide(x)))))


class Layer(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(32)
        self.inner = inner
        self.out = torch.nn.Linear(32, 32)

    def forward(self, x):
        return x + self.out(self.inner(self.norm(x)))


class Net(torch.nn.Module):
    """Two layers around the given modules, and a loss."""

    def __init__(self, *inner: torch.nn.Module) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, 32)
        self.blocks = torch.nn.ModuleList(Layer(module) for module in inner)
        self.head = torch.nn.Linear(32, 64)

    def forward(self, input_ids, labels):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).view(-1, 64), labels.view(-1))


def dropping():
    return models._lm(Net(Dropping(), Dropping()))


CASES = {"gpt2": models.gpt2, "llama": models.llama, "bert": models.bert, "dropping": dropping}


def graph_of(case, config=CONFIG):
    args, kwargs = case.batch(0)
    return MemoryProfiler(config).trace(case.model, args, kwargs)


def planned(case, technique="keep", chosen=True):
    """A plan of one technique, with or without tiles. It is made by hand because the models are too small for the
    planner to choose tiles."""
    text = _core.plan_uniform(graph_of(case), probe_machine(CONFIG), CONFIG.to_json(), technique)
    plan = json.loads(text)
    for option in plan["step_options"]:
        option["chosen"] = chosen and option["name"] == "tiled_mlp"
    return json.dumps(plan)


class Applied:
    """Runs a model under a plan."""

    def __init__(self, case, plan, directory=None) -> None:
        self.executor = Executor(case.model, disk_dir=directory)
        self.plan = plan

    def __enter__(self):
        self.executor.attach()
        self.executor.apply(self.plan)
        return self.executor

    def __exit__(self, *_) -> None:
        self.executor.detach()


def assert_close(expected, seen):
    assert expected.keys() == seen.keys()
    for name, value in expected.items():
        scale = value.abs().max().item() + 1e-3  # some are zero but for rounding
        assert (value - seen[name]).abs().max().item() <= 1e-5 * scale, name


def names(model):
    return [name for name, _ in find_position_wise(model)]


# ---- which modules ---------------------------------------------------------------------------


def test_mlps_of_real_models_are_found_and_nothing_else():
    assert names(models.gpt2().model) == [f"transformer.h.{i}.mlp" for i in range(3)]
    assert all(name.endswith(".mlp") for name in names(models.llama().model))
    assert names(models.llama().model)
    assert all(name.endswith(".intermediate") for name in names(models.bert().model))


class Mixing(torch.nn.Module):
    """Applies `mix` to its activations; most mixes of the tests make a position depend on others."""

    def __init__(self, mix) -> None:
        super().__init__()
        self.first, self.act, self.mix = torch.nn.Linear(32, 32), torch.nn.GELU(), mix

    def forward(self, x):
        return self.mix(self, self.act(self.first(x)))


@pytest.mark.parametrize(
    "mix",
    [
        lambda self, x: x - x.mean(1, keepdim=True),
        lambda self, x: x.softmax(1),
        lambda self, x: x.roll(1, 1),
        lambda self, x: x @ x.transpose(1, 2) @ x,
        lambda self, x: x.transpose(1, 2).reshape(x.shape),
        lambda self, x: x.cumsum(1),
        lambda self, x: x + torch.rand_like(x),
        lambda self, x: x * x.sum(),
        lambda self, x: (x, x),
        lambda self, x: x.sum(2)[:, :, None] * x.sum(2)[:, None, :],
        lambda self, x: x if x.sum() > 0 else -x,
        lambda self, x: x[:, x[0, :, 0] > 0],
    ],
)
def test_what_brings_rows_together_is_not_position_wise(mix):
    assert names(Net(Mixing(mix), Mixing(mix))) == []
    assert len(names(Net(Mixing(lambda self, x: x), Mixing(lambda self, x: x * 2)))) == 2


def test_looking_leaves_a_model_as_it_was():
    case = dropping()
    before = {name: dict(module.__dict__) for name, module in case.model.named_modules()}
    state = torch.get_rng_state()
    names(case.model)
    assert {name: dict(module.__dict__) for name, module in case.model.named_modules()} == before
    assert torch.equal(torch.get_rng_state(), state)


# ---- loss and gradients ----------------------------------------------------------------------


TECHNIQUES = ["keep", "recompute", "recompute_joined", "recompute_segment", "offload_disk", "selective_2"]


@pytest.mark.parametrize("technique", TECHNIQUES)
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_agree_but_for_rounding(name, technique, tmp_path):
    torch.manual_seed(0)
    case = CASES[name]()
    loss, expected, _ = heads.gradients(case, hold=False)
    with Applied(case, planned(case, technique), str(tmp_path)):
        ours, found, nodes = heads.gradients(case, hold=False)
        assert "_InTilesBackward" in nodes
        assert abs(ours.item() - loss.item()) <= 1e-6 * abs(loss.item())
        assert_close(expected, found)
    again, bits, nodes = heads.gradients(case, hold=False)
    assert "_InTilesBackward" not in nodes
    assert torch.equal(loss, again) and all(torch.equal(expected[key], bits[key]) for key in expected)


@pytest.mark.parametrize("shape", [(1, 17), (3, 37), (5, 101), (2, 128)])
def test_rows_need_not_divide(shape):
    torch.manual_seed(0)
    model = Net(Dropping(), Dropping())
    ids = torch.randint(0, 64, shape)
    case = models._lm(model)
    results = []
    for chosen in (False, True):
        with Applied(case, planned(case, chosen=chosen)):
            torch.manual_seed(1)
            model.zero_grad()
            loss = model(ids, ids)
            loss.backward()
            state = torch.get_rng_state()
            results.append((loss.detach(), {n: p.grad for n, p in model.named_parameters()}, state))
    assert abs(results[0][0] - results[1][0]) <= 1e-6 * abs(results[0][0])
    assert_close(results[0][1], results[1][1])
    assert torch.equal(results[0][2], results[1][2])


def test_backward_may_run_twice_and_after_detach(tmp_path):
    torch.manual_seed(0)
    case = dropping()
    args, kwargs = case.batch(0)
    executor = Executor(case.model, disk_dir=str(tmp_path))
    executor.attach()
    executor.apply(planned(case, "recompute"))
    loss = case.model(*args, **kwargs)
    loss.backward(retain_graph=True)
    first = {name: p.grad.clone() for name, p in case.model.named_parameters()}
    executor.detach()
    case.model.zero_grad()
    loss.backward()
    assert all(torch.equal(first[name], p.grad) for name, p in case.model.named_parameters())
    assert not any("forward" in module.__dict__ for module in case.model.modules())


@pytest.mark.parametrize("technique", ["keep", "recompute"])
def test_backward_may_run_in_inference_mode(technique, tmp_path):
    case = dropping()
    args, kwargs = case.batch(0)
    results = []
    with Applied(case, planned(case, technique), str(tmp_path)):
        for context in (contextlib.nullcontext, torch.inference_mode):
            torch.manual_seed(1)
            case.model.zero_grad()
            loss = case.model(*args, **kwargs)
            with context():
                loss.backward()
            results.append({name: p.grad.clone() for name, p in case.model.named_parameters()})
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_frozen_parameters_and_inference():
    torch.manual_seed(0)
    case = dropping()
    for module in case.model.blocks:
        module.inner.wide.weight.requires_grad_(False)
    loss, expected, _ = heads.gradients(case, hold=False)
    with Applied(case, planned(case)):
        ours, found, nodes = heads.gradients(case, hold=False)
        assert "_InTilesBackward" in nodes
        assert_close(expected, found)
        with torch.no_grad():
            args, kwargs = case.batch(0)
            case.model.eval()(*args, **kwargs)


@pytest.mark.parametrize("is_late", [False, True])
def test_hooks_on_parts_see_whole_tensors(is_late):
    case = dropping()
    seen = []

    def hook(*_):
        return case.model.blocks[0].inner.wide.register_forward_hook(lambda m, a, out: seen.append(out.shape[:-1]))

    handle = None if is_late else hook()
    with Applied(case, planned(case)):
        handle = handle or hook()
        _, _, nodes = heads.gradients(case, hold=False)
    handle.remove()
    args, kwargs = case.batch(0)
    assert seen and set(seen) == {kwargs["input_ids"].shape}
    assert "_InTilesBackward" in nodes  # of the other layer


# ---- the plan ------------------------------------------------------------------------------------


def test_the_plan_takes_tiles_only_where_nothing_exact_fits_and_is_below_with_them():
    torch.manual_seed(0)
    wide = torch.nn.Sequential(torch.nn.Linear(32, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 32))
    model = Net(*(copy.deepcopy(wide) for _ in range(4)))
    ids = torch.randint(0, 64, (4, 256))
    sample = {"input_ids": ids, "labels": ids}

    def smallest(tiling):
        config = memscale.Config(
            memory_budget_gb=0.01, enable_tiling=tiling, enable_offloading=False, enable_logging=False
        )
        with pytest.raises(memscale.BudgetInfeasibleError) as refused:
            memscale.plan(model, sample, config=config)
        return refused.value.smallest_budget_bytes

    exact, tiled = smallest(False), smallest(True)
    assert tiled < exact - 8e6
    for budget, chosen in ((exact, False), (tiled, True)):
        config = memscale.Config(
            memory_budget_gb=budget * 1.005 / 1e9, enable_tiling=True, enable_offloading=False, enable_logging=False
        )
        option = memscale.plan(model, sample, config=config).step_options["tiled_mlp"]
        assert option["chosen"] is chosen
        assert option["rule"] == ("pressure" if chosen else "exact_fits")


_MEASURE = textwrap.dedent(
    """
    import planned_steps
    planned_steps.start()
    import torch, transformers, memscale
    x = torch.randint(0, 64, (4, 512))
    config = memscale.Config(force_optimize=True, enable_tiling=True, enable_logging=False)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=128, intermediate_size=2048, num_hidden_layers=2, num_attention_heads=2, vocab_size=64))
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_embd=128, n_inner=2048, n_layer=2, n_head=2, vocab_size=64, n_positions=512))
    for model in (llama, gpt2):
        for technique in ("keep", "recompute"):
            for options in ((), ("tiled_mlp",)):
                print(*planned_steps.compare(model, x, config, technique=technique, options=options), flush=True)
    """
)


def test_measured_peaks_are_lower_and_as_predicted():
    rows = planned_steps.rows_of(_MEASURE)
    assert len(rows) == 8
    for predicted, measured in rows:
        assert predicted == pytest.approx(measured, rel=0.05), rows
    for (_, without), (_, tiled) in zip(rows[::2], rows[1::2], strict=True):
        assert tiled < 0.6 * without, rows


def test_without_the_flag_or_a_module_there_is_none():
    case = models.gpt2()
    off = memscale.Config(force_optimize=True, enable_logging=False)
    plan = memscale.plan(case.model, case.batch(0)[1], config=off)
    assert plan.step_options["tiled_mlp"]["rule"] == "flag_off"
    mixing = Net(*(Mixing(lambda self, x: x.roll(1, 1)) for _ in range(2)))
    plan = memscale.plan(mixing, models._lm(mixing).batch(0)[1], config=CONFIG)
    assert plan.step_options["tiled_mlp"]["rule"] == "no_tiles"


# ---- the model afterwards ----------------------------------------------------------------------


def test_copies_and_pickles_come_out_without():
    case = models.gpt2()
    before = {name: set(module.__dict__) for name, module in case.model.named_modules()}
    with Applied(case, planned(case)):
        assert "forward" in case.model.transformer.h[0].mlp.__dict__
        for copied in (copy.deepcopy(case.model), pickle.loads(pickle.dumps(case.model))):
            assert {name: set(module.__dict__) for name, module in copied.named_modules()} == before
    assert {name: set(module.__dict__) for name, module in case.model.named_modules()} == before


def test_a_forward_that_the_instance_had_stays():
    case = models.gpt2()
    mlp = case.model.transformer.h[0].mlp
    calls = []

    def own(x):
        calls.append(x.shape)
        return type(mlp).forward(mlp, x)

    mlp.forward = own
    with Applied(case, planned(case)):
        heads.gradients(case, hold=False)
        assert len(calls) > 2
    assert mlp.__dict__["forward"] is own
