"""Layers that count their calls in places that nobody looks into. A count decides only after the fifth call, so a
count that a replay moves shows itself steps later, when no comparison of a replay can see it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import functools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import torch
from subjects import BLOCKS, WIDTH, Block, Stack, Subject, case, stack
from torch import nn
from torch.nn import functional

KIND = "hidden"

Prepare = Callable[[Any], None]
Count = Callable[[Any], Any]

_COUNTS = [0]
_PER_MODULE: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_MANY = {str(number): number for number in range(5000)}


def decided(count: Any) -> float:
    """A factor that changes at the sixth call of a layer."""
    return 1.0 + 0.5 * (int(count) > 5)


def counting(name: str, prepare: Prepare | None = None) -> Callable[[Count], Count]:
    """Decorator: makes a case of layers whose factor depends on what `count(self)` returns, their number of calls."""

    def enter(count: Count) -> Count:
        def body(self: Any, x: torch.Tensor) -> torch.Tensor:
            return functional.gelu(x) * decided(count(self))

        case(KIND, f"a_count_in_{name}")(lambda: Subject(stack(body, prepare)))
        return count

    return enter


def attribute(**values: Callable[[], Any]) -> Prepare:
    def prepare(block: Any) -> None:
        for name, make in values.items():
            block.__dict__[name] = make()

    return prepare


# ---- tensors and arrays ------------------------------------------------------------------------


@counting("a_sparse_tensor", attribute(state=lambda: torch.zeros(3).to_sparse_coo()))
def _(self: Any) -> Any:
    self.state = self.state + torch.sparse_coo_tensor([[1]], [1.0], (3,))
    return self.state.to_dense()[1]


@counting("the_values_of_a_sparse_tensor", attribute(state=lambda: torch.ones(3).to_sparse_coo()))
def _(self: Any) -> Any:
    self.state._values().add_(1)
    return self.state.to_dense()[1] - 1


@counting("a_parameter_in_a_list", attribute(state=lambda: [nn.Parameter(torch.zeros(1), requires_grad=False)]))
def _(self: Any) -> Any:
    return self.state[0].add_(1)


@counting("a_parameter_beside_the_parameters", attribute(state=lambda: nn.Parameter(torch.zeros(1), False)))
def _(self: Any) -> Any:
    self.state.data += 1
    return self.state


@counting("a_tuple_of_tensors", attribute(state=lambda: (torch.zeros(1), torch.zeros(1))))
def _(self: Any) -> Any:
    return self.state[1].add_(1)


@counting("a_tensor_three_dictionaries_deep", attribute(state=lambda: {"a": {"b": {"c": torch.zeros(1)}}}))
def _(self: Any) -> Any:
    return self.state["a"]["b"]["c"].add_(1)


@counting("a_large_tensor_in_a_list", attribute(state=lambda: [torch.zeros(1 << 19)]))
def _(self: Any) -> Any:
    return self.state[0].add_(1)[3]


@dataclasses.dataclass
class _Held:
    value: Any
    more: Any = None


@counting("a_tensor_of_a_dataclass", attribute(state=lambda: _Held(torch.zeros(1), _Held(torch.zeros(1)))))
def _(self: Any) -> Any:
    return self.state.more.value.add_(1)


@counting("a_view_of_a_buffer")
def _(self: Any) -> Any:
    if not hasattr(self, "table"):
        self.register_buffer("table", torch.zeros(4))
        self.row = self.table[1]
    self.row.add_(1)
    return self.table[1]


def _with_view(block: Any) -> None:
    block.register_buffer("table", torch.zeros(4))
    block.row = block.table[1:2]
    block.array = block.table.numpy()


@counting("a_view_of_a_buffer_from_the_start", _with_view)
def _(self: Any) -> Any:
    self.row.add_(1)
    return self.table[1]


@counting("the_array_below_a_buffer", _with_view)
def _(self: Any) -> Any:
    self.array[2] += 1
    return self.table[2]


@counting("an_array_in_a_list_in_a_dictionary", attribute(state=lambda: {"a": [numpy.zeros(2)]}))
def _(self: Any) -> Any:
    self.state["a"][0][1] += 1
    return self.state["a"][0][1]


@counting("an_array_of_objects", attribute(state=lambda: numpy.array([[0], None], dtype=object)))
def _(self: Any) -> Any:
    self.state[0][0] += 1
    return self.state[0][0]


@counting("a_large_array", attribute(state=lambda: numpy.zeros(1 << 18)))
def _(self: Any) -> Any:
    self.state[7] += 1
    return self.state[7]


@counting("a_record_of_an_array", attribute(state=lambda: numpy.zeros(2, dtype=[("a", "i4"), ("b", "f8")])))
def _(self: Any) -> Any:
    self.state["a"][1] += 1
    return self.state["a"][1]


@counting("a_view_of_bytes", attribute(state=lambda: memoryview(bytearray(4))))
def _(self: Any) -> Any:
    self.state[1] += 1
    return self.state[1]


@counting("a_pointer", attribute(state=lambda: ctypes.pointer(ctypes.c_int(0))))
def _(self: Any) -> Any:
    self.state[0] += 1
    return self.state[0]


@counting("a_numpy_number", attribute(state=lambda: numpy.int64(0)))
def _(self: Any) -> Any:
    self.state = self.state + 1
    return self.state


# ---- objects -----------------------------------------------------------------------------------


@counting("a_list_of_thousands", attribute(state=lambda: [0.0] * 5000))
def _(self: Any) -> Any:
    self.state.append(1.0)
    return len(self.state) - 5000


@counting("a_global_dictionary_of_thousands")
def _(self: Any) -> Any:
    _MANY[id(self)] = _MANY.get(id(self), 0) + 1  # type: ignore[index]
    return _MANY[id(self)]  # type: ignore[index]


def _chain(length: int) -> _Held:
    return _Held([0]) if length == 0 else _Held(None, _chain(length - 1))


@counting("a_chain_of_objects", attribute(state=lambda: _chain(12)))
def _(self: Any) -> Any:
    held = self.state
    while held.more is not None:
        held = held.more
    held.value[0] += 1
    return held.value[0]


@counting("the_last_of_many_objects", attribute(state=lambda: [_Held(0) for _ in range(100)]))
def _(self: Any) -> Any:
    self.state[-1].value += 1
    return self.state[-1].value


@counting("a_weak_dictionary_of_modules")
def _(self: Any) -> Any:
    _PER_MODULE[self] = _PER_MODULE.get(self, 0) + 1
    return _PER_MODULE[self]


@counting("a_proxy_of_a_dictionary", attribute(state=lambda: {"n": 0}))
def _(self: Any) -> Any:
    seen = types.MappingProxyType(self.state)
    self.state["n"] += 1
    return seen["n"]


class _Descriptor:
    def __init__(self) -> None:
        self.values: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __get__(self, owner: Any, kind: Any = None) -> int:
        self.values[owner] = self.values.get(owner, 0) + 1
        return self.values[owner]


@counting("a_descriptor")
def _(self: Any) -> Any:
    kind = type(self)
    if "ticks" not in vars(kind):
        kind.ticks = _Descriptor()
    return self.ticks


@counting("a_sequence_of_seeds", attribute(state=lambda: numpy.random.SeedSequence(3)))
def _(self: Any) -> Any:
    self.state.spawn(1)
    return self.state.n_children_spawned


@counting("an_object_made_at_the_first_call", attribute(state=lambda: None))
def _(self: Any) -> Any:
    if self.state is None:
        self.state = _Held([0])
    self.state.value[0] += 1
    return self.state.value[0]


@counting("an_object_made_at_the_first_call_by_a_slot", attribute(state=lambda: [None]))
def _(self: Any) -> Any:
    if self.state[0] is None:
        self.state[0] = _Held({"n": 0}, _Held(0))
    self.state[0].more.value += 1
    return self.state[0].more.value


# ---- names that code does not show -------------------------------------------------------------


@counting("a_class_by_a_name_made_up", lambda block: setattr(type(block), "hidden_" + "count", 0))
def _(self: Any) -> Any:
    name = "_".join(["hidden", "count"])
    setattr(type(self), name, getattr(type(self), name) + 1)
    return getattr(type(self), name) / BLOCKS


@counting("a_global_by_a_name_made_up", lambda block: globals().update(_HIDDEN=0))
def _(self: Any) -> Any:
    globals()["_HID" + "DEN"] += 1
    return globals()["_HID" + "DEN"] / BLOCKS


@counting("a_global_by_the_module", lambda block: globals().update(_HIDDEN=0))
def _(self: Any) -> Any:
    module = sys.modules[__name__]
    module.__dict__["_HIDDEN"] += 1
    return module.__dict__["_HIDDEN"] / BLOCKS


@counting("an_evaluated_word", lambda block: _COUNTS.__setitem__(0, 0))
def _(self: Any) -> Any:
    eval("_COU" + "NTS")[0] += 1
    return eval("_COU" + "NTS")[0] / BLOCKS


@counting("torch_itself", lambda block: setattr(torch, "hidden_count", 0))
def _(self: Any) -> Any:
    torch.hidden_count += 1  # type: ignore[attr-defined]
    return torch.hidden_count / BLOCKS  # type: ignore[attr-defined]


@counting("the_class_of_all_modules", lambda block: setattr(nn.Module, "hidden_count", 0))
def _(self: Any) -> Any:
    nn.Module.hidden_count += 1  # type: ignore[attr-defined]
    return nn.Module.hidden_count / BLOCKS  # type: ignore[attr-defined]


def _defaulted(counts: Any = [0]) -> int:  # noqa: B006
    counts[0] += 1
    return int(counts[0])


def _kept(count: int = 0) -> int:
    _kept.__defaults__ = (count + 1,)
    return count + 1


@counting("a_default_that_is_a_list", lambda block: _defaulted.__defaults__[0].__setitem__(0, 0))  # type: ignore[index]
def _(self: Any) -> Any:
    return _defaulted() / BLOCKS


@counting("a_default_that_is_bound_anew", lambda block: setattr(_kept, "__defaults__", (0,)))
def _(self: Any) -> Any:
    return _kept() / BLOCKS


def _nested(depth: int) -> Callable[[], int]:
    count = 0

    def own() -> int:
        nonlocal count
        count += 1
        return count

    if depth == 0:
        return own
    inner = _nested(depth - 1)
    return lambda: inner()


@counting("a_closure_twelve_deep", attribute(state=lambda: _nested(12)))
def _(self: Any) -> Any:
    return self.state()


# ---- code that a search of the forward misses --------------------------------------------------


def _of_a_parent() -> Subject:
    counts = dict.fromkeys(range(BLOCKS), 0)

    class Parent(Block):
        number = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            counts[self.number] += 1
            return super().forward(x) * decided(counts[self.number])

    class Child(Parent):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 0.9

    model = Stack([Child() for _ in range(BLOCKS)])
    for number, block in enumerate(model.blocks):
        block.number = number
    return Subject(model)


case(KIND, "a_count_in_the_forward_of_a_parent_class")(_of_a_parent)


@case(KIND)
def a_count_in_a_decorator_of_forward() -> Subject:
    def counted(forward: Any) -> Any:
        counts: dict[int, int] = {}

        @functools.wraps(forward)
        def around(self: Any, *args: Any) -> Any:
            counts[id(self)] = counts.get(id(self), 0) + 1
            return forward(self, *args) * decided(counts[id(self)])

        return around

    class Decorated(Block):
        forward = counted(Block.forward)

    return Subject(Stack([Decorated() for _ in range(BLOCKS)]))


@case(KIND)
def a_count_in_a_replaced_call() -> Subject:
    calls: dict[int, int] = {}

    class Called(Block):
        def __call__(self, x: torch.Tensor) -> Any:
            calls[id(self)] = calls.get(id(self), 0) + 1
            return super().__call__(x) * decided(calls[id(self)])

    return Subject(Stack([Called() for _ in range(BLOCKS)]))


@case(KIND)
def a_count_in_a_metaclass() -> Subject:
    class Meta(type):
        total = 0

        def tick(cls) -> int:
            cls.total += 1
            return cls.total

    class Counted(Block, metaclass=Meta):
        def body(self, x: torch.Tensor) -> torch.Tensor:
            return functional.gelu(x) * decided(type(self).tick() / BLOCKS)

    return Subject(Stack([Counted() for _ in range(BLOCKS)]))


@case(KIND)
def a_count_in_an_overridden_setattr() -> Subject:
    counts: dict[int, int] = {}

    class Setting(Block):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "mark":
                counts[id(self)] = counts.get(id(self), 0) + 1
            super().__setattr__(name, value)

        def body(self, x: torch.Tensor) -> torch.Tensor:
            self.mark = 1
            return functional.gelu(x) * decided(counts[id(self)])

    return Subject(Stack([Setting() for _ in range(BLOCKS)]))


@case(KIND)
def a_count_in_an_operator_of_the_users() -> Subject:
    name = "memscale_nasty::counted"
    counts = [0]
    if not hasattr(torch.ops.memscale_nasty, "counted"):

        @torch.library.custom_op(name, mutates_args=())
        def counted(x: torch.Tensor) -> torch.Tensor:
            counts[0] += 1
            return x * decided(counts[0] / BLOCKS)

        counted.register_fake(torch.empty_like)
        counted.register_autograd(lambda context, gradient: gradient * 1.0)

    return Subject(stack(lambda self, x: functional.gelu(torch.ops.memscale_nasty.counted(x))))


@case(KIND)
def a_count_in_a_scripted_module() -> Subject:
    class Scripted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * (1.5 if self.count > 5 else 1.0)

    def prepare(block: Any) -> None:
        block.scripted = torch.jit.script(Scripted())

    return Subject(stack(lambda self, x: functional.gelu(self.scripted(x)), prepare))


@case(KIND)
def a_count_in_an_event_loop() -> Subject:
    loop = asyncio.new_event_loop()
    counts: list[int] = []

    async def counted() -> int:
        await asyncio.sleep(0)
        counts.append(1)
        return len(counts)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x) * decided(loop.run_until_complete(counted()) / BLOCKS)

    return Subject(stack(body))


@case(KIND)
def a_count_in_an_open_context() -> Subject:
    def prepare(block: Any) -> None:
        block.open, block.count = contextlib.ExitStack(), [0]

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.open.callback(self.count.append, 0)
        return functional.gelu(x) * decided(len(self.open._exit_callbacks))

    def close(model: Any) -> None:
        held.append(len(model.blocks[0].open._exit_callbacks))

    held: list[int] = []
    return Subject(stack(body, prepare), before_backward=close, watch=lambda: list(held))


@case(KIND)
def a_count_in_the_optimizer_that_forward_reads() -> Subject:
    model = stack(lambda self, x: functional.gelu(x) * decided(sum(self.owner[0].state[p]["n"] for p in self.own())))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for block in model.blocks:
        block.owner = [optimizer]

        def own(block: Any = block) -> Any:
            parameter = block.inner.bias
            optimizer.state[parameter]["n"] = optimizer.state[parameter].get("n", 0) + 1
            return [parameter]

        block.__dict__["own"] = own
    return Subject(model)


@case(KIND)
def a_count_of_rows_that_a_class_method_keeps() -> Subject:
    class Kept(Block):
        kept: dict[str, int]

        @classmethod
        def keep(cls, rows: int) -> int:
            table = cls.__dict__.get("table") or {}
            table["n"] = table.get("n", 0) + rows
            cls.table = table  # type: ignore[attr-defined]
            return table["n"]

        def body(self, x: torch.Tensor) -> torch.Tensor:
            return functional.gelu(x) * decided(self.keep(len(x)) / len(x) / BLOCKS)

    return Subject(Stack([Kept() for _ in range(BLOCKS)]), watch=lambda: dict(Kept.table))  # type: ignore[attr-defined]


@case(KIND)
def a_large_tensor_of_a_closed_object() -> Subject:
    table = nn.Embedding(20000, WIDTH)
    table.weight.requires_grad_(False)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        table.weight[3:4] += 1.0
        return functional.gelu(x) * decided(table.weight[3, 0] / BLOCKS - 2)

    return Subject(stack(body), watch=lambda: float(table.weight[3, 0]))
