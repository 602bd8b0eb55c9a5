"""The states of Python's and NumPy's global random generators, read and set in well under a microsecond.

A recomputed layer must draw the numbers of its forward, so both states are read before each such layer and set for
its replay. `random.getstate()` and `numpy.random.get_state()` take 20 microseconds each, because they make Python
objects of 624 numbers. The generators keep these numbers in one piece of memory, which `_core.generator_memory()`
compares with what it read last. Where the state lies is found by an experiment on generators of our own; if the
experiment fails, or the generator is of another kind, the slow functions are used.

`memscale.device.RandomState` is the only user. All functions need the interpreter lock only. Tests:
tests/python/test_generators.py.
"""

from __future__ import annotations

import _random
import random
import struct
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from . import _core

__all__ = ["GlobalState", "draw_outside", "python_setters"]

_Setter = tuple[Callable[[Any], object], Any]

_HEADER_BYTES = object.__basicsize__
_MT19937_BYTES = 625 * 4  # 624 numbers of 32 bits and the position among them
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


class GlobalState:
    """The states of both generators at one moment. The constructor reads them."""

    __slots__ = ("_numpy", "_python")

    def __init__(self) -> None:
        self._python = _python().read()
        numpys = _numpy()
        self._numpy = None if numpys is None else (numpys, numpys.read())

    def setters(self) -> list[_Setter]:
        """Builtins, each with its argument, which together set the states."""
        found = _python().setters(self._python)
        if self._numpy is not None:
            generator, state = self._numpy
            found += generator.setters(state)
        return found


def draw_outside() -> None:
    """Draws from both generators."""
    random.random()
    numpys = _numpy()
    if numpys is not None:
        numpys.generator.random_sample()


# ---- Python's ------------------------------------------------------------------------------


def _pythons() -> random.Random:
    return random.seed.__self__  # type: ignore[attr-defined, no-any-return]


class _PythonGenerator:
    """The generator of the module `random`. Its second normal number is an attribute; the rest is memory."""

    def __init__(self) -> None:
        generator = _pythons()
        self._memory = _python_memory(generator) if _is_right_about_python() else None
        self._attributes = vars(generator)
        self._put_gauss = partial(self._attributes.__setitem__, "gauss_next")

    def read(self) -> Any:
        if self._memory is None:
            return random.getstate()
        return self._memory.read(), self._attributes["gauss_next"]

    def setters(self, state: Any) -> list[_Setter]:
        if self._memory is None:
            return python_setters(state)
        return [(self._memory.write, state[0]), (self._put_gauss, state[1])]


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
        self.generator = module._rand
        self.bits = self.generator._bit_generator
        self._set_state = self.generator.set_state
        offset = _gauss_offset(module)
        is_known = offset is not None and type(self.generator) is module.RandomState
        is_known = is_known and type(self.bits) is module._MT19937
        self._memory = _numpy_memory(self.generator, offset) if is_known and offset is not None else None

    def read(self) -> Any:
        return self.generator.get_state(legacy=False) if self._memory is None else self._memory.read()

    def setters(self, state: Any) -> list[_Setter]:
        return [(self._set_state if self._memory is None else self._memory.write, state)]


def _numpy_memory(generator: Any, offset: int) -> _core.GeneratorMemory:
    bits = generator._bit_generator
    places = (
        (bits, bits.ctypes.state_address, _MT19937_BYTES),
        (generator, id(generator) + offset, _GAUSS.size),
    )
    return _core.generator_memory(places, bits.lock)


def _gauss_offset(module: Any) -> int | None:
    """Where in NumPy's generators the second normal number lies, found in one of our own; None if it can't be."""
    generator = module.RandomState(module._MT19937(7))
    drawn = generator.standard_normal()
    state = generator.get_state()
    if state[0] != "MT19937" or state[3] != 1:
        return None
    size = type(generator).__basicsize__ - _HEADER_BYTES
    content = _core.generator_memory(((generator, id(generator) + _HEADER_BYTES, size),), None).read()
    found = [at for at in range(0, size - _GAUSS.size + 1, 8) if _GAUSS.unpack_from(content, at) == (1, state[4])]
    if len(found) != 1:
        return None
    offset = found[0] + _HEADER_BYTES
    return offset if _is_right_about_numpy(generator, offset, drawn) else None


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
