"""Unusual training loops and features of torch: results equal those of the unwrapped run, and nothing is left
behind."""

from __future__ import annotations

import copy
import gc
import threading
import weakref

import pytest
import torch
from execute_support import (
    TECHNIQUES,
    assert_nothing_left,
    assert_same,
    executing,
    forward,
    gradients,
    no_hooks_left,
    rng_states,
    seed_everything,
    state_of,
    stored,
    twins,
    uniform,
)
from models import MODELS, Case, loss_of
from torch.utils.checkpoint import checkpoint

import memscale
from memscale.session.session import Session

SOME = ("gpt2", "resnet", "albert", "multi_output", "lstm")

every_technique = pytest.mark.parametrize("technique", TECHNIQUES)
some_models = pytest.mark.parametrize("name", SOME)


def both(name, technique, directory, run):
    """Runs `run(case, model)` on an unwrapped twin and under a plan. Asserts that both agree and nothing is left;
    returns the counters."""
    case, twin = twins(MODELS[name])
    seed_everything(7)
    expected = (run(case, twin), gradients(twin), state_of(twin), rng_states())
    with executing(case.model, uniform(case.model, technique), directory) as executor:
        seed_everything(7)
        found = (run(case, case.model), gradients(case.model), state_of(case.model), rng_states())
        executor._core.backward_ended()
        assert_nothing_left(executor)
        counters = executor.counters()
    assert_same(expected, found)
    return counters


@every_technique
@some_models
def test_gradients_accumulate(name, technique, tmp_path):
    def run(case, model):
        for step in range(3):
            (loss_of(forward(case, model, step)) / 3).backward()

    both(name, technique, tmp_path, run)


@every_technique
def test_gradients_are_clipped(technique, tmp_path):
    def run(case, model):
        loss_of(forward(case, model, 0)).backward()
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    both("gpt2", technique, tmp_path, run)


@every_technique
@some_models
def test_a_retained_graph_can_be_used_again(name, technique, tmp_path):
    def run(case, model):
        loss = loss_of(forward(case, model, 0))
        loss.backward(retain_graph=True)
        first = gradients(model)
        loss.backward(retain_graph=True)
        loss.backward()
        return first

    both(name, technique, tmp_path, run)


@every_technique
@some_models
def test_autograd_grad_of_some_parameters(name, technique, tmp_path):
    def run(case, model):
        loss = loss_of(forward(case, model, 0))
        parameters = list(model.parameters())
        some = torch.autograd.grad(loss, parameters[-2:], retain_graph=True, allow_unused=True)
        rest = torch.autograd.grad(loss, parameters, allow_unused=True)
        return some, rest

    both(name, technique, tmp_path, run)


@every_technique
def test_several_forwards_before_one_backward(technique, tmp_path):
    def run(case, model):
        losses = [loss_of(forward(case, model, step)) for step in range(3)]
        (losses[0] + losses[1] * 2 + losses[2]).backward()

    both("gpt2", technique, tmp_path, run)
    both("resnet", technique, tmp_path, run)


@every_technique
def test_forwards_and_backwards_in_any_order(technique, tmp_path):
    def run(case, model):
        first = loss_of(forward(case, model, 0))
        second = loss_of(forward(case, model, 1))
        first.backward()
        third = loss_of(forward(case, model, 2))
        third.backward()
        second.backward()

    both("gpt2", technique, tmp_path, run)


@every_technique
@pytest.mark.parametrize("name", ["mlp", "complex_views"])
def test_second_derivatives(name, technique, tmp_path):
    def run(case, model):
        parameters = list(model.parameters())
        loss = loss_of(forward(case, model, 0))
        first = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
        penalty = sum(gradient.square().sum() for gradient in first if gradient is not None)
        penalty.backward()

    both(name, technique, tmp_path, run)


@every_technique
def test_inputs_that_need_gradients(technique, tmp_path):
    def run(case, model):
        (x,), _ = case.batch(0)
        x.requires_grad_()
        loss_of(model(x)).backward()
        return x.grad

    both("mlp", technique, tmp_path, run)


@every_technique
@some_models
def test_abandoned_graphs_are_released(name, technique, tmp_path):
    def run(case, model):
        for step in range(3):
            out = forward(case, model, step)
            del out
        loss_of(forward(case, model, 9)).backward()

    both(name, technique, tmp_path, run)


@every_technique
def test_evaluation_in_between(technique, tmp_path):
    def run(case, model):
        out = loss_of(forward(case, model, 0))
        model.eval()
        with torch.no_grad():
            seen = [loss_of_values(forward(case, model, 1))]
        with torch.inference_mode():
            seen.append(loss_of_values(forward(case, model, 2)).clone())
        out.backward()  # the modules are in evaluation mode by now
        model.train()
        loss_of(forward(case, model, 3)).backward()
        return seen

    def loss_of_values(out):
        return (out.loss if hasattr(out, "loss") else out).float().mean().detach().clone()

    both("gpt2", technique, tmp_path, run)
    both("resnet", technique, tmp_path, run)


@every_technique
def test_gradients_in_evaluation_mode(technique, tmp_path):
    def run(case, model):
        model.eval()
        loss_of(forward(case, model, 0)).backward()

    both("gpt2", technique, tmp_path, run)


class Broken(Exception):
    pass


@every_technique
@pytest.mark.parametrize("where", ["layer", "root", "interrupt"])
def test_an_exception_in_forward(technique, where, tmp_path):
    def run(case, model):
        layers = model.transformer.h
        error = KeyboardInterrupt if where == "interrupt" else Broken

        def fail(*_):
            raise error

        target = layers[1].mlp if where != "root" else model.lm_head
        handle = target.register_forward_hook(fail)
        with pytest.raises(error):
            forward(case, model, 0)
        handle.remove()
        if where == "interrupt":
            # work outside the model, before its next forward, must be unaffected
            x = torch.ones(3, requires_grad=True)
            (x.exp() * x).sum().backward()
        loss_of(forward(case, model, 1)).backward()
        assert no_hooks_left()

    both("gpt2", technique, tmp_path, run)


@every_technique
def test_an_exception_in_backward(technique, tmp_path):
    def run(case, model):
        def fail(*_):
            raise Broken

        loss = loss_of(forward(case, model, 0))
        handle = next(model.transformer.h[1].parameters()).register_hook(fail)
        with pytest.raises(Broken):
            loss.backward()
        handle.remove()
        del loss
        model.zero_grad()
        loss_of(forward(case, model, 1)).backward()

    both("gpt2", technique, tmp_path, run)


@every_technique
def test_a_change_in_place_raises_as_autograd_does(technique, tmp_path):
    """A tensor that autograd saved is changed before the backward."""
    texts = []

    def run(case, model):
        kept = []
        handle = model[1][0].register_forward_hook(lambda module, args, out, kept=kept: kept.append(out))
        loss = loss_of(forward(case, model, 0))
        handle.remove()
        kept[0].data  # noqa: B018  does not count as a change
        with torch.no_grad():
            kept[0].add_(1.0)
        if technique.startswith("recompute") and texts:
            # the replay recomputes the saved tensor, so the changed one isn't used
            loss.backward()
        else:
            with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
                loss.backward()
            texts.append(str(error.value).split(", which is output")[0].split(" is at version")[0])
        del loss, kept
        model.zero_grad()

    both("mlp", technique if technique != "mixed" else "offload_disk", tmp_path, run)
    assert len(set(texts)) == 1


def test_a_kept_tensor_changed_in_place_raises(tmp_path):
    """Tensors too small to move, and parameters, are checked as well."""
    case, _ = twins(MODELS["mlp"])
    for target in ("activation", "parameter"):
        plan = uniform(case.model, "offload_disk", min_bytes=1 << 30)
        with executing(case.model, plan, tmp_path):
            kept = []
            handle = case.model[1][0].register_forward_hook(lambda module, args, out, kept=kept: kept.append(out))
            loss = loss_of(forward(case, case.model, 0))
            handle.remove()
            with torch.no_grad():
                (kept[0] if target == "activation" else case.model[1][0].weight).add_(1.0)
            with pytest.raises(RuntimeError, match=r"inplace operation: \[torch.FloatTensor \[.*\] is at version"):
                loss.backward()


def test_an_argument_changed_in_place_is_refused_in_a_replay(tmp_path):
    from memscale.errors import IntegrationError

    case, _ = twins(MODELS["mlp"])
    with executing(case.model, uniform(case.model, "recompute"), tmp_path):
        x = torch.randn(6, 24)
        kept = []
        handle = case.model[0].register_forward_hook(lambda module, args, out: kept.append(out))
        loss = loss_of(case.model(x))
        handle.remove()
        with torch.no_grad():
            kept[0].mul_(2.0)
        with pytest.raises(IntegrationError, match="layer 1: an argument .* was changed in place"):
            loss.backward()


@every_technique
def test_foreign_saved_tensor_hooks_are_left_alone(technique, tmp_path, caplog):
    packed = []

    def run(case, model):
        def pack(tensor):
            packed.append(tensor.shape)
            return tensor.clone()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = loss_of(forward(case, model, 0))
        loss.backward()

    both("gpt2", technique, tmp_path, run)
    assert len(packed) % 2 == 0 and packed[: len(packed) // 2] == packed[len(packed) // 2 :]
    warnings = [record for record in caplog.records if "hooks of someone else" in record.message]
    assert len(warnings) == 1


@every_technique
def test_the_whole_model_under_a_checkpoint(technique, tmp_path):
    def run(case, model):
        (x,), _ = case.batch(0)
        checkpoint(model, x.requires_grad_(), use_reentrant=False).sum().backward()
        checkpoint(model, x, use_reentrant=True).sum().backward()
        return x.grad

    both("mlp", technique, tmp_path, run)


@every_technique
def test_functional_transforms_are_left_alone(technique, tmp_path, caplog):
    def run(case, model):
        (x,), _ = case.batch(0)
        parameters = dict(model.named_parameters())

        def value(tensors):
            return torch.func.functional_call(model.eval(), tensors, (x,)).square().mean()

        found = torch.func.grad(value)(parameters)
        model.train()
        loss_of(forward(case, model, 0)).backward()
        return found

    both("mlp", technique, tmp_path, run)
    assert any("saved-tensor hooks are disabled" in record.message for record in caplog.records)


@every_technique
def test_a_forward_over_a_batch_of_models_is_left_alone(technique, tmp_path):
    """An ensemble: `torch.func.vmap` over the parameters, and the gradients of all members."""

    def run(case, model):
        (x,), _ = case.batch(0)
        model.eval()
        many = {name: torch.stack([p.detach(), p.detach() * 0.5]) for name, p in model.named_parameters()}
        for tensor in many.values():
            tensor.requires_grad_()
        out = torch.func.vmap(lambda tensors: torch.func.functional_call(model, tensors, (x,)))(many)
        out.square().sum().backward()
        model.train()
        loss_of(forward(case, model, 0)).backward()
        return [tensor.grad for tensor in many.values()]

    both("mlp", technique, tmp_path, run)


class _Differentiating(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(12, 12) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.func.vmap(torch.func.grad(lambda row, layer=layer: torch.tanh(layer(row)).sum()))(x)
        return x


def test_a_forward_with_derivatives_by_torch_func_is_left_alone(caplog):
    model = _Differentiating()
    x = torch.randn(4, 12)
    model(x).square().sum().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    memscale.wrap(model, memscale.Config(force_optimize=True))
    for _ in range(2):
        model.zero_grad()
        model(x).square().sum().backward()
        assert all(torch.equal(p.grad, gradient) for p, gradient in zip(model.parameters(), plain, strict=True))
    assert sum("derivatives by torch.func" in record.message for record in caplog.records) == 1
    memscale.detach(model)


def test_where_real_steps_are_profiled_such_a_forward_fails_once_and_says_why():
    model = memscale.wrap(_Differentiating(), memscale.Config(force_optimize=True, use_static_profiling=False))
    x = torch.randn(4, 12)
    with pytest.raises(RuntimeError, match="saved tensor hooks") as caught:
        model(x)
    assert "From the next forward on" in caught.value.__notes__[0]
    model(x).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    memscale.detach(model)


def _nested(seed, layout):
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(rows, 12, generator=generator) for rows in (3, 5, 2)]
    return torch.nested.nested_tensor(parts, layout=layout)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.parametrize("technique", [*TECHNIQUES, "planned"])
def test_nested_tensors_run_as_without(technique, layout, tmp_path):
    """Nested tensors can't be traced with fake tensors. Jagged ones have symbolic sizes and their own class, strided
    ones have no shape at all."""
    _, model = twins(lambda: Case(_Residual(), lambda seed: ((_nested(seed, layout),), {})))
    case = Case(model, lambda seed: ((_nested(seed, layout),), {}))

    def steps():
        seen = []
        for step in range(4):
            model.zero_grad()
            model(*case.batch(step)[0]).backward()
            seen.append(gradients(model))
        return seen

    expected = steps()
    if technique == "planned":
        with memscale.optimize(model, config=memscale.Config(force_optimize=True)):
            assert_same(expected, steps())
    else:
        with executing(model, uniform(model, technique), tmp_path):
            assert_same(expected, steps())


class _Recursive(torch.nn.Module):
    """Its forward calls the module itself: with gradients, and inside that call without."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(12, 24), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(24, 12)
            )
            for _ in range(2)
        )
        self.last = torch.nn.Linear(12, 12)

    def forward(self, x, depth=2):
        for layer in self.layers:
            x = x + layer(x)
        if depth > 0:
            with torch.set_grad_enabled(depth == 2):
                inner = self(x, depth - 1)
            x = x + inner
        return self.last(x) if depth < 2 else self.last(x).square().mean()


def _train_recursively(model):
    seed_everything(7)
    seen = []
    for _ in range(4):
        model.zero_grad()
        loss = model(torch.randn(8, 12))
        loss.backward()
        seen.append((loss.detach(), gradients(model)))
    return seen


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_a_module_that_calls_itself_trains_as_without(technique, tmp_path):
    seed_everything(0)
    model = _Recursive()
    expected = _train_recursively(model)
    with executing(model, uniform(model, technique), tmp_path) as executor:
        assert_same(expected, _train_recursively(model))
        assert executor.counters()["steps"] == 3  # those that a next forward has ended
        assert_nothing_left(executor)


@pytest.mark.parametrize("is_traced", [True, False])
def test_a_module_that_calls_itself_asks_once_for_a_plan(is_traced, monkeypatch):
    asked = []
    usual = Session.plan_for
    monkeypatch.setattr(Session, "plan_for", lambda session, *rest: asked.append(1) or usual(session, *rest))
    seed_everything(0)
    model = _Recursive()
    expected = _train_recursively(model)
    config = memscale.Config(force_optimize=True, use_static_profiling=is_traced)
    with memscale.optimize(model, config=config):
        assert_same(expected, _train_recursively(model))
        assert model._memscale_executor.counters()["recomputed_layers"] > 0
    assert len(asked) == 1


def test_an_interrupt_inside_a_nested_call_ends_the_forward(tmp_path):
    seed_everything(0)
    model = _Recursive()
    expected = _train_recursively(model)

    def interrupt(*_):
        raise KeyboardInterrupt

    with executing(model, uniform(model, "recompute"), tmp_path) as executor:
        for module in (model.last, model.layers[1]):
            handle = module.register_forward_hook(interrupt)
            with pytest.raises(KeyboardInterrupt):
                model(torch.randn(8, 12))
            handle.remove()
        assert_same(expected, _train_recursively(model))
        assert_nothing_left(executor)


class _Residual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.LayerNorm(12), torch.nn.Linear(12, 12), torch.nn.GELU()) for _ in range(3)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x.values().square().mean()


def test_a_wrapped_model_is_exported_as_without(tmp_path):
    """torch.jit.trace with gradients enabled, as users export before they deploy."""
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(12, 12), torch.nn.Tanh()) for _ in range(3)))
    x = torch.randn(4, 12)
    plain = [node.kind() for node in torch.jit.trace(model, x).inlined_graph.nodes()]
    with executing(model, uniform(model, "recompute"), tmp_path):
        traced = torch.jit.trace(model, x)
        assert [node.kind() for node in traced.inlined_graph.nodes()] == plain
        assert torch.equal(traced(x), model(x))


class _Divided(torch.nn.Module):
    """Products whose last bits depend on the number of threads, before and after an operator that torch divides among
    threads."""

    def __init__(self, norm):
        super().__init__()
        parts = [torch.nn.Linear(700, 100), torch.nn.GELU(), *norm, torch.nn.Linear(100, 700)]
        self.layers = torch.nn.ModuleList(torch.nn.Sequential(*copy.deepcopy(parts)) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


@pytest.mark.parametrize("norm", [[], [torch.nn.LayerNorm(100)]], ids=["undivided", "divided"])
@every_technique
def test_a_fresh_thread_keeps_the_number_of_threads_that_torch_has_there(norm, technique, tmp_path):
    """After `set_num_threads()` on another thread, a new thread keeps the default number until its first operator that
    torch divides, which may be inside a layer."""
    plain, x = _Divided(norm), torch.randn(5, 700)
    model = copy.deepcopy(plain)
    found = []

    def work(each):
        for _ in range(3):
            each.zero_grad()
            loss = each(x)
            loss.backward()
            found.append([loss.detach(), *(parameter.grad.clone() for parameter in each.parameters())])

    torch.set_num_threads(1)
    with executing(model, uniform(model, technique), tmp_path):
        for each in (plain, model):
            thread = threading.Thread(target=work, args=(each,))
            thread.start()
            thread.join()
    assert_same(found[3:], found[:3])


def test_a_wrapped_model_is_scripted_from_its_copy(tmp_path):
    """TorchScript would compile a module's hooks, so scripting is refused. The copy that the error suggests works."""
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(12, 12), torch.nn.Tanh()) for _ in range(3)))
    x, around = torch.randn(4, 12), torch.nn.Sequential(model)
    with executing(model, uniform(model, "recompute"), tmp_path):
        for scripted in (model, model[1], around):
            with pytest.raises(memscale.IntegrationError, match=r"script copy.deepcopy\(model\)"):
                torch.jit.script(scripted)
        assert torch.equal(torch.jit.script(copy.deepcopy(model))(x), model(x))
        assert torch.equal(torch.jit.script(copy.deepcopy(around))(x), model(x))
    assert torch.equal(torch.jit.script(model)(x), model(x))


@every_technique
def test_forwards_on_two_threads(technique, tmp_path):
    case, twin = twins(MODELS["mlp"])
    case.model.eval(), twin.eval()  # all threads' dropout draws from one generator

    def gradients_of(model):
        results = [None, None]
        barrier = threading.Barrier(2)

        def work(index):
            barrier.wait()
            for _ in range(5):
                loss = loss_of(forward(case, model, index))
                results[index] = torch.autograd.grad(loss, list(model.parameters()))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    expected = gradients_of(twin)
    with executing(case.model, uniform(case.model, technique), tmp_path) as executor:
        assert_same(expected, gradients_of(case.model))
        executor._core.backward_ended()
        assert_nothing_left(executor)


@every_technique
def test_a_graph_outlives_detach(technique, tmp_path):
    case, twin = twins(MODELS["gpt2"])
    seed_everything(3)
    loss_of(forward(case, twin, 0)).backward()
    with executing(case.model, uniform(case.model, technique), tmp_path) as executor:
        core = weakref.ref(executor)
        seed_everything(3)
        loss = loss_of(forward(case, case.model, 0))
    del executor
    gc.collect()
    assert core() is None  # the graph doesn't hold the executor's Python object
    loss.backward()
    assert_same(gradients(twin), gradients(case.model))


@every_technique
def test_an_optimizer_that_steps_inside_backward(technique, tmp_path):
    def run(case, model):
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def step(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        handles = [p.register_post_accumulate_grad_hook(step) for p in model.parameters()]
        for index in range(2):
            loss_of(forward(case, model, index)).backward()
        for handle in handles:
            handle.remove()

    both("gpt2", technique, tmp_path, run)


@every_technique
def test_a_graph_inside_a_forward(technique, tmp_path):
    """A layer differentiates inside its forward, so its saved tensors are unpacked before forward ends."""

    def run(case, model):
        return _with_inner_gradient(case, model)

    both("mlp", technique, tmp_path, run)


def _with_inner_gradient(case, model):
    def inner(module, args, out):
        (gradient,) = torch.autograd.grad(out.square().sum(), module.weight, retain_graph=True)
        return out + gradient.mean()

    handle = model[1][0].register_forward_hook(inner)
    loss_of(forward(case, model, 0)).backward()
    handle.remove()


def test_counters_tell_what_happened(tmp_path):
    def run(case, model):
        loss = loss_of(forward(case, model, 0))
        stored(model)
        loss.backward()

    counters = both("gpt2", "recompute", tmp_path, run)
    assert counters["recomputed_layers"] == 3
    assert counters["offloaded_bytes"] == 0
    counters = both("gpt2", "offload_disk", tmp_path, run)
    assert counters["recomputed_layers"] == 0
    assert counters["offloaded_bytes"] == counters["disk_bytes"] > 0
    assert 0 < counters["fetched_bytes"] <= counters["offloaded_bytes"]


class Neighbours(torch.nn.Module):
    """A layer of a graph network: its buffer is a sparse matrix."""

    def __init__(self, layout):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        links = (torch.rand(32, 32) < 0.2).float()
        self.register_buffer("links", links.to_sparse_coo() if layout == "coo" else links.to_sparse_csr())

    def forward(self, x):
        return torch.sparse.mm(self.links, self.linear(x)).relu()


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("technique", TECHNIQUES)
def test_buffers_may_be_sparse(technique, layout, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(Neighbours(layout) for _ in range(3)))
    x = torch.randn(32, 8)

    def run():
        model.zero_grad()
        model(x).sum().backward()
        return gradients(model)

    expected = run()
    with executing(model, uniform(model, technique), tmp_path) as executor:
        for _ in range(3):
            assert_same(expected, run())
        assert_nothing_left(executor)


def test_a_weight_may_be_sparse():
    layer = torch.nn.Linear(6, 4, bias=False)
    layer.weight = torch.nn.Parameter(layer.weight.detach().to_sparse_coo())
    model = torch.nn.Sequential(layer, torch.nn.Linear(4, 4))
    x = torch.randn(8, 6, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).sum(), x)
    memscale.wrap(model, memscale.Config(force_optimize=True))
    for _ in range(3):
        assert torch.equal(expected, torch.autograd.grad(model(x).sum(), x)[0])
    memscale.detach(model)
