"""Writes python/memscale/_core.pyi from the built extension, or checks that it is up to date.

    python scripts/core_stubs.py           # from the extension of the installed memscale
    python scripts/core_stubs.py --check

Docstrings of the extension hold a text signature and the types of its parameters (MS_EXT_FUNCTION in
ext/common.h). A test compares the file with the extension.
"""

from __future__ import annotations

import inspect
import pathlib
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any

PATH = pathlib.Path(__file__).resolve().parent.parent / "python" / "memscale" / "_core.pyi"
WIDTH = 116

HEAD = """# Written by scripts/core_stubs.py from the docstrings in ext/; change those and run it again.
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
"""

_CALLABLE = (types.BuiltinFunctionType, types.MethodDescriptorType)
# PyStructSequence_Field can't hold a type, so types are read from an example row.
_EXAMPLES = {"Technique": "TECHNIQUES"}


def top_level(text: str) -> list[str]:
    """Splits at the commas outside brackets."""
    parts, depth, part = [], 0, ""
    for char in text:
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += char
    return [*parts, part.strip()] if part.strip() else parts


def split_doc(name: str, doc: str | None) -> tuple[list[str], str, str]:
    """Splits a docstring into the types of the parameters, the type of the result, and the text.

    Raises:
        ValueError: the docstring does not have the form of MS_EXT_FUNCTION.
    """
    given, gap, text = (doc or "").partition("\n\n")
    inner, arrow, result = given.rpartition("-> ")
    if not (gap and arrow and text):
        raise ValueError(f"{name}: the docstring has no types; use MS_EXT_FUNCTION")
    return top_level(inner.strip().removeprefix("(").removesuffix(")")), result, text


def docstring(text: str, indent: str) -> Iterator[str]:
    """The lines of a docstring."""
    lines = textwrap.wrap(text, WIDTH - len(indent))
    if len(lines) == 1 and len(lines[0]) + len(indent) + 6 <= WIDTH + 4:
        yield f'{indent}"""{lines[0]}"""'
        return
    yield f'{indent}"""{lines[0]}'
    yield from (f"{indent}{line}" for line in lines[1:])
    yield f'{indent}"""'


def function(name: str, value: Any, indent: str = "", own_name: str | None = None) -> Iterator[str]:
    """The stub of a function, a method or, as `__init__`, a type."""
    signature = inspect.signature(value)
    kinds, result, text = split_doc(name, value.__doc__)
    parameters = [p for p in signature.parameters.values() if p.name not in ("self", "module")]
    if len(parameters) != len(kinds):
        raise ValueError(f"{name}: {len(parameters)} parameters and {len(kinds)} types")
    named = ["self"] if indent else []
    for parameter, kind in zip(parameters, kinds, strict=True):
        default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            named += ["/", f"*{parameter.name}: {kind}"]
        else:
            named.append(f"{parameter.name}: {kind}{default}")
    if "/" not in named and any(parameter.kind is inspect.Parameter.POSITIONAL_ONLY for parameter in parameters):
        named.append("/")
    line = f"{indent}def {own_name or name}({', '.join(named)}) -> {result}:"
    if len(line) <= WIDTH + 4:
        yield line
    else:
        yield f"{indent}def {own_name or name}("
        yield from (f"{indent}    {part}," for part in named)
        yield f"{indent}) -> {result}:"
    if own_name is None:
        yield from docstring(text, indent + "    ")
    else:
        yield f"{indent}    ..."


def named_tuple(name: str, kind: type, row: Any) -> Iterator[str]:
    """The stub of a struct sequence, from one of its rows."""
    yield f"class {name}(NamedTuple):"
    yield from docstring(kind.__doc__ or "", "    ")
    yield ""
    for field in (n for n, v in vars(kind).items() if isinstance(v, types.MemberDescriptorType)):
        yield f"    {field}: {type(getattr(row, field)).__name__}"
        yield from docstring(getattr(kind, field).__doc__, "    ")


def members(kind: type) -> Iterator[str]:
    """Attributes and methods of a type."""
    for name, value in sorted(vars(kind).items()):
        if isinstance(value, types.GetSetDescriptorType) and not name.startswith("__"):
            _, result, text = split_doc(f"{kind.__name__}.{name}", value.__doc__)
            yield f"    {name}: {result}"
            yield from docstring(text, "    ")
        elif isinstance(value, _CALLABLE) and not name.startswith("__"):
            yield from function(name, value, "    ")


def a_class(name: str, kind: type) -> Iterator[str]:
    """The stub of a type."""
    base = kind.__bases__[0].__name__
    yield f"class {name}({base}):" if base != "object" else f"class {name}:"
    if kind.__text_signature__ and base == "object":
        yield from docstring(split_doc(name, kind.__doc__)[2], "    ")
        yield ""
        yield from function(name, kind, "    ", "__init__")
    else:
        yield from docstring(kind.__doc__ or "", "    ")
    yield from members(kind)


def stubs(core: Any) -> str:
    """The text of the file."""
    blocks = []
    public = {name: value for name, value in sorted(vars(core).items()) if not name.startswith("__")}
    for name, value in public.items():
        if name in _EXAMPLES:
            row = next(iter(public[_EXAMPLES[name]].values()))
            blocks.append("\n".join(named_tuple(name, value, row)))
        elif isinstance(value, type):
            blocks.append("\n".join(a_class(name, value)))
        elif isinstance(value, _CALLABLE):
            blocks.append("\n".join(function(name, value)))
        elif isinstance(value, dict):
            kind = type(next(iter(value.values()))).__name__
            blocks.append(f"{name}: dict[str, {kind}]")
        else:
            blocks.append(f"{name}: {type(value).__name__}")
    return HEAD + "\n" + "\n\n".join(blocks) + "\n"


def main() -> int:
    from memscale import _core

    text = stubs(_core)
    if "--check" in sys.argv[1:]:
        is_current = PATH.read_text(encoding="utf-8") == text
        print("" if is_current else f"{PATH.name} is out of date; run scripts/core_stubs.py")
        return 0 if is_current else 1
    PATH.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
