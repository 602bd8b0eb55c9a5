"""Models on several devices: bits, a budget for each device, and what is refused."""

from __future__ import annotations

import copy
import functools
import gc
import json
import pickle
import weakref
from typing import Any

import pytest
import torch
from test_promises import blocks
from torch import nn

import memscale
from memscale.errors import BudgetInfeasibleError, ConfigError, IntegrationError
from memscale.model.placement import placement_on
from memscale.tracing.profiler import MemoryProfiler

DEVICES = ("cuda:0", "cuda:1")
WIDTH = 128


class InTwoHalves(nn.Module):
    """Blocks on one device and then on another, as a device map places them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = blocks(4).to("cuda:0")
        self.second = blocks(6).to("cuda:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).to("cuda:1"))


class Moving(nn.Module):
    """A layer that moves its arguments to its device, as accelerate's hooks do."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH)
        ).to(device)
        self.device = device

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        x, scale = x.to(self.device), scale.to(self.device)
        return x + self.body(x) * scale


class InTurns(nn.Module):
    """Layers on the devices in turns. Each gets a tensor that lies on the first device, and large ones of the other."""

    def __init__(self, places: tuple[int, ...] = (0, 1, 0, 1, 1, 0, 0, 1, 1, 0)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Moving(DEVICES[place]) for place in places)
        self.head = nn.Linear(WIDTH, WIDTH).to(DEVICES[places[-1]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.detach().abs() + 1
        for layer in self.layers:
            x = layer(x, scale)
        return self.head(x)


def batch(rows: int = 8192, device: str = "cuda:0") -> torch.Tensor:
    torch.manual_seed(7)
    return torch.randn(rows, WIDTH).to(device)


def steps(model: nn.Module, x: torch.Tensor, count: int = 3) -> tuple[list[torch.Tensor], list[int]]:
    """Gradients and losses of some steps, and the peak of each device."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen: list[torch.Tensor] = []
    for device in DEVICES:
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(count):
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        loss.backward()
        seen += [loss.detach().cpu(), *(parameter.grad.cpu() for parameter in model.parameters())]
        optimizer.step()
    return seen, [torch.cuda.max_memory_allocated(device) for device in DEVICES]


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


@functools.cache
def unwrapped(make: Any, rows: int = 8192, device: str = "cuda:0") -> tuple[list[torch.Tensor], list[int]]:
    found = steps(make(), batch(rows, device))
    gc.collect()
    return found


def techniques(plan: Any) -> dict[str, str]:
    return {entry["name"]: entry["technique"] for entry in json.loads(plan.to_json())["entries"]}


def hooks_on_the_stack() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


# ---- bits and budgets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "overlaps"), [(InTwoHalves, True), (InTwoHalves, False), (InTurns, True)])
def test_each_device_keeps_a_budget_of_its_own(make, overlaps):
    x = batch()
    expected, plain = unwrapped(make)
    budgets = {name: 0.8 * peak / 1e9 for name, peak in zip(DEVICES, plain, strict=True)}
    model = memscale.wrap(
        make(), memscale.Config(memory_budget_gb=budgets, enable_logging=False, async_offload=overlaps)
    )
    found, peaks = steps(model, x)
    assert not hooks_on_the_stack()
    plans = model._memscale_executor.plans
    assert list(plans) == list(DEVICES)
    memscale.detach(model)
    assert_equal(found, expected)
    assert all(peak <= 1e9 * budget for peak, budget in zip(peaks, budgets.values(), strict=True)), (peaks, budgets)
    for name, plan in plans.items():
        chosen = techniques(plan)
        mine = {layer for layer, module in model.named_modules() if layer in chosen and on(module) == {name}}
        others = chosen.keys() - mine
        assert any(chosen[layer] != "keep" for layer in mine), name
        assert all(chosen[layer] == "keep" for layer in others), name


def on(module: nn.Module) -> set[str]:
    return {str(parameter.device) for parameter in module.parameters()}


def test_one_number_is_each_devices_budget():
    model = memscale.wrap(InTwoHalves(), memscale.Config(memory_budget_gb=0.2, enable_logging=False), batch())
    plans = model._memscale_executor.plans
    memscale.detach(model)
    assert all(json.loads(plan.to_json())["pressure"]["allowed_bytes"] == 200_000_000 for plan in plans.values())


@pytest.mark.parametrize("seed", range(6))
def test_every_schedule_of_the_devices_gives_the_same_bits(double, seed):
    x = batch(1024)
    expected, _ = unwrapped(InTurns, 1024)
    double.schedule(seed, most_delay_ns=200_000, queue_limit=seed % 3 * 8)
    model = memscale.wrap(InTurns(), memscale.Config(force_optimize=True, enable_logging=False))
    found, _ = steps(model, x)
    counters = model._memscale_executor.counters()
    memscale.detach(model)
    assert_equal(found, expected)
    assert counters["recomputed_layers"] + counters["remade_tensors"] + counters["offloaded_storages"] > 0


def test_a_model_that_accelerate_dispatches(monkeypatch):
    accelerate = pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    ids = torch.randint(0, 512, (8, 128)).to("cuda:0")

    def make() -> nn.Module:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            hidden_size=128, intermediate_size=512, num_hidden_layers=6, num_attention_heads=4, vocab_size=512
        )
        places = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.norm": 1, "lm_head": 1}
        places |= {f"model.layers.{index}": index // 3 for index in range(6)}
        return accelerate.dispatch_model(transformers.LlamaForCausalLM(config), places).train()

    def train(model: nn.Module) -> tuple[list[torch.Tensor], list[int]]:
        return steps(Losses(model), ids)

    expected, plain = train(make())
    gc.collect()
    model = make()
    budgets = {name: peak / 1e9 for name, peak in zip(DEVICES, plain, strict=True)}
    memscale.wrap(model, memscale.Config(memory_budget_gb=budgets, enable_logging=False))
    found, peaks = train(model)
    plans = model._memscale_executor.plans
    memscale.detach(model)
    assert_equal(found, expected)
    assert all(peak <= 0.9 * before for peak, before in zip(peaks, plain, strict=True)), (peaks, plain)
    options = [option["name"] for option in json.loads(plans["cuda:1"].to_json())["step_options"] if option["chosen"]]
    assert options == ["exact_loss_head"]  # on the device of the loss alone
    assert not any(option["chosen"] for option in json.loads(plans["cuda:0"].to_json())["step_options"])


class Losses(nn.Module):
    """Calls a model of transformers with labels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.model(input_ids=ids, labels=ids).loss
        return loss


def test_parts_in_host_memory_have_no_plan():
    class OnHostFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = blocks(2)
            self.second = blocks(6).to("cuda:1")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).to("cuda:1"))

    x = batch(2048, "cpu")
    expected, plain = unwrapped(OnHostFirst, 2048, "cpu")
    budget = 0.75 * plain[1] / 1e9
    model = memscale.wrap(OnHostFirst(), memscale.Config(memory_budget_gb=budget, enable_logging=False))
    found, peaks = steps(model, x)
    plans = model._memscale_executor.plans
    memscale.detach(model)
    assert list(plans) == ["cuda:1"]
    assert_equal(found, expected)
    assert peaks[1] <= 1e9 * budget
    assert all(technique == "keep" for name, technique in techniques(plans["cuda:1"]).items() if "first" in name)


def test_a_model_that_cannot_be_traced_is_profiled_on_each_device():
    x = batch()
    expected, plain = unwrapped(InTurns)
    budgets = {name: 0.8 * peak / 1e9 for name, peak in zip(DEVICES, plain, strict=True)}
    config = memscale.Config(memory_budget_gb=budgets, use_static_profiling=False, warmup_steps=1, enable_logging=False)
    model = memscale.wrap(InTurns(), config)
    found, peaks = steps(model, x)
    plans = model._memscale_executor.plans
    memscale.detach(model)
    assert_equal(found, expected)
    assert all(peak <= 1e9 * budget for peak, budget in zip(peaks, budgets.values(), strict=True)), (peaks, budgets)
    assert all(any(technique != "keep" for technique in techniques(plan).values()) for plan in plans.values())


def test_autocast_that_is_decided_for_one_device_holds_on_every():
    class UnderAutocast(InTwoHalves):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return super().forward(x)

    x = batch(512)
    expected, _ = unwrapped(UnderAutocast, 512)
    config = memscale.Config(use_mixed_precision=True, force_optimize=True, enable_logging=False)
    model = memscale.wrap(InTwoHalves(), config, sample_input=x)
    found, _ = steps(model, x)
    assert model(x).dtype is torch.bfloat16  # the double's card is faster with it
    plans = model._memscale_executor.plans
    memscale.detach(model)
    assert_equal(found, expected)
    assert all(any(technique != "keep" for technique in techniques(plan).values()) for plan in plans.values())


def test_copies_between_devices_take_the_links_time():
    model, x = InTwoHalves(), batch(1024)
    for device in DEVICES:
        graph = json.loads(MemoryProfiler(placement=placement_on(model, device)).trace(model, (x,)))
        events = [event for profile in graph["profiles"] for event in profile["forward"] + profile["backward"]]
        moved = [event[6] for event in events if len(event) > 6]
        assert moved == [x.nbytes, x.nbytes]  # the output of the first half, and its gradient


# ---- exceptions, memory that runs out, moves --------------------------------------------------------------


def test_a_forward_that_raises_leaves_nothing_behind():
    x = batch(1024)
    model = InTurns()
    expected, _ = unwrapped(InTurns, 1024)
    memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False))
    steps_before = model.head.forward

    def fails(*_: Any) -> Any:
        raise ValueError("on purpose")

    model.head.forward = fails
    for _ in range(2):
        with pytest.raises(ValueError, match="on purpose"):
            model(x)
        assert not hooks_on_the_stack()
    model.head.forward = steps_before
    found, _ = steps(model, x)
    memscale.detach(model)
    assert_equal(found, expected)


def test_a_step_that_runs_out_of_memory_is_repeated_under_tighter_plans(double):
    x = batch()
    expected, plain = unwrapped(InTwoHalves)
    model = memscale.wrap(InTwoHalves(), memscale.Config(enable_logging=False))
    torch.manual_seed(3)
    executor = model._memscale_executor
    total = torch.cuda.mem_get_info(1)[1]
    double.set_memory(1, total, taken_bytes=total - int(0.75 * plain[1]))
    torch.cuda.empty_cache()

    def step() -> torch.Tensor:
        loss = model(x).float().square().mean()
        loss.backward()
        return loss.detach()

    loss = executor.run_step(step)
    seen = [loss.cpu(), *(parameter.grad.cpu() for parameter in model.parameters())]
    memscale.detach(model)
    assert_equal(seen, expected[: len(seen)])


@pytest.mark.parametrize("move", ["all to the first", "all to the second", "a part", "before the first forward"])
def test_a_model_that_leaves_its_devices_is_refused_by_name(move):
    model, x = InTwoHalves(), batch(256)
    memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False))
    if move != "before the first forward":
        model(x).sum().backward()
    if move == "a part":
        model.second[2].to("cuda:0")
    else:
        model.to("cuda:1" if move == "all to the second" else "cuda:0")
    for _ in range(2):
        with pytest.raises(IntegrationError, match=r"^InTwoHalves was moved among devices since .*detach"):
            model(x)
    assert not hooks_on_the_stack()
    memscale.detach(model)


def test_a_model_that_is_placed_on_several_devices_after_the_wrap_is_refused():
    model, x = InTwoHalves().to("cuda:0"), batch(256)
    memscale.wrap(model, memscale.Config(enable_logging=False))
    model.second.to("cuda:1")
    with pytest.raises(IntegrationError, match=r"^InTwoHalves was moved among devices"):
        model(x)
    memscale.detach(model)


def test_detach_copies_and_pickles_leave_no_trace():
    model, x = InTwoHalves(), batch(256)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False))
    model(x).sum().backward()
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not hasattr(copied, "_memscale_executor")
        assert not copied._forward_hooks
        assert torch.equal(copied.eval()(x), model.eval()(x))
    memscale.wrap(model.train(), memscale.Config(enable_logging=False))  # in place of the first
    memscale.detach(model)
    for name, module in model.named_modules():
        assert vars(module).keys() == before[name].keys(), name
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_a_wrapped_model_is_freed_without_the_collector():
    model, x = InTwoHalves(), batch(256)
    memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False))
    model(x).sum().backward()
    gone = weakref.ref(model.second[0])
    gc.collect()
    gc.disable()
    try:
        memscale.detach(model)
        del model
        assert gone() is None
    finally:
        gc.enable()


class Encoder(nn.TransformerEncoder):
    """A root that takes a fast path, so that no hooks may be on it. Its layers lie on two devices."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 256, batch_first=True)
        super().__init__(layer, 4, enable_nested_tensor=False)
        for index, one in enumerate(self.layers):
            one.to(DEVICES[index // 2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        x = x[None]
        for index, layer in enumerate(self.layers):
            x = layer(x.to(DEVICES[index // 2]))
        return x


def test_a_root_that_takes_a_fast_path_is_left_as_it_was():
    expected, _ = unwrapped(Encoder, 256)
    model, x = Encoder(), batch(256)
    memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False))
    found, _ = steps(model, x)
    copied = copy.deepcopy(model)
    assert "forward" not in vars(copied)
    memscale.detach(model)
    assert_equal(found, expected)
    assert "forward" not in vars(model)
    assert all("forward" not in vars(layer) for layer in model.layers)


# ---- what the devices' executors share ----------------------------------------------------------------------


class Branches(nn.Module):
    """Two branches, each on its own device: autograd runs their backwards at the same time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = (nn.ModuleList(Moving(device) for _ in range(3)) for device in DEVICES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.to(DEVICES[0]), x.to(DEVICES[1])
        for a, b in zip(self.left, self.right, strict=True):
            left, right = a(left, torch.ones_like(left)), b(right, torch.ones_like(right))
        return left + right.to(DEVICES[0])


@pytest.mark.parametrize("seed", range(4))
def test_replays_on_two_devices_do_not_meet(double, seed):
    expected, _ = unwrapped(Branches, 512)
    steps(Branches(), batch(512))
    states = [torch.cuda.get_rng_state(index) for index in range(2)]
    double.schedule(seed, most_delay_ns=100_000)
    config = memscale.Config(force_optimize=True, enable_offloading=False, enable_logging=False)
    model = memscale.wrap(Branches(), config)
    found, _ = steps(model, batch(512))
    counters = model._memscale_executor.counters()
    memscale.detach(model)
    assert counters["recomputed_layers"] + counters["remade_tensors"] > 0
    assert_equal(found, expected)
    assert all(torch.equal(state, torch.cuda.get_rng_state(index)) for index, state in enumerate(states))


class Taught(Moving):
    """A layer with a loss of its own."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        x = super().forward(x, scale)
        labels = torch.arange(len(x), device=x.device) % WIDTH
        return x + nn.functional.cross_entropy(x, labels)


class WithLosses(InTurns):
    """A loss in layers of both devices, and one of the root."""

    def __init__(self) -> None:
        super().__init__((0, 1, 0, 1))
        self.layers[1], self.layers[2] = Taught("cuda:1"), Taught("cuda:0")
        self.head = nn.Linear(WIDTH, 8192).to("cuda:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = super().forward(x)
        return nn.functional.cross_entropy(logits, torch.arange(len(logits), device=logits.device) % 8192)


@pytest.mark.parametrize("tiles", [False, True])
def test_a_loss_head_stays_out_of_the_layers_of_other_devices(tiles):
    x = batch(2048)
    expected, _ = unwrapped(WithLosses, 2048)
    config = memscale.Config(force_optimize=True, enable_offloading=False, enable_tiling=tiles, enable_logging=False)
    model = memscale.wrap(WithLosses(), config)
    found, _ = steps(model, x)
    plans = model._memscale_executor.plans
    memscale.detach(model)
    chosen = {
        name: [option["name"] for option in json.loads(plan.to_json())["step_options"] if option["chosen"]]
        for name, plan in plans.items()
    }
    assert chosen == {"cuda:0": [], "cuda:1": ["chunked_loss_head" if tiles else "exact_loss_head"]}
    if not tiles:
        assert_equal(found, expected)
    for mine, theirs in zip(found, expected, strict=True):  # the chunked head rounds otherwise
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_device_without_anything_to_train_is_profiled_too():
    def make() -> nn.Module:
        model = InTwoHalves()
        model.first.requires_grad_(False)
        return model

    x = batch(1024)
    config = memscale.Config(force_optimize=True, use_static_profiling=False, warmup_steps=1, enable_logging=False)
    model, plain = memscale.wrap(make(), config), make()
    optimizers = [torch.optim.SGD(one.second.parameters(), lr=0.01) for one in (plain, model)]
    for _ in range(4):
        for one, optimizer in zip((plain, model), optimizers, strict=True):
            torch.manual_seed(5)
            one(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    plans = model._memscale_executor.plans
    memscale.detach(model)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters(), strict=True))
    assert all(json.loads(plan.to_json())["entries"] for plan in plans.values())
    assert all(f"on {name}" in str(plan) for name, plan in plans.items())


def test_arguments_that_are_held_for_another_devices_layer_count():
    model, x = InTurns((0, 1)), batch(1024)
    graph = json.loads(MemoryProfiler(placement=placement_on(model, "cuda:0")).trace(model, (x,)))
    node = next(node for node in graph["nodes"] if node["name"] == "layers.1")
    assert "elsewhere" in node["flags"]
    profile = graph["profiles"][node["profile"]]
    saved = [event[1] for event in profile["forward"] if event[0] == "save"]
    assert len(saved) == 2  # the hidden states and the scale, which lie on the first device
    assert [event[0] for event in profile["backward"]].count("drop") == 2


def test_plans_arrange_nothing_for_an_optimizer_of_several_devices():
    model, x = InTwoHalves(), batch(1024)
    optimizer = memscale.optim.AdamW(model.parameters(), release_gradients=True)
    config = memscale.Config(mode="aggressive", force_optimize=True, enable_logging=False)
    with memscale.optimize(model, optimizer, config) as executor:
        for _ in range(2):
            model(x).square().mean().backward()
            optimizer.step()
        for plan in executor.plans.values():
            options = json.loads(plan.to_json())["step_options"]
            assert not [one for one in options if one["chosen"] and one["name"].startswith("state_")]


# ---- queries and refusals ----------------------------------------------------------------------------------


def test_a_plan_is_for_one_device_that_is_named(tmp_path):
    model, x = InTwoHalves(), batch()
    with pytest.raises(IntegrationError, match=r'InTwoHalves has parameters on cuda:0 and cuda:1.*device="cuda:0"'):
        memscale.plan(model, x)
    with pytest.raises(IntegrationError, match=r"can be planned on cuda:0 and cuda:1, not on cuda:7"):
        memscale.plan(model, x, device="cuda:7")
    config = memscale.Config(memory_budget_gb={"cuda:1": 0.2}, enable_logging=False)
    plan = memscale.plan(model, x, config, device="cuda:1")
    assert "on cuda:1" in str(plan)
    assert any(technique != "keep" for technique in techniques(plan).values())
    assert "it computes on another device" in plan.explain("first.0")
    with pytest.raises(BudgetInfeasibleError, match=r"^cuda:0: .*smallest budget"):
        memscale.plan(model, x, memscale.Config(memory_budget_gb=0.01), device=torch.device("cuda:0"))
    memscale.wrap(model, config, sample_input=x)
    executor = model._memscale_executor
    assert techniques(executor.plans["cuda:1"]) == techniques(plan)
    assert executor.plan == executor.plans["cuda:0"]
    model(x).sum().backward()
    executor.report(tmp_path / "run.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-cuda-0.html", "run-cuda-1.html"]
    assert executor.decision.mode
    assert executor.stats().keys() == set(DEVICES)
    memscale.detach(model)


def test_a_refusal_names_the_device_and_leaves_the_model_unwrapped():
    model, x = InTwoHalves(), batch()
    with pytest.raises(BudgetInfeasibleError, match=r"^cuda:1: .*smallest budget"):
        memscale.wrap(model, memscale.Config(memory_budget_gb={"cuda:0": 1.0, "cuda:1": 0.01}), sample_input=x)
    assert not hasattr(model, "_memscale_executor")
    assert not model._forward_hooks
    assert not model.first[0]._forward_hooks


@pytest.mark.parametrize(
    ("budgets", "text"),
    [
        ({}, r"^memory_budget_gb: {} is not allowed; .* None, or a dict with a number for each device by its name$"),
        ({0: 1.0}, r"^memory_budget_gb: {0: 1.0} is not allowed; .* device by its name$"),
        ({"cuda:0": -1.0}, r"^memory_budget_gb: -1.0 is not allowed; "),
        ({"cuda:0": "2 GB"}, r"^memory_budget_gb: .*2 GB.* is not allowed; "),
    ],
)
def test_budgets_by_device_are_checked(budgets, text):
    with pytest.raises(ConfigError, match=text):
        memscale.Config(memory_budget_gb=budgets)


def test_a_budget_for_a_device_without_parameters_is_refused():
    config = memscale.Config(memory_budget_gb={"cuda:2": 1.0})
    with pytest.raises(ConfigError, match=r"'cuda:2' is no device that is planned for this InTwoHalves, but cuda:0"):
        memscale.wrap(InTwoHalves(), config)
    with pytest.raises(ConfigError, match=r"'cuda:2' is no device that is planned for this Sequential, but cuda:0"):
        memscale.wrap(blocks(2).to("cuda:0"), config)
    with pytest.raises(ConfigError, match="here a number is needed"):
        config.to_json()


def test_compiled_models_on_several_devices_are_refused():
    model = InTwoHalves()
    with pytest.raises(IntegrationError, match=r"InTwoHalves lies on several devices and was compiled"):
        memscale.wrap(torch.compile(model, backend="eager"))
    memscale.wrap(model, memscale.Config(enable_logging=False))
    with pytest.raises(IntegrationError, match=r"InTwoHalves lies on several devices and was compiled"):
        model.compile(backend="eager")
    memscale.detach(model)


def test_parameters_on_meta_are_refused():
    model = InTwoHalves()
    model.second[0].to("meta")
    with pytest.raises(IntegrationError, match=r"cuda:0 and cuda:1 and meta.*another library"):
        memscale.wrap(model)
