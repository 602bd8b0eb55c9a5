"""Writes files as C arrays: embed.py OUTPUT FILE... Called by meson; see assets.h for what it makes."""

import pathlib
import sys


def main() -> None:
    """One array per file, a table of all, and the function that looks a name up."""
    output, *names = sys.argv[1:]
    lines = ['#include "assets.h"', "", "#include <string.h>", ""]
    rows = []
    for number, name in enumerate(sorted(names, key=lambda name: pathlib.Path(name).name)):
        data = pathlib.Path(name).read_bytes()
        lines.append(f"static const unsigned char file_{number}[] = {{")
        for at in range(0, len(data), 24):
            lines.append("".join(f"{byte}," for byte in data[at : at + 24]))
        lines.append("0};")
        rows.append(f'    {{"{pathlib.Path(name).name}", file_{number}, sizeof file_{number} - 1}},')
    lines += ["static const mss_asset assets[] = {", *rows, "};", ""]
    lines += [
        "const mss_asset *mss_asset_find(const char *name)",
        "{",
        "    for (size_t i = 0; i < sizeof assets / sizeof assets[0]; i++) {",
        "        if (strcmp(assets[i].name, name) == 0) {",
        "            return &assets[i];",
        "        }",
        "    }",
        "    return NULL;",
        "}",
        "",
    ]
    pathlib.Path(output).write_text("\n".join(lines), encoding="utf-8")


main()
