"""Runs the command lines of a golden file and compares their output.

A golden file is a list of blocks: a command line after "$ ", then its output. Lines of standard error begin with
"! ", and a status other than 0 closes the block as "[status 2]". `{any}` in an expected line stands for any text, a
line `{lines}` for any number of lines. Lines that begin with "#" are comments. The commands run in a temporary
folder that holds a copy of tests/cli/data.

    run_golden.py PROGRAM FILE [--update]

`--update` writes the output into the file instead (then restore `{any}` by hand for output that depends on the
machine).
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field


@dataclass
class Block:
    """One command and its expected output, with the comments before it."""

    command: str
    comments: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)


def read_blocks(text: str) -> list[Block]:
    """The blocks of a golden file."""
    blocks: list[Block] = []
    comments: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            blocks.append(Block(line[2:], comments))
            comments = []
        elif line.startswith("#") or not (line or blocks):
            comments.append(line)
        elif blocks:
            blocks[-1].expected.append(line)
    for block in blocks:
        while block.expected and not block.expected[-1]:
            block.expected.pop()
    return blocks


def run_command(command: str, program: pathlib.Path, folder: str) -> list[str]:
    """The command's output in a shell, in the form of a golden file."""
    environment = dict(os.environ, PATH=f"{program.parent}:{os.environ['PATH']}", LC_ALL="C", HOME=folder)
    environment["XDG_CACHE_HOME"] = f"{folder}/cache"
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    lines = done.stdout.splitlines()
    lines += [f"! {line}" for line in done.stderr.splitlines()]
    if done.returncode != 0:
        lines.append(f"[status {done.returncode}]")
    return [line.replace(folder, "{folder}") for line in lines]


def matches(expected: list[str], printed: list[str]) -> bool:
    """True if the printed lines match the expected ones."""
    pattern = ""
    for line in expected:
        if line == "{lines}":
            pattern += r"(?:.*\n)*"
        else:
            pattern += re.escape(line).replace(re.escape("{any}"), ".*") + r"\n"
    return re.fullmatch(pattern, "".join(line + "\n" for line in printed)) is not None


def main() -> int:
    """Runs one golden file; 1 if something differs."""
    program = pathlib.Path(sys.argv[1]).resolve()
    golden = pathlib.Path(sys.argv[2])
    blocks = read_blocks(golden.read_text())
    failures = 0
    output: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(__file__).parent / "data"
        if data.is_dir():
            shutil.copytree(data, folder, dirs_exist_ok=True)
        for block in blocks:
            printed = run_command(block.command, program, folder)
            output += [*block.comments, f"$ {block.command}", *printed, ""]
            if not matches(block.expected, printed):
                failures += 1
                print(f"$ {block.command}", "expected:", *block.expected, "printed:", *printed, "", sep="\n")
    if "--update" in sys.argv:
        golden.write_text("\n".join(output))
        return 0
    print(f"{golden.name}: {len(blocks)} commands, {failures} differ")
    return 1 if failures or not blocks else 0


if __name__ == "__main__":
    sys.exit(main())
