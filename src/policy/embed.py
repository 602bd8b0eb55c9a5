"""Writes the shipped artifact as a C string: embed.py ARTIFACT OUTPUT. Called by meson. The artifact is ASCII."""

import pathlib
import sys


def main() -> None:
    """The constant that shipped.h declares."""
    source, output = sys.argv[1:]
    data = pathlib.Path(source).read_text(encoding="ascii").encode()
    rows = ["    " + "".join(f"{byte}," for byte in data[at : at + 32]) for at in range(0, len(data), 32)]
    text = ['#include "policy/shipped.h"', "", "const char ms__policy_shipped[] = {", *rows, "    0};", ""]
    pathlib.Path(output).write_text("\n".join(text), encoding="ascii")


main()
