"""Writes the files of the report's page as C arrays: embed.py OUTPUT NAME=FILE... Called by meson; report_page.h
declares them. The files are ASCII."""

import pathlib
import sys


def main() -> None:
    """One constant for each file. A link in a library's comment loses its scheme: the page names no address."""
    output, *pairs = sys.argv[1:]
    lines = ['#include "observability/report_page.h"', ""]
    for pair in pairs:
        name, _, path = pair.partition("=")
        data = pathlib.Path(path).read_text(encoding="ascii").replace("https://", "").encode()
        lines.append(f"const char ms__page_{name}[] = {{")
        lines += ["    " + "".join(f"{byte}," for byte in data[at : at + 32]) for at in range(0, len(data), 32)]
        lines += ["    0};", ""]
    pathlib.Path(output).write_text("\n".join(lines), encoding="ascii")


main()
