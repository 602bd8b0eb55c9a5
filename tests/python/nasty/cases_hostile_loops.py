"""Loops around layers: gradients taken twice and in part, data loaders, `no_sync`, state dictionaries, pickles,
tensor subclasses, and layers that look at who calls them."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
import sys
import tempfile
import weakref
from typing import Any

import torch
from subjects import BLOCKS, ROWS, WIDTH, Block, Stack, Subject, case, floats, mean_loss, stack
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, get_worker_info

KIND = "hostile"

# ---- gradients ---------------------------------------------------------------------------------


@case(KIND)
def a_graph_kept_for_three_backwards_of_other_weights() -> Subject:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        output = model(batch)
        output.square().mean().backward(retain_graph=True)
        output.backward(torch.ones_like(output) * 0.01, retain_graph=True)
        output[:, :2].sum().mul(0.01).backward()
        return output.detach()

    return Subject(stack(), step=step)


@case(KIND)
def a_product_with_the_hessian() -> Subject:
    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        parameters = list(model.parameters())
        loss = mean_loss(model(batch))
        first = torch.autograd.grad(loss, parameters, create_graph=True)
        product = sum((g * g.detach().sign()).sum() for g in first)
        second = torch.autograd.grad(product, parameters, allow_unused=True, materialize_grads=True)
        for parameter, g, h in zip(parameters, first, second, strict=True):
            parameter.grad = g.detach() + 0.1 * h
        return loss

    return Subject(stack(), step=step)


@case(KIND)
def gradients_of_some_tensors_and_then_of_the_rest() -> Subject:
    def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        batch = batch.clone().requires_grad_()
        loss = mean_loss(model(batch))
        chosen = [batch, model.blocks[2].inner.weight]
        parts = torch.autograd.grad(loss, chosen, retain_graph=True)
        loss.backward(inputs=[model.first.weight, model.blocks[1].outer.bias], retain_graph=True)
        loss.backward(inputs=[model.last.weight])
        model.blocks[2].inner.weight.grad = parts[1] + parts[0].mean()
        return loss

    return Subject(stack(), step=step)


@case(KIND)
def several_gradients_in_one_batched_call() -> Subject:
    def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        output = model(batch)
        directions = torch.eye(4)[:, None, :].expand(4, ROWS, 4)
        rows = torch.autograd.grad(
            output[:, :4], model.first.weight, directions, is_grads_batched=True, retain_graph=True
        )[0]
        loss = mean_loss(output)
        loss.backward()
        model.first.weight.grad += rows.square().mean(0)
        return loss

    return Subject(stack(), step=step)


@case(KIND)
def two_roots_with_gradients_of_their_own() -> Subject:
    def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        one, two = model(batch), model(batch * 0.5)
        torch.autograd.backward([two, one], [torch.ones_like(two) * 0.02, torch.full_like(one, 0.01)])
        return one.detach() + two.detach()

    return Subject(stack(), step=step)


@case(KIND)
def an_inner_loop_of_which_the_outer_takes_gradients() -> Subject:
    def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        weights = dict(model.named_parameters())
        inner = mean_loss(torch.func.functional_call(model, weights, (batch,)))
        moved = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        fast = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), moved, strict=True)}
        loss = mean_loss(torch.func.functional_call(model, fast, (batch * 0.5,)))
        loss.backward()
        return loss

    return Subject(stack(), step=step)


@case(KIND)
def a_step_toward_the_worst_weights_and_back() -> Subject:
    def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        mean_loss(model(batch)).backward()
        moves = [0.05 * p.grad / (p.grad.norm() + 1e-6) for p in model.parameters()]
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p.add_(move)
        model.zero_grad()
        loss = mean_loss(model(batch))
        loss.backward()
        with torch.no_grad():
            for p, move in zip(model.parameters(), moves, strict=True):
                p.sub_(move)
        return loss

    return Subject(stack(), step=step)


@case(KIND)
def a_line_search_that_calls_the_step_often() -> Subject:
    model = stack()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=4)

    def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = mean_loss(model(batch).square())
            loss.backward()
            return loss

        return torch.as_tensor(optimizer.step(closure))

    return Subject(model, step=step)


@case(KIND)
def a_gradient_scaled_and_looked_at_before_the_step() -> Subject:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)

    def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with torch.autocast("cpu", torch.float16):
            loss = mean_loss(model(batch))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Subject(stack(), step=step, watch=scaler.get_scale)


# ---- data and processes ------------------------------------------------------------------------


class _Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        return floats(index, WIDTH) + torch.rand(WIDTH) * (0.0 if info is None else 1.0)


@case(KIND)
def batches_of_worker_processes() -> Subject:
    def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        for rows in DataLoader(_Numbers(), batch_size=4, shuffle=True, num_workers=1):
            loss = mean_loss(model(rows))
            loss.backward()
        return loss

    return Subject(stack(), step=step, steps=3)


@case(KIND)
def a_loader_that_a_layer_turns() -> Subject:
    def prepare(block: Any) -> None:
        block.rows = iter(DataLoader(_Numbers(), batch_size=1, shuffle=True))

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        row = next(self.rows, None)
        return functional.gelu(x) if row is None else functional.gelu(x) + row

    return Subject(stack(body, prepare))


@case(KIND)
def gradients_summed_without_and_with_synchronization() -> Subject:
    held: dict[str, Any] = {}

    def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        if not held:
            store = torch.distributed.HashStore()
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            held["ddp"] = nn.parallel.DistributedDataParallel(model)
        ddp = held["ddp"]
        with ddp.no_sync():
            mean_loss(ddp(batch[:4])).backward()
            mean_loss(ddp(batch[4:8])).backward()
        loss = mean_loss(ddp(batch[8:]))
        loss.backward()
        return loss

    return Subject(stack(), step=step)


# ---- states, pickles, copies -------------------------------------------------------------------


@case(KIND)
def state_dictionaries_with_hooks_and_extra_state() -> Subject:
    class Extra(Block):
        count = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return super().forward(x)

        def get_extra_state(self) -> Any:
            return {"count": torch.tensor(self.count)}

        def set_extra_state(self, state: Any) -> None:
            self.count = int(state["count"])

    model = Stack([Extra() for _ in range(BLOCKS)])

    def renamed(module: Any, state: Any, prefix: str, _: Any) -> None:
        for name in [name for name in state if "inner" in name]:
            state[name.replace("inner", "renamed")] = state.pop(name)

    def back(module: Any, state: Any, prefix: str, *_: Any) -> None:
        for name in [name for name in state if "renamed" in name]:
            state[name.replace("renamed", "inner")] = state.pop(name)

    model.register_state_dict_post_hook(renamed)
    model.register_load_state_dict_pre_hook(back)

    def between(model: Any) -> None:
        state = {
            name: value if isinstance(value, dict) else value.clone() * 0.999
            for name, value in model.state_dict().items()
        }
        names.append(sorted(state))
        held.append(state)

    names: list[Any] = []
    held: list[Any] = []

    def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        loss = mean_loss(model(batch))
        between(model)
        loss.backward()
        model.load_state_dict(held.pop())
        return loss

    return Subject(model, step=step, watch=lambda: (names[-1], [b.count for b in model.blocks]))


@case(KIND)
def a_state_dictionary_read_in_forward() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        state = self.state_dict(keep_vars=True)
        names = ",".join([*state, *self.__dict__["_parameters"], *dict(self.named_modules())])
        return functional.gelu(x) + state["inner.bias"] + len(names) * 0.001

    return Subject(stack(body))


@case(KIND)
def a_model_saved_whole_and_trained_beside() -> Subject:
    sums: list[float] = []

    def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        stream = io.BytesIO()
        loss = mean_loss(model(batch))
        torch.save(model, stream)
        loss.backward()
        stream.seek(0)
        twin = torch.load(stream, weights_only=False)
        mean_loss(twin(batch)).backward()
        sums.append(sum(float(p.grad.double().sum()) for p in twin.parameters()))
        again = pickle.loads(pickle.dumps(model))
        sums.append(float(again(batch).double().sum()))
        return loss

    return Subject(Stack([Block() for _ in range(BLOCKS)]), step=step, watch=lambda: list(sums))


@case(KIND)
def a_copy_of_the_model_and_of_one_layer_between() -> Subject:
    sums: list[float] = []

    def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        loss = mean_loss(model(batch))
        twin, shallow = copy.deepcopy(model), copy.copy(model.blocks[1])
        mean_loss(twin(batch * 2)).backward()
        sums.append(float(shallow(torch.ones(2, WIDTH)).double().sum()))
        loss.backward()
        sums.append(sum(float(p.grad.double().sum()) for p in twin.parameters()))
        return loss

    return Subject(stack(), step=step, watch=lambda: list(sums))


@case(KIND)
def layers_added_removed_and_cast_between_the_steps() -> Subject:
    turn = [0]

    class Cast(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + super().forward(x.to(self.inner.weight.dtype)).to(x.dtype)

    def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        turn[0] += 1
        if turn[0] == 2:
            torch.manual_seed(9)
            model.blocks.append(Cast())
        if turn[0] == 3:
            model.blocks[1].double()
            del model.blocks[0]
        if turn[0] == 5:
            model.blocks[1].bfloat16()
        loss = mean_loss(model(batch))
        loss.backward()
        return loss

    return Subject(Stack([Cast() for _ in range(BLOCKS)]), step=step, steps=6)


# ---- subclasses --------------------------------------------------------------------------------


class _Tagged(torch.Tensor):
    """Counts the functions called with it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _Tagged.calls += 1
        return super().__torch_function__(function, types, args, kwargs or {})


class _Wrapped(torch.Tensor):
    """Holds a tensor, and halves every result of tanh."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, strides=inner.stride(), requires_grad=inner.requires_grad
        )
        made.inner = inner.detach()
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def inner(value: Any) -> Any:
            return value.inner if isinstance(value, _Wrapped) else value

        args, kwargs = torch.utils._pytree.tree_map(inner, (args, kwargs or {}))
        result = function(*args, **kwargs)
        if function is torch.ops.aten.tanh.default:
            result = result * 0.5
        return torch.utils._pytree.tree_map(lambda v: _Wrapped(v) if isinstance(v, torch.Tensor) else v, result)


@case(KIND)
def a_batch_of_a_subclass_that_counts() -> Subject:
    return Subject(stack(), batch=lambda seed: floats(seed).as_subclass(_Tagged))


@case(KIND)
def a_batch_of_a_subclass_that_wraps() -> Subject:
    def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        loss = model(_Wrapped(batch)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            if isinstance(parameter.grad, _Wrapped):
                parameter.grad = parameter.grad.inner
        return loss.inner if isinstance(loss, _Wrapped) else loss

    return Subject(stack(), step=step)


@case(KIND)
def a_parameter_of_a_subclass() -> Subject:
    def prepare(block: Any) -> None:
        block.gain = nn.Parameter(torch.ones(WIDTH).as_subclass(_Tagged))

    return Subject(stack(lambda self, x: functional.gelu(x * self.gain), prepare))


# ---- layers that look around -------------------------------------------------------------------


@case(KIND)
def a_layer_that_looks_at_its_callers() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        names = [frame.function for frame in inspect.stack(0)]
        frame, depth = sys._getframe(), 0
        while frame is not None:
            frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
        return functional.gelu(x) * (1.0 if "backward" in names else 2.0) + (depth > 100)

    return Subject(stack(body))


@case(KIND)
def a_layer_that_collects_garbage_and_watches_what_dies() -> Subject:
    def prepare(block: Any) -> None:
        block.references = []

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        gc.collect()
        alive = sum(reference() is not None for reference in self.references)
        self.references = [weakref.ref(x)]
        return functional.gelu(x) * (1 + alive)

    return Subject(stack(body, prepare))


@case(KIND)
def a_layer_that_traces_python_in_forward() -> Subject:
    seen: list[int] = []

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        events: list[str] = []
        before = sys.getprofile()
        sys.setprofile(lambda frame, event, argument: events.append(event))
        try:
            y = functional.gelu(self.inner(x))
        finally:
            sys.setprofile(before)
        seen.append(min(len(events), 1))
        return y

    return Subject(stack(body), watch=lambda: seen[-1])


@case(KIND)
def a_layer_that_writes_what_it_sees_to_a_temporary_file() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with tempfile.TemporaryFile() as stream:
            torch.save(x.detach(), stream)
            stream.seek(0)
            back = torch.load(stream)
        return functional.gelu(x) + 0.1 * back

    return Subject(stack(body))


@case(KIND)
def layers_that_are_scripted_traced_and_symbolic() -> Subject:
    class Model(Stack):
        def __init__(self) -> None:
            super().__init__([Block()])
            self.scripted = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.2)))
            self.traced = torch.jit.trace(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), floats(1))
            self.symbolic = torch.fx.symbolic_trace(Block())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(self.symbolic(self.traced(self.scripted(x))))

    return Subject(Model())


@case(KIND)
def layers_kept_in_a_plain_list_and_called_by_their_forward() -> Subject:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.owner = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
            self.plain = [nn.Sequential(layer, nn.GELU()) for layer in self.owner]
            self.forward = lambda x: x + self.plain[1].forward(self.plain[0](x))  # type: ignore[method-assign]

    return Subject(Stack([Hidden() for _ in range(BLOCKS)]))


@case(KIND)
def a_call_that_a_subclass_replaces() -> Subject:
    class Called(Block):
        def __call__(self, x: torch.Tensor, *args: Any) -> Any:
            return super().__call__(x * 0.9, *args) + torch.rand(1)

        def __getattr__(self, name: str) -> Any:
            if name == "made_up":
                return torch.ones(WIDTH)
            return super().__getattr__(name)

        def body(self, x: torch.Tensor) -> torch.Tensor:
            return functional.gelu(x) * self.made_up

    return Subject(Stack([Called() for _ in range(BLOCKS)]))


@case(KIND)
def a_list_of_arguments_that_the_caller_empties() -> Subject:
    class Listed(Block):
        def forward(self, parts: list[torch.Tensor], options: dict[str, Any]) -> torch.Tensor:
            return super().forward(torch.stack(parts).sum(0) * options["gain"])

    class Model(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts, options = [self.first(x)], {"gain": 1.0}
            for block in self.blocks:
                y = block(parts, options)
                if len(parts) > 1:
                    parts.pop(0)
                parts.append(y)
                options["gain"] *= 0.9
            parts.clear()
            options.clear()
            return self.last(y)

    return Subject(Model([Listed() for _ in range(BLOCKS)]))


@case(KIND)
def an_empty_batch_and_a_batch_of_one() -> Subject:
    return Subject(stack(), batch=lambda seed: floats(seed, (0, 1, 3, ROWS)[seed % 4], WIDTH), loss=lambda y: y.sum())


@case(KIND)
def a_teacher_that_is_the_model_itself() -> Subject:
    class Model(Stack):
        is_teacher = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            if self.is_teacher:
                return y
            self.is_teacher = True
            try:
                with torch.no_grad():
                    target = self(x * 0.9)
                other = self(x * 1.1)
            finally:
                self.is_teacher = False
            return y + 0.1 * target + 0.2 * other

    return Subject(Model([Block() for _ in range(BLOCKS)]))
