"""The states of the global random generators of torch, Python and NumPy, read and set in well under a microsecond.

A recomputed layer must draw the numbers of its forward, so all states are read before each such layer and set for
its replay. `random.getstate()` and `numpy.random.get_state()` take 20 microseconds each, because they make Python
objects of 624 numbers; torch's functions take one, because they copy 5 kB. The generators keep these numbers in one
piece of memory, which `_core.generator_memory()` compares with what it read last. Where the state lies is found by an
experiment on generators of our own; if the experiment fails, or the generator is of another kind, the slow functions
are used.

`memscale.device.RandomState` is the only user. All functions need the interpreter lock only. Tests:
tests/python/test_generators.py.
"""

from __future__ import annotations

import _random
import random
import struct
import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from . import _core

if TYPE_CHECKING:
    import torch

__all__ = ["draw_outside", "python_setters", "sources"]

_Setter = tuple[Callable[[Any], object], Any]
_Guard = tuple[Any, str, Any]
_Source = _core.GeneratorMemory | tuple[Any, Any]
"""A memory, functions that read a state and set it, or a dictionary and a key."""

_HEADER_BYTES = object.__basicsize__
_MT19937_BYTES = 625 * 4  # 624 numbers of 32 bits and the position among them
_TORCH_COUNTERS_BYTES = 20  # torch keeps before them: seed, numbers left, whether it is seeded, position
_TORCH_STATE = struct.Struct("=24x624Q")  # what torch's get_state() begins with
_GAUSS = struct.Struct("=i4xd")  # whether a second normal number waits, and the number


def python_setters(state: Any, generator: random.Random | None = None) -> list[_Setter]:
    """Builtins, each with its argument, which together set the state of `generator`; None is the module `random`'s own
    generator. `generator.setstate(state)` would do the same, but it is Python code that an interrupt could stop
    half-way."""
    if generator is None:
        generator = _pythons()
    _, internal, gauss_next = state
    return [
        (super(random.Random, generator).setstate, internal),
        (partial(vars(generator).__setitem__, "gauss_next"), gauss_next),
    ]


def sources(generator: torch.Generator) -> tuple[tuple[_Source, ...], tuple[_Guard, ...]]:
    """The sources of the states of torch's `generator`, Python's and NumPy's, for `_core.read_states()`. The guards are
    for `_core.guards_hold()`; they hold until somebody replaces Python's or NumPy's generator."""
    numpys, numpy = _numpy(), sys.modules.get("numpy")
    found, guards = [_torchs_source(generator), *_python().sources], [(sys.modules, "numpy", numpy)]
    if numpys is not None:
        found += numpys.sources
        guards += [(vars(numpys.module), "_rand", numpys.generator), (numpys.generator, "_bit_generator", numpys.bits)]
    return tuple(found), tuple(guards)


def draw_outside() -> None:
    """Draws from both generators."""
    random.random()
    numpys = _numpy()
    if numpys is not None:
        numpys.generator.random_sample()


# ---- torch's -------------------------------------------------------------------------------


@cache
def _torchs_source(generator: torch.Generator) -> _Source:
    """The source of the state of a generator of torch for the host. If its memory is unchanged, its functions are not
    called."""
    kind: Any = type(generator)
    places = _torch_places(kind)
    return (generator.get_state, generator.set_state) if places is None else _torch_memory(generator, places)


def _torch_memory(generator: Any, places: tuple[int, int]) -> _core.GeneratorMemory:
    offset, size = places
    place = generator, generator._cdata + offset, size
    return _core.generator_memory((place,), None, generator.get_state, generator.set_state)


@cache
def _torch_places(kind: Callable[[], Any]) -> tuple[int, int] | None:
    """Where in torch's generator object its numbers begin, and the bytes from there on, found in one of our own; None
    if they can't be. The experiment has a thread of its own, because the caller's modes must not see its operators."""
    found: list[tuple[int, int]] = []
    thread = threading.Thread(target=lambda: found.extend(_found_in(kind())), daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread can be started
        return None
    thread.join()
    return found[0] if found else None


def _found_in(generator: Any) -> list[tuple[int, int]]:
    size = _core.heap_bytes(generator._cdata)
    if not _MT19937_BYTES < size < 2 * _MT19937_BYTES:
        return []
    numbers = struct.pack("=624I", *_TORCH_STATE.unpack_from(bytes(generator.get_state().tolist())))
    content = _core.generator_memory(((generator, generator._cdata, size),)).read()
    offset = content.find(numbers) - _TORCH_COUNTERS_BYTES
    if offset <= 0 or content.count(numbers) != 1:
        return []
    places = offset, size - offset
    return [places] if _is_right_about_torch(generator, places) else []


def _is_right_about_torch(generator: Any, places: tuple[int, int]) -> bool:
    """Whether every draw from a generator of our own shows in its memory."""
    import torch

    memory = _torch_memory(generator, places)
    draws: list[Callable[[], Any]] = [
        lambda: torch.rand(1, generator=generator),
        lambda: torch.randn(1, generator=generator),  # a second normal number waits
        lambda: torch.randn(1, generator=generator),
        lambda: torch.empty(700).exponential_(generator=generator),
        lambda: generator.manual_seed(7),
    ]
    for draw in draws:
        before = memory.read()
        draw()
        if memory.read() is before:
            return False
    return memory.read() is memory.read()


# ---- Python's ------------------------------------------------------------------------------


def _pythons() -> random.Random:
    return random.seed.__self__  # type: ignore[attr-defined, no-any-return]


class _PythonGenerator:
    """The generator of the module `random`. Its second normal number is an attribute; the rest is memory."""

    def __init__(self) -> None:
        generator = _pythons()
        attributes = vars(generator)
        internal: Any = super(random.Random, generator)
        self.is_known = _is_right_about_python()
        self.sources: tuple[_Source, ...] = (
            _python_memory(generator) if self.is_known else (internal.getstate, internal.setstate),
            (attributes, "gauss_next"),
        )


def _python_memory(generator: random.Random) -> _core.GeneratorMemory:
    # The state is all that the C type adds to an object's header.
    size = _random.Random.__basicsize__ - _HEADER_BYTES
    return _core.generator_memory(((generator, id(generator) + _HEADER_BYTES, size),), None)


def _is_right_about_python() -> bool:
    """Whether a generator of our own goes back to a state through its memory."""
    if not _MT19937_BYTES <= _random.Random.__basicsize__ - _HEADER_BYTES <= _MT19937_BYTES + 16:
        return False
    generator = random.Random(7)
    generator.random()
    memory, state = _python_memory(generator), generator.getstate()
    before = memory.read()
    drawn = [generator.getrandbits(32) for _ in range(700)]
    if memory.read() == before:
        return False
    memory.write(before)
    return generator.getstate() == state and [generator.getrandbits(32) for _ in range(700)] == drawn


@cache
def _python() -> _PythonGenerator:
    return _PythonGenerator()


# ---- NumPy's -------------------------------------------------------------------------------


class _NumpyGenerator:
    """NumPy's global generator, as long as it draws from the same source of bits."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.generator = module._rand
        self.bits = self.generator._bit_generator
        offset = _gauss_offset(module)
        is_known = offset > 0 and type(self.generator) is module.RandomState
        is_known = is_known and type(self.bits) is module._MT19937
        self.is_known = is_known
        get, set_ = partial(self.generator.get_state, legacy=False), self.generator.set_state
        self.sources: tuple[_Source, ...] = (_numpy_memory(self.generator, offset) if is_known else (get, set_),)


def _numpy_memory(generator: Any, offset: int) -> _core.GeneratorMemory:
    bits = generator._bit_generator
    places = (
        (bits, bits.ctypes.state_address, _MT19937_BYTES),
        (generator, id(generator) + offset, _GAUSS.size),
    )
    return _core.generator_memory(places, bits.lock)


def _gauss_offset(module: Any) -> int:
    """Where in NumPy's generators the second normal number lies, found in one of our own; 0 if it can't be."""
    generator = module.RandomState(module._MT19937(7))
    drawn = generator.standard_normal()
    state = generator.get_state()
    if state[0] != "MT19937" or state[3] != 1:
        return 0
    size = type(generator).__basicsize__ - _HEADER_BYTES
    content = _core.generator_memory(((generator, id(generator) + _HEADER_BYTES, size),), None).read()
    found = [at for at in range(0, size - _GAUSS.size + 1, 8) if _GAUSS.unpack_from(content, at) == (1, state[4])]
    if len(found) != 1:
        return 0
    offset = found[0] + _HEADER_BYTES
    return offset if _is_right_about_numpy(generator, offset, drawn) else 0


def _is_right_about_numpy(generator: Any, offset: int, drawn: float) -> bool:
    """Whether a generator of our own, which has drawn one normal number, goes back to a state through its memory."""
    memory, state = _numpy_memory(generator, offset), generator.get_state()
    before = memory.read()
    numbers = generator.standard_normal(5).tolist() + generator.random_sample(700).tolist()
    if memory.read() == before or drawn in numbers:
        return False
    memory.write(before)
    now = generator.get_state()
    is_back = now[2:] == state[2:] and bool((now[1] == state[1]).all())
    return is_back and generator.standard_normal(5).tolist() + generator.random_sample(700).tolist() == numbers


_made_numpy: list[_NumpyGenerator] = []


def _numpy() -> _NumpyGenerator | None:
    """None if nobody has loaded NumPy."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    module = numpy.random.mtrand  # loads it, if a layer's forward would be the first to do so
    made = _made_numpy[0] if _made_numpy else None
    if made is None or made.generator is not module._rand or made.bits is not module._rand._bit_generator:
        made = _NumpyGenerator(module)
        _made_numpy[:] = [made]
    return made
