"""A replay uses the parameters and the arguments of its layer's call, and doesn't disturb other threads that use
the model."""

from __future__ import annotations

import contextvars
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
    plan_json,
    seed_everything,
    stored,
    twins,
    uniform,
)
from models import MODELS, Case, loss_of
from torch import nn
from torch.func import functional_call

import memscale
from memscale import Config, IntegrationError

RECOMPUTE = ("recompute", "recompute_segment", "recompute_offload_input", "mixed")

every_technique = pytest.mark.parametrize("technique", RECOMPUTE)


def _both(name, technique, directory, run):
    """Asserts that `run(case, model)` gives the same on an unwrapped twin and under a plan."""
    case, twin = twins(MODELS[name])
    expected = run(case, twin)
    with executing(case.model, uniform(case.model, technique), directory) as executor:
        found = run(case, case.model)
        assert executor.counters()["recomputed_layers"] > 0
        executor._core.backward_ended()
        assert_nothing_left(executor)
    assert_same(expected, found)


# ---- parameters --------------------------------------------------------------------------------


@every_technique
def test_a_functional_call_is_replayed_with_its_own_parameters(technique, tmp_path):
    def run(case, model):
        seed_everything(1)
        others = {name: (p.detach() * 1.1).requires_grad_() for name, p in model.named_parameters()}
        args, kwargs = case.batch(0)
        loss_of(functional_call(model, others, args, kwargs)).backward()
        return {name: value.grad for name, value in others.items()}

    _both("mlp", technique, tmp_path, run)


@every_technique
def test_an_inner_step_of_meta_learning(technique, tmp_path):
    def run(case, model):
        args, kwargs = case.batch(0)
        named = dict(model.named_parameters())
        seed_everything(1)
        loss = loss_of(functional_call(model, named, args, kwargs))
        steps = torch.autograd.grad(loss, list(named.values()), create_graph=True)
        fast = {name: p - 0.1 * g for (name, p), g in zip(named.items(), steps, strict=True)}
        loss_of(functional_call(model, fast, args, kwargs)).backward()
        return gradients(model)

    _both("mlp", technique, tmp_path, run)


def test_a_parameter_changed_before_the_backward_is_refused(tmp_path):
    """Autograd doesn't save a bias, so only the replay's check can detect the change."""
    case, _ = twins(MODELS["mlp"])
    with executing(case.model, uniform(case.model, "recompute"), tmp_path):
        loss = loss_of(forward(case, case.model, 0))
        biases = [value for name, value in case.model.named_parameters() if name.endswith("bias")]
        with torch.no_grad():
            for bias in biases:
                bias.add_(1.0)
        with pytest.raises(IntegrationError, match="parameter 'bias' was changed in place"):
            loss.backward()


# ---- arguments ----------------------------------------------------------------------------------


def _more(module, args):
    return (args[0] * 1.3 + 0.1, *args[1:])


@every_technique
@pytest.mark.parametrize("prepend", [False, True])
def test_a_pre_hook_put_on_later_changes_the_arguments_once(technique, prepend, tmp_path):
    case, twin = twins(MODELS["inplace"])
    layers = [dict(model.named_modules())["blocks.1"] for model in (case.model, twin)]

    def run(model):
        seen = []
        for step in range(3):
            seed_everything(step)
            loss_of(forward(case, model, step)).backward()
            seen.append(gradients(model))
        return seen

    with executing(case.model, uniform(case.model, technique), tmp_path):
        for layer in layers:
            layer.register_forward_pre_hook(_more, prepend=prepend)
        assert_same(run(twin), run(case.model))


def test_a_pre_hook_of_all_modules_changes_the_arguments_once(tmp_path):
    def hook(module, args):
        return _more(module, args) if type(module).__name__ == "_Inplace" else None

    case, twin = twins(MODELS["inplace"])
    handle = nn.modules.module.register_module_forward_pre_hook(hook)
    try:
        loss_of(forward(case, twin, 0)).backward()
        with executing(case.model, uniform(case.model, "recompute"), tmp_path):
            loss_of(forward(case, case.model, 0)).backward()
    finally:
        handle.remove()
    assert_same(gradients(twin), gradients(case.model))


def test_profiled_steps_recompute_layers_that_write_to_their_argument():
    def make():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(inplace=True), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2)
        )

    def run(model):
        seen = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            model(torch.randn(4, 12, generator=torch.Generator().manual_seed(step))).sum().backward()
            seen.append(gradients(model))
            optimizer.step()
            optimizer.zero_grad()
        return seen

    expected = run(make())
    model = memscale.wrap(
        make(), Config(force_optimize=True, use_static_profiling=False, enable_offloading=False, enable_logging=False)
    )
    found = run(model)
    assert model._memscale_executor.counters()["recomputed_layers"] > 0
    memscale.detach(model)
    assert_same(expected, found)


# ---- threads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("static", [True, False])
def test_the_first_forwards_may_come_from_several_threads(static):
    """One of them plans; meanwhile the model has fake tensors instead of its own."""
    case, twin = twins(MODELS["mlp"])
    case.model.eval()
    twin.eval()

    def run(model):
        found = {}

        def work(index):
            args, kwargs = case.batch(index)
            loss = loss_of(model(*args, **kwargs))
            found[index] = (loss.detach(), torch.autograd.grad(loss, list(model.parameters())))

        for _ in range(3):
            threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return [found.get(index) for index in range(4)]

    expected = run(twin)
    memscale.wrap(case.model, Config(force_optimize=True, use_static_profiling=static, enable_logging=False))
    found = run(case.model)
    memscale.detach(case.model)
    assert_same(expected, found)


def test_a_step_that_cannot_be_followed_is_no_error(caplog):
    """The profile of a real step doesn't see a backward on another thread."""
    case, twin = twins(MODELS["mlp"])
    memscale.wrap(case.model, Config(force_optimize=True, use_static_profiling=False, enable_logging=False))

    def run(model):
        seen = []
        for step in range(8):
            seed_everything(step)
            loss = loss_of(forward(case, model, step))
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
            seen.append(gradients(model))
        return seen

    assert_same(run(twin), run(case.model))
    memscale.detach(case.model)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


class _Equilibrium(nn.Module):
    """A deep equilibrium model: computes its output by iteration, and its gradient by iteration in a tensor's hook."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(3)))
        self.head = nn.Linear(12, 4)

    def _step(self, z, x):
        return 0.3 * self.body(z) + x

    def forward(self, x):
        with torch.no_grad():
            z = self._step(x, x)
        z = self._step(z, x)
        start = z.clone().detach().requires_grad_()
        again = self._step(start, x)

        def iterate(gradient):
            found = gradient
            for _ in range(2):
                found = torch.autograd.grad(again, start, found, retain_graph=True)[0] + gradient
            return found

        if z.requires_grad:
            z.register_hook(iterate)
        return self.head(z)


def test_a_step_that_is_refused_at_its_end_is_no_error():
    """If a backward runs inside another backward, the profile of a real step contradicts itself."""

    def run(wraps):
        seed_everything(1)
        model = _Equilibrium()
        if wraps:
            memscale.wrap(model, Config(force_optimize=True, enable_logging=False))
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        seen = []
        for step in range(5):
            model(torch.randn(4, 12, generator=torch.Generator().manual_seed(step))).square().sum().backward()
            seen.append(gradients(model))
            optimizer.step()
            optimizer.zero_grad()
        if wraps:
            memscale.detach(model)
        return seen

    assert_same(run(False), run(True))


# ---- offloaded pieces ---------------------------------------------------------------------------


class _Pieces(nn.Module):
    """Two halves of one storage, with separate version counters; each is finished in place."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 24)

    def forward(self, x):
        first, second = torch.unsafe_chunk(self.linear(x), 2, 1)
        first = first.tanh_()
        second = second.sigmoid_()
        return first * second


def test_pieces_of_a_storage_are_stored_as_each_is_finished(tmp_path):
    model = nn.Sequential(*(_Pieces() for _ in range(3)))
    case = Case(model, lambda seed: ((torch.randn(4, 12, generator=torch.Generator().manual_seed(seed)),), {}))
    loss_of(forward(case, model, 0)).backward()
    expected = gradients(model)
    model.zero_grad()
    entries = [(str(index), 0, "offload_disk") for index in range(3)]
    with executing(model, plan_json(entries), tmp_path) as executor:
        loss = loss_of(forward(case, model, 0))
        stored(model)
        loss.backward()
        assert executor.counters()["offloaded_bytes"] > 0
    assert_same(expected, gradients(model))


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_a_tensor_that_is_filled_after_it_was_saved_is_stored_filled(technique, tmp_path):
    """RReLU's operator saves its noise tensor before it draws the noise."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(12, 12), nn.RReLU()) for _ in range(3)))
    case = Case(model, lambda seed: ((torch.randn(4, 12, generator=torch.Generator().manual_seed(seed)),), {}))
    seed_everything(1)
    loss_of(forward(case, model, 0)).backward()
    expected = gradients(model)
    model.zero_grad()
    with executing(model, uniform(model, technique), tmp_path) as executor:
        seed_everything(1)
        loss = loss_of(forward(case, model, 0))
        stored(model)
        loss.backward()
        counters = executor.counters()
        assert counters["offloaded_bytes"] + counters["recomputed_layers"] > 0
        del loss
        executor._core.backward_ended()
        assert_nothing_left(executor)
    assert_same(expected, gradients(model))


_OUTPUTS: contextvars.ContextVar[dict[str, list[torch.Tensor]] | None] = contextvars.ContextVar("outputs", default=None)
_scale_of: contextvars.ContextVar[tuple[float, ...] | list[float]] = contextvars.ContextVar("scale", default=(1.0,))


class _Collecting(nn.Module):
    """Appends its output to a list of its caller's, and reads a setting of its caller's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.inner(x)) * _scale_of.get()[0]
        outputs = _OUTPUTS.get()
        if outputs is not None:
            outputs["y"].append(y)
        return y


@every_technique
@pytest.mark.parametrize("has_backward", [True, False], ids=["backward", "forward alone"])
def test_a_collector_in_a_context_variable_keeps_no_graph_and_hears_no_replay(technique, has_backward, tmp_path):
    def run(model: nn.Module) -> tuple[list[int], dict[str, torch.Tensor | None]]:
        seen = []
        for _ in range(2):
            collected: dict[str, list[torch.Tensor]] = {"y": []}
            tokens = _OUTPUTS.set(collected), _scale_of.set([0.5])
            loss = model(torch.ones(4, 12)).sum() + sum(y.square().sum() for y in collected["y"])
            _OUTPUTS.reset(tokens[0])
            _scale_of.reset(tokens[1])
            if has_backward:
                loss.backward()
            seen.append(len(collected["y"]))
        return seen, gradients(model)

    seed_everything(1)
    model = nn.Sequential(*(_Collecting() for _ in range(3)))
    expected = run(model)
    model.zero_grad()
    with executing(model, uniform(model, technique), tmp_path) as executor:
        found = run(model)
        executor._core.backward_ended()
        assert_nothing_left(executor)
    assert_same(expected, found)


# ---- inference mode ---------------------------------------------------------------------------------


@pytest.mark.parametrize("technique", (*TECHNIQUES, "selective_4"))
def test_backward_may_run_in_inference_mode(technique, tmp_path):
    def run(model: nn.Module) -> list[dict[str, torch.Tensor | None]]:
        seen = []
        for seed in range(2):
            seed_everything(seed)
            loss = model(torch.randn(4, 12)).square().mean()
            with torch.inference_mode():
                for _ in range(2):  # the second one adds to the first one's gradients
                    loss.backward(retain_graph=True)
                assert torch.is_inference_mode_enabled()
            seen.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
            model.zero_grad()
        return seen

    seed_everything(1)
    blocks = [nn.Sequential(nn.Linear(12, 12), nn.GELU(), nn.Dropout(0.2), nn.Linear(12, 12)) for _ in range(4)]
    model = nn.Sequential(*blocks)
    expected = run(model)
    with executing(model, uniform(model, technique), tmp_path) as executor:
        assert_same(expected, run(model))
        executor._core.backward_ended()
        assert_nothing_left(executor)


class _Checking(nn.Module):
    """Looks at its result, and turns errors of the look into others."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x):
        y = torch.sigmoid(self.first(x))
        try:
            y.exp().square()
        except Exception as error:
            raise ValueError("this layer failed") from error
        return y


@every_technique
def test_the_end_of_a_replay_is_no_error_to_the_layer(technique, tmp_path):
    model = nn.Sequential(_Checking(), _Checking())
    with executing(model, uniform(model, technique), tmp_path) as executor:
        model(torch.ones(2, 8, requires_grad=True)).sum().backward()
        assert executor.counters()["recomputed_layers"] > 0
