"""The states of Python's and NumPy's global generators: what was drawn after a read is drawn again after it is set, by
the memory of the generators as well as by their functions."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy
import pytest

from memscale import _core, generators


def put_back(state: generators.GlobalState) -> None:
    for function, argument in state.setters():
        function(argument)


DRAWS = {
    "random": lambda: [random.random() for _ in range(3)],
    "a whole refill": lambda: [random.getrandbits(32) for _ in range(1300)],
    "gauss": lambda: random.gauss(0, 1),
    "shuffle": lambda: random.sample(range(100), 9),
    "rand": lambda: numpy.random.rand(3).tolist(),
    "a whole refill of NumPy's": lambda: numpy.random.rand(1300).tolist(),
    "one normal number": lambda: numpy.random.randn(),
    "permutation": lambda: numpy.random.permutation(9).tolist(),
    "seeds": lambda: (random.seed(random.random()), numpy.random.seed(numpy.random.randint(99)), random.random()),
}


@pytest.mark.parametrize("prior", [0, 1], ids=["no normal number waits", "one waits"])
@pytest.mark.parametrize("name", DRAWS)
def test_what_was_drawn_is_drawn_again(name, prior):
    for _ in range(prior):
        random.gauss(0, 1)
        numpy.random.randn()
    state = generators.GlobalState()
    seen = random.getstate(), str(numpy.random.get_state())
    first, after = DRAWS[name](), generators.GlobalState()
    next_one = random.gauss(0, 1), numpy.random.randn()
    put_back(state)
    assert (random.getstate(), str(numpy.random.get_state())) == seen
    assert DRAWS[name]() == first
    put_back(after)
    assert (random.gauss(0, 1), numpy.random.randn()) == next_one


def test_both_states_lie_where_they_were_looked_for():
    assert generators._python()._memory is not None
    assert generators._numpy()._memory is not None  # type: ignore[union-attr]


def test_layers_that_draw_nothing_share_one_state():
    first, second = generators.GlobalState(), generators.GlobalState()
    assert first._python[0] is second._python[0]
    assert first._numpy[1] is second._numpy[1]  # type: ignore[index]


@pytest.mark.parametrize("name", DRAWS)
def test_without_known_memory_the_slow_functions_do_the_same(name, monkeypatch):
    monkeypatch.setattr(generators._python(), "_memory", None)
    monkeypatch.setattr(generators._numpy(), "_memory", None)
    state = generators.GlobalState()
    first = DRAWS[name]()
    put_back(state)
    assert DRAWS[name]() == first


def test_another_source_of_bits_is_followed():
    code = """
import numpy
from memscale import generators
first = generators.GlobalState()
numpy.random.set_bit_generator(numpy.random.PCG64(3))
state, drawn = generators.GlobalState(), numpy.random.rand()
assert generators._numpy()._memory is None
for function, argument in state.setters():
    function(argument)
assert numpy.random.rand() == drawn
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=600)


def test_numpy_is_not_loaded():
    code = "import sys\nfrom memscale import generators\ngenerators.GlobalState()\nassert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_numpys_generator_is_loaded_before_a_layer_may_be_the_first_to_draw():
    code = """
import numpy
from memscale import generators
state, first = generators.GlobalState(), numpy.random.rand()
for function, argument in state.setters():
    function(argument)
assert numpy.random.rand() == first
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_wrong_places_and_contents_are_refused():
    memory = generators._python()._memory
    for content in (b"", memory.read() + b"x", "text", None):
        with pytest.raises(TypeError, match="what read"):
            memory.write(content)
    for places in ((), ((None, 0, 0),) * 5):
        with pytest.raises(ValueError, match="1 to 4 places"):
            _core.generator_memory(places, None)
    for places in ((1,), ((None, "a", 0),), ((None, 0),)):
        with pytest.raises(TypeError):
            _core.generator_memory(places, None)
