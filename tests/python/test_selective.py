"""Selective techniques: single operators recompute single saved tensors. Results equal the unwrapped run's to the bit,
tensors that can't be recomputed stay, and the peak is the predicted one."""

from __future__ import annotations

import copy
import json
import sys

import pytest
import torch
from execute_support import (
    assert_nothing_left,
    assert_same,
    executing,
    forward,
    hook_counts,
    no_hooks_left,
    train,
    twins,
    uniform,
)
from models import MODELS, Case, loss_of
from planned_support import assert_peak_as_predicted, planned
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from memscale.errors import IntegrationError

# Models whose saved tensors come from convolutions or in-place operators, which are never run again singly.
NOTHING_TO_MAKE = ("resnet", "inplace")


@pytest.mark.parametrize("technique", ["selective_4", "selective_4_offload_disk"])
@pytest.mark.parametrize("name", MODELS)
def test_a_run_that_drops_all_it_can_is_the_plain_run(name, technique, tmp_path):
    case, twin = twins(MODELS[name])
    expected = train(case, twin)
    with executing(case.model, uniform(case.model, technique), tmp_path) as executor:
        found = train(case, case.model)
        counters = executor.counters()
        assert_nothing_left(executor)
    assert_same(expected, found)
    assert (counters["remade_tensors"] > 0) == (name not in NOTHING_TO_MAKE)
    assert counters["recomputed_layers"] == 0
    assert hook_counts(case.model) == hook_counts(twin)
    assert _get_current_dispatch_mode() is None


@pytest.mark.parametrize("rest", ["", "_offload_disk"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_every_set_of_a_plan_is_exact(name, number, rest, tmp_path):
    case, twin = twins(MODELS[name])
    expected = train(case, twin)
    _, plan = planned(case, f"selective_{number}{rest}")
    used = [entry for entry in json.loads(plan)["entries"] if "selection" in entry]
    with executing(case.model, plan, tmp_path) as executor:
        found = train(case, case.model)
        counters = executor.counters()
        assert_nothing_left(executor)
    assert_same(expected, found)
    assert (counters["remade_tensors"] > 0) == bool(used)
    assert (counters["offloaded_bytes"] + counters["packed_bytes"] > 0) == (rest != "" and bool(used))
    assert used or number > 1


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
def test_what_a_plan_drops_is_what_the_run_drops(name, tmp_path):
    """The run finds every slot that the plan drops, and can recompute it."""
    case, _ = twins(MODELS[name])
    _, plan = planned(case, "selective_1")
    document = json.loads(plan)
    dropped = sum(
        len(document["selections"][entry["selection"]]["dropped"])
        for entry in document["entries"]
        if "selection" in entry
    )
    with executing(case.model, plan, tmp_path) as executor:
        loss_of(forward(case, case.model, 0)).backward()
        assert executor.counters()["remade_tensors"] >= dropped > 0


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
def test_what_a_plan_drops_is_dropped_for_smaller_inputs(name, tmp_path):
    """Batches of a data loader differ in length, and one plan serves all of them."""
    case, twin = twins(MODELS[name])
    _, plan = planned(case, "selective_3")

    def shorter(seed):
        args, kwargs = case.batch(seed)
        kwargs = {key: value[:, :-3].contiguous() for key, value in kwargs.items()}
        # With the cache, gradients of short sequences have other last bits on some processors.
        return args, {**kwargs, "use_cache": False}

    expected = train(Case(twin, shorter), twin)
    with executing(case.model, plan, tmp_path) as executor:
        loss_of(forward(case, case.model, 0)).backward()
        case.model.zero_grad()
        whole = executor.counters()["remade_tensors"]
    with executing(case.model, plan, tmp_path) as executor:
        found = train(Case(case.model, shorter), case.model)
        assert executor.counters()["remade_tensors"] == 2 * whole > 0
        assert_nothing_left(executor)
    assert_same(expected, found)


@pytest.mark.parametrize("technique", ["keep", "selective_1", "selective_2", "selective_3", "selective_4"])
@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
def test_the_peak_is_the_predicted_one(name, technique, tmp_path):
    assert_peak_as_predicted(MODELS[name], technique, tmp_path)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return x + torch.tanh(torch.nn.functional.gelu(y) * torch.sigmoid(y))


class Stack(torch.nn.Module):
    def __init__(self, layer: type[torch.nn.Module] = Layer, count: int = 3) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layer() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def stack() -> tuple[Stack, torch.Tensor]:
    torch.manual_seed(3)
    return Stack(), torch.randn(8, 16)


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_a_retained_graph_gives_the_same_twice(tmp_path):
    model, x = stack()
    model(x).sum().backward()
    expected = gradients(model)
    model.zero_grad()
    with executing(model, uniform(model, "selective_4"), tmp_path) as executor:
        loss = model(x).sum()
        loss.backward(retain_graph=True)
        once = gradients(model)
        model.zero_grad()
        loss.backward()
        assert all(torch.equal(a, b) for a, b in zip(expected, once, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(expected, gradients(model), strict=True))
        del loss
        assert_nothing_left(executor)


def test_second_derivatives_are_exact(tmp_path):
    model, x = stack()
    x.requires_grad_()

    def second() -> list[torch.Tensor]:
        model.zero_grad()
        (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        first.pow(2).sum().backward()
        return gradients(model)

    expected = second()
    with executing(model, uniform(model, "selective_4"), tmp_path):
        assert all(torch.equal(a, b) for a, b in zip(expected, second(), strict=True))


def test_a_parameter_changed_before_backward_is_refused(tmp_path):
    model, x = stack()
    with executing(model, uniform(model, "selective_4"), tmp_path):
        loss = model(x).sum()
        with torch.no_grad():
            model.layers[1].linear.bias.add_(1)
        with pytest.raises(IntegrationError, match="changed in place"):
            loss.backward()


class Breaking(Layer):
    """Raises KeyboardInterrupt in forward while `at` is set; torch runs no hooks after it."""

    at = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if self.at:
            raise KeyboardInterrupt
        return y


def interrupted_stack():
    torch.manual_seed(3)
    return Stack(Breaking), torch.randn(8, 16)


def interrupt(model, x):
    model.layers[1].at = True
    caught = []
    try:
        model(x)
    except KeyboardInterrupt as error:  # pytest.raises() would hold the frames in a circle
        caught.append(error.with_traceback(error.__traceback__.tb_next))  # without this frame
    model.layers[1].at = False
    return caught.pop()


def test_an_interrupted_forward_leaves_nothing_on_the_thread_after_detach(tmp_path):
    model, x = interrupted_stack()
    with executing(model, uniform(model, "selective_4"), tmp_path):
        interrupt(model, x)
    assert _get_current_dispatch_mode() is None
    assert torch.overrides._get_current_function_mode() is None


def test_an_interrupted_tape_does_not_grow_and_ends_with_the_next_forward(tmp_path):
    model, x = interrupted_stack()
    model(x).sum().backward()
    expected = gradients(model)
    model.zero_grad()
    with executing(model, uniform(model, "selective_4"), tmp_path):
        error = interrupt(model, x)
        tape = _get_current_dispatch_mode()  # it stays for as long as the error does
        for _ in range(600):
            torch.tanh(x)
        assert tape is not None and not tape._makers and not tape._values
        del error
        if sys.gettrace() is None:  # coverage's tracer holds the frames longer than the error
            assert _get_current_dispatch_mode() is None
        with torch.no_grad():
            model(x)
        assert _get_current_dispatch_mode() is None
        model(x).sum().backward()
        assert all(torch.equal(a, b) for a, b in zip(expected, gradients(model), strict=True))


def test_a_tape_ends_below_a_mode_that_was_begun_later(tmp_path):
    class Counting(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    model, x = interrupted_stack()
    with executing(model, uniform(model, "selective_4"), tmp_path) as executor:
        interrupt(model, x)
        with Counting() as counting:
            executor._layer_calls.end_tape()
            assert _get_current_dispatch_mode() is counting
            counting.calls = 0
            torch.tanh(x)
            assert counting.calls == 1
        assert _get_current_dispatch_mode() is None


class Keeps(Layer):
    """Exposes a tensor that it saves."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = torch.tanh(self.linear(x))
        return torch.sigmoid(self.seen * 2)


def test_a_dropped_tensor_changed_in_place_raises_as_autograd_does(tmp_path):
    torch.manual_seed(3)
    model = Stack(Keeps)
    x = torch.randn(8, 16)
    with executing(model, uniform(model, "selective_4"), tmp_path):
        loss = model(x).sum()
        with torch.no_grad():
            model.layers[1].seen.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


class Writes(torch.nn.Module):
    """Writes to the input of an earlier operator whose backward needs only its output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        z = y * 2  # backward doesn't need y
        w = torch.tanh(z)  # w can't be recomputed, because z is overwritten below
        z.mul_(3)
        return torch.exp(w) + z


def test_what_is_written_to_is_never_a_source(tmp_path):
    torch.manual_seed(3)
    model = Stack(Writes)
    x = torch.randn(8, 16)
    model(x).sum().backward()
    expected = gradients(model)
    model.zero_grad()
    with executing(model, uniform(model, "selective_4"), tmp_path):
        model(x).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(expected, gradients(model), strict=True))


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer holds the frames of an error that was handled")
def test_an_interrupted_forward_leaves_nothing_once_the_interrupt_is_handled(tmp_path):
    model, x = interrupted_stack()
    with executing(model, uniform(model, "selective_4"), tmp_path) as executor:
        interrupt(model, x)
        assert _get_current_dispatch_mode() is None
        assert no_hooks_left()
        assert not executor._core.in_root() and not executor._siblings._forwards
        assert_nothing_left(executor)


def test_a_debugger_inside_a_forward_does_not_end_it(tmp_path):
    model, x = interrupted_stack()
    model(x).sum().backward()
    expected = gradients(model)
    model.zero_grad()

    def forget_traces(module, args):
        frame = sys._getframe()
        while frame is not None:
            frame.f_trace = None
            frame = frame.f_back

    with executing(model, uniform(model, "selective_4"), tmp_path) as executor:
        handle = model.layers[1].register_forward_pre_hook(forget_traces)
        model(x).sum().backward()
        handle.remove()
        assert_nothing_left(executor)
    assert all(torch.equal(a, b) for a, b in zip(expected, gradients(model), strict=True))


def test_a_broken_off_forward_leaves_no_mode_behind(tmp_path):
    model, x = interrupted_stack()
    model(x).sum().backward()
    expected = gradients(model)
    model.zero_grad()
    with executing(model, uniform(model, "selective_4"), tmp_path) as executor:
        interrupt(model, x)
        model(x).sum().backward()
        assert _get_current_dispatch_mode() is None
        assert_nothing_left(executor)
    assert all(torch.equal(a, b) for a, b in zip(expected, gradients(model), strict=True))


# ---- composite functions that compute in another way under any dispatch mode ----


class PlainMode(TorchDispatchMode):
    """A mode that changes nothing itself."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Composite(torch.nn.Module):
    """A layer whose work depends on one composite function of torch."""

    def __init__(self, function) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(300, 300)
        self.function = function

    def forward(self, x):
        return torch.tanh(self.linear(x)) * self.function(x.detach(), self.linear(x)).mean()


def _weighted(x, y):
    weights = torch.linspace(0.1, 1.0, 300, dtype=y.dtype) ** 3
    return torch.nn.functional.cross_entropy(
        y.flatten(0, 1), torch.arange(y.shape[0] * y.shape[1]) % 300, weights, ignore_index=7, label_smoothing=0.1
    )


COMPOSITES = {
    "svdvals": lambda x, y: torch.linalg.svdvals(x) * y.mean(),
    "eigvalsh": lambda x, y: torch.linalg.eigvalsh(x[0] @ x[0].mT).sum() * y.mean(),
    "spectral norm": lambda x, y: torch.linalg.matrix_norm(x, 2) * y.mean(),
    "nuclear norm": lambda x, y: x[0].norm("nuc") * y.mean(),
    "cond": lambda x, y: torch.linalg.cond(x) * y.mean(),
    "folded product": lambda x, y: (y @ x[:1, :1].mT.contiguous()) * y.mean(),
    # Which of its three products has other bits depends on the processor.
    "folded matmul": lambda x, y: (
        torch.matmul(x[:1, :1].mT.mT, y.mT) + torch.matmul(y, x[:1].mT) + torch.matmul(y, x[:1, :1].mT.contiguous())
    ),
    "weighted cross entropy": _weighted,
}


@pytest.mark.parametrize("technique", ["selective_4", "selective_4_offload_disk"])
@pytest.mark.parametrize("name", COMPOSITES)
def test_a_composite_computes_as_without_a_mode(name, technique, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.ModuleList(Composite(COMPOSITES[name]) for _ in range(2))
    model = torch.nn.Sequential(*model).double()
    plain = copy.deepcopy(model)

    def step(module):
        torch.manual_seed(1)
        x = torch.randn(5, 33, 300, dtype=torch.float64, requires_grad=True)
        y = module(x)
        y.square().mean().backward()
        return [y.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]

    expected = step(plain)
    with executing(model, uniform(model, technique), tmp_path) as executor:
        found = step(model)
        assert executor.counters()["remade_tensors"] > 0
        assert_nothing_left(executor)
    assert_same(expected, found)
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("name", COMPOSITES)
def test_the_composites_of_this_list_do_depend_on_modes(name):
    """Otherwise the test above shows nothing; the weights' sum has the same bits more often than not."""
    torch.manual_seed(0)
    layer = Composite(COMPOSITES[name])
    differ = 0
    for dtype in (torch.float32, torch.float64):
        layer.to(dtype)
        for seed in range(4):
            torch.manual_seed(seed)
            x = torch.randn(5, 33, 300, dtype=dtype)
            plain = layer(x)
            with PlainMode():
                differ += not torch.equal(plain, layer(x))
    assert differ > 0
