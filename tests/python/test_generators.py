"""The states of the global generators of torch, Python and NumPy: what was drawn after a read is drawn again after it
is set, by the memory of the generators as well as by their functions."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap

import numpy
import pytest
import torch
from forked_python import run_python

from memscale import _core, generators


def sources():
    return generators.sources(torch.default_generator)[0]


def taken():
    return _core.read_states(sources())


def put_back(states):
    _core.write_states(sources(), states)


DRAWS = {
    "random": lambda: [random.random() for _ in range(3)],
    "a whole refill": lambda: [random.getrandbits(32) for _ in range(1300)],
    "gauss": lambda: random.gauss(0, 1),
    "shuffle": lambda: random.sample(range(100), 9),
    "rand": lambda: numpy.random.rand(3).tolist(),
    "a whole refill of NumPy's": lambda: numpy.random.rand(1300).tolist(),
    "one normal number": lambda: numpy.random.randn(),
    "permutation": lambda: numpy.random.permutation(9).tolist(),
    "torch.rand": lambda: torch.rand(3).tolist(),
    "torch.randn, one": lambda: torch.randn(1).tolist(),
    "a whole refill of torch's": lambda: torch.rand(1300).tolist(),
    "torch.manual_seed": lambda: (torch.manual_seed(torch.randint(99, (1,)).item()), torch.rand(1).item())[1],
    "seeds": lambda: (random.seed(random.random()), numpy.random.seed(numpy.random.randint(99)), random.random()),
}


@pytest.mark.parametrize("prior", [0, 1], ids=["no normal number waits", "one waits"])
@pytest.mark.parametrize("name", DRAWS)
def test_what_was_drawn_is_drawn_again(name, prior):
    for _ in range(prior):
        random.gauss(0, 1)
        numpy.random.randn()
    state = taken()
    seen = random.getstate(), str(numpy.random.get_state())
    first, after = DRAWS[name](), taken()
    next_one = random.gauss(0, 1), numpy.random.randn()
    put_back(state)
    assert (random.getstate(), str(numpy.random.get_state())) == seen
    assert DRAWS[name]() == first
    put_back(after)
    assert (random.gauss(0, 1), numpy.random.randn()) == next_one


def test_the_states_lie_where_they_were_looked_for():
    assert generators._torch_places(torch.Generator) is not None
    assert generators._python().is_known
    assert generators._numpy().is_known


def test_layers_that_draw_nothing_share_their_states():
    assert all(first is second for first, second in zip(taken(), taken(), strict=True))


@pytest.mark.parametrize("name", DRAWS)
def test_without_known_memory_the_slow_functions_do_the_same(name, monkeypatch):
    monkeypatch.setattr(generators, "_is_right_about_python", lambda: False)
    monkeypatch.setattr(generators, "_gauss_offset", lambda module: 0)
    monkeypatch.setattr(generators, "_torch_places", lambda kind: None)
    slow = (
        generators._torchs_source.__wrapped__(torch.default_generator),
        *generators._PythonGenerator().sources,
        *generators._NumpyGenerator(numpy.random.mtrand).sources,
    )
    assert all(type(source) is tuple for source in slow)
    states = _core.read_states(slow)
    first = DRAWS[name]()
    _core.write_states(slow, states)
    assert DRAWS[name]() == first


def test_another_source_of_bits_is_followed():
    run(
        """
        random = RandomState()
        assert random_sources() is random_sources()
        numpy.random.set_bit_generator(numpy.random.PCG64(3))
        state, drawn = RandomState(), numpy.random.rand()
        assert not generators._numpy().is_known
        state.put_back()
        assert numpy.random.rand() == drawn
        """
    )


def test_a_generator_that_replaces_another_before_a_replay_is_as_it_was_after_it():
    run(
        """
        from memscale import _core
        from memscale.base.environment import Environment
        taken = Environment()
        numpy.random.set_bit_generator(numpy.random.PCG64(3))
        torch.default_generator = torch.Generator().manual_seed(3)
        before = numpy.random.get_state(legacy=False)["state"], torch.default_generator.get_state()

        def replay(undo):
            taken.put(undo)
            numpy.random.rand()
            torch.rand(1, generator=torch.default_generator)

        _core.guarded(replay)
        assert numpy.random.get_state(legacy=False)["state"] == before[0]
        assert torch.equal(torch.default_generator.get_state(), before[1])
        """
    )


def test_another_generator_of_torch_is_followed():
    run(
        """
        RandomState()
        torch.default_generator = torch.Generator().manual_seed(3)
        state, drawn = RandomState(), torch.rand(1, generator=torch.default_generator)
        state.put_back()
        assert torch.equal(torch.rand(1, generator=torch.default_generator), drawn)
        """
    )


def test_torchs_memory_is_found_whatever_modes_the_caller_is_in():
    run(
        """
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode(), torch.device("meta"), torch.inference_mode():
            assert generators._torch_places(torch.Generator) is not None
        """
    )


def test_a_state_that_changes_while_it_is_read_is_set_by_torchs_function():
    generator = torch.Generator()

    def get():
        state = generator.get_state()
        generator.manual_seed(9)  # as if another thread drew
        return state

    offset, size = generators._torch_places(torch.Generator)
    place = generator, generator._cdata + offset, size
    memory = _core.generator_memory((place,), None, get, generator.set_state)
    first = generator.get_state()
    content, state = memory.read()
    assert content == b"" and torch.equal(state, first)
    memory.write((content, state))
    assert torch.equal(generator.get_state(), first)


def test_numpy_is_not_loaded():
    code = "import sys\nfrom memscale import generators\ngenerators._numpy()\nassert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_numpys_generator_is_loaded_before_a_layer_may_be_the_first_to_draw():
    run(
        """
        state, first = RandomState(), numpy.random.rand()
        state.put_back()
        assert numpy.random.rand() == first
        """
    )


def run(code: str) -> None:
    head = """
import numpy
import torch
from memscale import generators
from memscale.device import RandomState, random_sources
"""
    run_python("-W", "error", "-c", head + textwrap.dedent(code), check=True)


def test_wrong_places_states_and_guards_are_refused():
    memory = generators._python().sources[0]
    for content in (b"", memory.read() + b"x", "text", None):
        with pytest.raises(TypeError, match="what read"):
            memory.write(content)
    for content in (b"", (b"",), (1, 2), None):
        with pytest.raises(TypeError, match="what read"):
            sources()[0].write(content)
    for places in ((), ((None, 0, 0),) * 5):
        with pytest.raises(ValueError, match="1 to 4 places"):
            _core.generator_memory(places, None)
    for places in ((1,), ((None, "a", 0),), ((None, 0),)):
        with pytest.raises(TypeError):
            _core.generator_memory(places, None)
    for wrong in (None, (1,), ((int,),)):
        with pytest.raises(TypeError, match="sources"):
            _core.read_states(wrong)
    with pytest.raises(ValueError, match="one for each"):
        _core.write_states(sources(), ())
    for guards in ((1,), ((1, "a"),)):
        with pytest.raises(TypeError, match="guard"):
            _core.guards_hold(guards)


def test_a_source_may_be_an_item_of_a_dictionary():
    holder = {"a": 1}
    items = (holder, "a"), (holder, "missing")
    states = _core.read_states(items)
    assert states == (1, None)
    holder["a"] = 2
    _core.write_states(items, states)
    assert holder == {"a": 1, "missing": None}


def test_guards_hold_as_long_as_names_have_the_same_objects():
    holder = type("Holder", (), {"a": 1})()
    names = {"b": holder}
    guards = (names, "b", holder), (holder, "a", 1), (names, "c", None)
    assert _core.guards_hold(guards) and _core.guards_hold(())
    for change in (lambda: names.update(c=1), lambda: names.update(b=1), lambda: setattr(holder, "a", 2)):
        change()
        assert not _core.guards_hold(guards)
        names.update(b=holder)
        names.pop("c", None)
        holder.a = 1
    del type(holder).a, holder.a
    with pytest.raises(AttributeError):
        _core.guards_hold(guards)
