"""Random sources that layers draw from. Most belong to something else."""

from __future__ import annotations

import array
import ctypes
import functools
import hashlib
import itertools
import random
import types
from collections import deque
from typing import Any, NamedTuple

import numpy
import torch
from subjects import WIDTH, Stack, Subject, case, stack
from torch import nn
from torch.nn import functional

TORCH, NUMPY, PYTHON = torch.Generator(), numpy.random.default_rng(0), random.Random(0)
SOURCES: dict[str, Any] = {}


def _mask(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x * (torch.rand(x.shape, generator=generator) > 0.3)


@case("random")
def a_generator_of_the_module() -> Subject:
    TORCH.manual_seed(3)
    return Subject(stack(lambda self, x: _mask(x, TORCH)), watch=TORCH.get_state)


@case("random")
def a_generator_in_a_closure() -> Subject:
    generator = torch.Generator().manual_seed(3)
    return Subject(stack(lambda self, x: _mask(x, generator)), watch=generator.get_state)


@case("random")
def a_generator_that_bernoulli_draws_from() -> Subject:
    generator = torch.Generator().manual_seed(3)
    return Subject(
        stack(lambda self, x: x * torch.empty_like(x).bernoulli_(0.7, generator=generator)), watch=generator.get_state
    )


@case("random")
def a_generator_that_multinomial_and_randperm_draw_from() -> Subject:
    generator = torch.Generator().manual_seed(3)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        order = torch.randperm(x.shape[1], generator=generator)
        pick = torch.multinomial(torch.ones(x.shape[0]), x.shape[0], True, generator=generator)
        return x[:, order][pick] + x

    return Subject(stack(body), watch=generator.get_state)


@case("random")
def a_generator_of_the_parent() -> Subject:
    class Parent(Stack):
        def __init__(self) -> None:
            super().__init__([Child(self) for _ in range(4)])
            self.generator = torch.Generator().manual_seed(3)

    class Child(nn.Module):
        def __init__(self, parent: Any) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.ask = lambda: parent.generator

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + _mask(torch.tanh(self.linear(x)), self.ask())

    model = Parent()
    return Subject(model, watch=model.generator.get_state)


@case("random")
def a_generator_shared_by_layers() -> Subject:
    generator = torch.Generator().manual_seed(3)

    def prepare(block: Any) -> None:
        block.generator = generator

    return Subject(stack(lambda self, x: _mask(x, self.generator), prepare), watch=generator.get_state)


@case("random")
def a_generator_of_the_class() -> Subject:
    generator = torch.Generator().manual_seed(3)
    model = stack(lambda self, x: _mask(x, type(self).source))
    type(model.blocks[0]).source = generator  # type: ignore[assignment]
    return Subject(model, watch=generator.get_state)


@case("random")
def a_generator_in_a_default_argument() -> Subject:
    generator = torch.Generator().manual_seed(3)

    def body(self: Any, x: torch.Tensor, source: torch.Generator = generator) -> torch.Tensor:
        return _mask(x, source)

    return Subject(stack(body), watch=generator.get_state)


@case("random")
def a_generator_in_a_partial() -> Subject:
    generator = torch.Generator().manual_seed(3)
    draw = functools.partial(torch.rand, generator=generator)
    return Subject(stack(lambda self, x: x * draw(x.shape)), watch=generator.get_state)


@case("random")
def a_generator_in_a_global_dictionary() -> Subject:
    SOURCES["torch"] = torch.Generator().manual_seed(3)
    return Subject(stack(lambda self, x: _mask(x, SOURCES["torch"])), watch=SOURCES["torch"].get_state)


@case("random")
def a_generator_reseeded_from_a_draw() -> Subject:
    generator = torch.Generator()

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        generator.manual_seed(int(torch.randint(0, 1000, ())))
        return _mask(x, generator)

    return Subject(stack(body), watch=generator.get_state)


@case("random")
def a_generator_that_one_layer_draws_from_and_another_reseeds() -> Subject:
    generator = torch.Generator().manual_seed(3)
    model = stack(lambda self, x: _mask(x, generator))

    def reseed(module: Any, args: Any) -> None:
        generator.manual_seed(11)

    model.blocks[2].register_forward_pre_hook(reseed)
    return Subject(model, watch=generator.get_state)


def _numpy_mask(x: torch.Tensor, generator: Any) -> torch.Tensor:
    return x * torch.from_numpy((generator.random(x.shape) > 0.3).astype("float32"))


@case("random")
def numpy_of_the_module() -> Subject:
    NUMPY.bit_generator.state = numpy.random.default_rng(3).bit_generator.state
    return Subject(stack(lambda self, x: _numpy_mask(x, NUMPY)), watch=lambda: NUMPY.bit_generator.state)


@case("random")
def numpy_in_a_closure() -> Subject:
    generator = numpy.random.default_rng(3)
    return Subject(stack(lambda self, x: _numpy_mask(x, generator)), watch=lambda: generator.bit_generator.state)


@case("random")
def numpy_bound_method_in_a_closure() -> Subject:
    generator = numpy.random.default_rng(3)
    draw = generator.normal
    return Subject(
        stack(lambda self, x: x * torch.from_numpy(draw(size=x.shape).astype("float32"))),
        watch=lambda: generator.bit_generator.state,
    )


@case("random")
def numpy_random_state_in_a_closure() -> Subject:
    generator = numpy.random.RandomState(3)
    return Subject(
        stack(lambda self, x: x * torch.from_numpy(generator.rand(*x.shape).astype("float32"))),
        watch=lambda: generator.get_state()[1].tolist(),
    )


@case("random")
def numpy_two_calls_deep() -> Subject:
    class Sampler:
        def __init__(self) -> None:
            self.inside = {"rng": numpy.random.default_rng(3)}

        def draw(self, shape: Any) -> torch.Tensor:
            return torch.from_numpy(self.inside["rng"].random(shape).astype("float32"))

    sampler = Sampler()
    return Subject(
        stack(lambda self, x: x * sampler.draw(x.shape)), watch=lambda: sampler.inside["rng"].bit_generator.state
    )


@case("random")
def python_of_the_module() -> Subject:
    PYTHON.seed(3)
    return Subject(stack(lambda self, x: x * PYTHON.random()), watch=lambda: hash(PYTHON.getstate()))


@case("random")
def python_in_a_closure() -> Subject:
    generator = random.Random(3)
    return Subject(stack(lambda self, x: x * generator.random()), watch=lambda: hash(generator.getstate()))


@case("random")
def python_in_an_object_of_the_layer() -> Subject:
    class Augmentation:
        def __init__(self) -> None:
            self.rng = random.Random(3)

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.rng.uniform(0.5, 1.5)

    def prepare(block: Any) -> None:
        block.augmentation = Augmentation()

    model = stack(lambda self, x: self.augmentation(x), prepare)
    return Subject(model, watch=lambda: [hash(block.augmentation.rng.getstate()) for block in model.blocks])


@case("random")
def python_that_decides_the_branch() -> Subject:
    generator = random.Random(3)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) if generator.random() < 0.5 else functional.gelu(x)

    return Subject(stack(body), watch=lambda: hash(generator.getstate()))


@case("random")
def the_global_generators() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return x * random.random() * float(numpy.random.rand()) + functional.dropout(x, 0.3)

    return Subject(stack(body))


@case("random")
def the_default_generator_by_name() -> Subject:
    return Subject(stack(lambda self, x: _mask(x, torch.default_generator)))


@case("random")
def seeds_inside_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(9)
        return functional.dropout(x, 0.4)

    return Subject(stack(body))


@case("random")
def a_fork_of_the_generator_in_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            y = functional.dropout(x, 0.4)
        return y + functional.dropout(x, 0.2)

    return Subject(stack(body))


@case("random")
def a_state_that_is_set_back_by_hand() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        state = torch.get_rng_state()
        y = functional.dropout(x, 0.4)
        torch.set_rng_state(state)
        return y + functional.dropout(x, 0.4)

    return Subject(stack(body))


@case("random")
def a_sobol_engine_in_a_closure() -> Subject:
    engine = torch.quasirandom.SobolEngine(WIDTH, scramble=True, seed=3)
    return Subject(stack(lambda self, x: x * engine.draw(x.shape[0])), watch=lambda: engine.num_generated)


@case("random")
def an_iterator_in_a_closure() -> Subject:
    scales = itertools.cycle([0.5, 1.0, 1.5, 2.0, 2.5])
    return Subject(stack(lambda self, x: x * next(scales)))


@case("random")
def an_iterator_of_the_layer() -> Subject:
    def prepare(block: Any) -> None:
        block.scales = itertools.cycle([0.5, 1.0, 1.5])

    return Subject(stack(lambda self, x: x * next(self.scales), prepare))


@case("random")
def a_generator_function_in_a_closure() -> Subject:
    def numbers() -> Any:
        value = 1.0
        while True:
            yield value
            value *= 1.01

    scales = numbers()
    return Subject(stack(lambda self, x: x * next(scales)))


@case("random")
def a_counter_in_a_closure() -> Subject:
    counter = itertools.count(1)
    return Subject(stack(lambda self, x: x / (next(counter) % 7 + 1)))


@case("random")
def a_deque_in_a_closure_that_turns() -> Subject:
    scales = deque([0.5, 1.0, 1.5, 2.0, 2.5])

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        scales.rotate(1)
        return x * scales[0]

    return Subject(stack(body), watch=lambda: list(scales))


@case("random")
def drop_path_by_python() -> Subject:
    generator = random.Random(5)

    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if generator.random() < 0.3 else x + torch.tanh(self.linear(x))

    return Subject(Stack([Skipping() for _ in range(4)]), watch=lambda: hash(generator.getstate()))


@case("random")
def drop_path_by_torch() -> Subject:
    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if torch.rand(()).item() < 0.3 else x + torch.tanh(self.linear(x))

    return Subject(Stack([Skipping() for _ in range(4)]))


@case("random")
def a_source_that_layer_and_loop_share() -> Subject:
    """An extra draw by a trace or a replay would change the loop's noise."""
    generator = torch.Generator().manual_seed(3)

    def loss(output: torch.Tensor) -> torch.Tensor:
        return (output * torch.rand(output.shape, generator=generator)).mean()

    return Subject(stack(lambda self, x: _mask(x, generator)), loss=loss, watch=generator.get_state)


# ---- sources in odd places ------------------------------------------------------------------


class Sources:
    """A class used as a namespace, never instantiated."""

    torch = torch.Generator()
    numpy = numpy.random.default_rng(0)


class Dice(random.Random):
    """A user's subclass of a generator."""

    def throw(self) -> int:
        return self.randrange(6)


class Bag(dict):  # type: ignore[type-arg]
    """A dictionary whose keys can be read as attributes."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__  # type: ignore[assignment]


class Pair(NamedTuple):
    left: Any
    right: Any


@case("random")
def a_generator_in_a_class_reached_by_name() -> Subject:
    Sources.torch.manual_seed(3)
    return Subject(stack(lambda self, x: _mask(x, Sources.torch)), watch=Sources.torch.get_state)


@case("random")
def a_numpy_generator_in_a_class_reached_by_name() -> Subject:
    Sources.numpy = numpy.random.default_rng(3)
    return Subject(
        stack(lambda self, x: _numpy_mask(x, Sources.numpy)), watch=lambda: Sources.numpy.bit_generator.state
    )


@case("random")
def a_users_subclass_of_random() -> Subject:
    dice = Dice(3)
    return Subject(stack(lambda self, x: x * (0.5 + dice.throw())), watch=lambda: hash(dice.getstate()))


@case("random")
def a_generator_in_a_dictionary_with_attributes() -> Subject:
    bag = Bag(generator=torch.Generator().manual_seed(3))
    return Subject(stack(lambda self, x: _mask(x, bag.generator)), watch=bag.generator.get_state)


@case("random")
def a_generator_in_a_named_tuple() -> Subject:
    pair = Pair(torch.Generator().manual_seed(3), random.Random(3))

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return _mask(x, pair.left) * pair.right.random()

    return Subject(stack(body), watch=lambda: (pair.left.get_state(), hash(pair.right.getstate())))


@case("random")
def a_generator_in_a_simple_namespace() -> Subject:
    space = types.SimpleNamespace(generator=torch.Generator().manual_seed(3), draws=0)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        space.draws += 1
        return _mask(x, space.generator)

    return Subject(stack(body), watch=lambda: (space.draws, space.generator.get_state()))


@case("random")
def a_generator_that_a_cached_function_returns() -> Subject:
    @functools.lru_cache
    def source() -> torch.Generator:
        return torch.Generator().manual_seed(3)

    return Subject(stack(lambda self, x: _mask(x, source())), watch=lambda: source().get_state())


@case("random")
def a_generator_in_a_cached_property() -> Subject:
    class Source:
        @functools.cached_property
        def generator(self) -> torch.Generator:
            return torch.Generator().manual_seed(3)

    source = Source()
    return Subject(stack(lambda self, x: _mask(x, source.generator)), watch=lambda: source.generator.get_state())


@case("random")
def a_congruential_generator_in_ctypes() -> Subject:
    state = ctypes.c_uint32(7)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        state.value = state.value * 1664525 + 1013904223
        return x * (state.value / 2**32)

    return Subject(stack(body), watch=lambda: state.value)


@case("random")
def a_congruential_generator_in_an_array() -> Subject:
    state = array.array("L", [7])

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        state[0] = (state[0] * 1664525 + 1013904223) % 2**32
        return x * (state[0] / 2**32)

    return Subject(stack(body), watch=state.tolist)


@case("random")
def a_hash_chain_in_a_bytearray() -> Subject:
    state = bytearray(b"abcdefgh")

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        state[:] = hashlib.sha256(bytes(state)).digest()[:8]
        return x * (state[0] / 256)

    return Subject(stack(body), watch=lambda: bytes(state))


@case("random")
def a_list_that_each_call_shuffles() -> Subject:
    order = list(range(WIDTH))

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        random.shuffle(order)
        return x[:, order]

    return Subject(stack(body), watch=lambda: list(order))


@case("random")
def a_distribution_that_the_layer_holds() -> Subject:
    def prepare(block: Any) -> None:
        block.noise = torch.distributions.Normal(torch.zeros(WIDTH), torch.ones(WIDTH))

    return Subject(stack(lambda self, x: x + 0.1 * self.noise.sample((x.shape[0],)), prepare))
