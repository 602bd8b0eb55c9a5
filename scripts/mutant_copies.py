"""Puts many mutants into one build: each is a copy of its function, chosen by the environment variable MEMSCALE_MUTANT.

A function with mutants 3 and 8 becomes `f__m3()`, `f__m8()` and an `f()` that calls one of them if that says so.
So sources are compiled once for all mutants, and to run one takes no compiler. Relies on the layout of clang-format: a
function's braces are the only ones in the first column without a semicolon.
"""

from __future__ import annotations

import dataclasses
import re

# The number that was chosen, 0 for none; for one source of the library.
SWITCH = """
#include <stdlib.h>
int ms__mutant;
__attribute__((constructor)) static void ms__mutant_read(void)
{
    const char *text = getenv("MEMSCALE_MUTANT");
    ms__mutant = text != NULL ? atoi(text) : 0;
}
"""


@dataclasses.dataclass(frozen=True)
class Change:
    """A replacement at a place of a file; lines from 1, columns from 0."""

    number: int
    line: int
    column: int
    old: str
    new: str


@dataclasses.dataclass(frozen=True)
class Changed:
    """A file with copies. `copies`: first and last line and number of each. `outside`: changes in no function."""

    text: str
    copies: list[tuple[int, int, int]]
    outside: list[int]

    def at(self, line: int) -> int | None:
        """The number of the copy that the line belongs to."""
        return next((number for first, last, number in self.copies if first <= line <= last), None)


def _functions(lines: list[str]) -> list[tuple[int, int, int]]:
    """Index of the signature's first line, of the opening and of the closing brace of each function."""
    found = []
    for brace in (i for i, line in enumerate(lines) if line == "{"):
        first = brace - 1
        while lines[first][0].isspace():
            first -= 1
        found.append((first, brace, lines.index("}", brace)))
    return found


def _parameters(text: str) -> list[str]:
    """The names of the parameters in a list, as `"int a, bool (*b)(int), char c[4]"`."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    names = []
    for part in (part.strip() for part in parts if part.strip() not in ("", "void")):
        pointer = re.search(r"\(\*(?:const )?(\w+)\)", part)
        name = pointer or re.search(r"(\w+)(?:\[[^\]]*\])*$", part)
        if name is None:
            raise ValueError(part)
        names.append(name[1])
    return names


def _split(signature: str) -> tuple[str, str, str]:
    """What precedes the name, the name, and the list of parameters."""
    match = re.match(r"([\w\s*]*?[\s*])(\w+)\((.*)\)$", signature, re.DOTALL)
    if match is None:
        raise ValueError(signature)
    return match[1], match[2], match[3]


def with_copies(text: str, changes: list[Change]) -> Changed:
    lines = text.splitlines()
    out: list[str] = []
    copies = []
    known: set[int] = set()
    done = 0
    for first, brace, last in _functions(lines):
        mine = [change for change in changes if brace + 1 <= change.line <= last + 1]
        if not mine:
            continue
        known.update(change.number for change in mine)
        out += lines[done:first]
        done = last + 1
        signature = " ".join(line.strip() for line in lines[first:brace])
        before, name, parameters = _split(signature)
        result = re.sub(r"\b(static|inline|MS_API)\b", "", before).strip()
        calls = []
        out += ["extern int ms__mutant;", signature + ";"]
        for change in mine:
            body = lines[brace : last + 1]
            line = body[change.line - 1 - brace]
            body[change.line - 1 - brace] = line[: change.column] + change.new + line[change.column + len(change.old) :]
            copy = f"{name}__m{change.number}"
            start = len(out) + 1
            out += [f"__attribute__((unused)) static {result} {copy}({parameters})", *body]
            copies.append((start, len(out), change.number))
            call = f"{copy}({', '.join(_parameters(parameters))});"
            calls.append(f"case {change.number}: " + (f"{call} return;" if result == "void" else f"return {call}"))
        out += [*lines[first : brace + 1], "switch (ms__mutant) {", *calls, "default: break;", "}"]
        out += lines[brace + 1 : last + 1]
    out += lines[done:]
    return Changed("\n".join(out) + "\n", copies, [c.number for c in changes if c.number not in known])
