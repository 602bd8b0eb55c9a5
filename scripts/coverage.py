"""Counts the branches of the C library that its tests take, from gcov's data.

`python scripts/coverage.py FOLDER` reads a build folder that was configured with -Db_coverage=true, after its tests
ran (`make coverage` does all of it). Prints a table in Markdown, a row for each room, and why branches were not taken.
A reason is found by the text of the branch's line: `--list REASON` prints the lines of one. A branch counts as taken if
any object that has its line took it. Fails below `--least` percent.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src", "cli")

# Why a branch is not taken, by its line. The first that fits counts.
REASONS = (
    (
        "no memory",
        r"alloc\(|strdup|MS__ARRAY_RESERVE|MS__PUSH|_new\(|ENOMEM|[!=]= NULL|_append|ms__json_|ms__buffer"
        r"|json_(pack|object|array|string|integer|real|boolean|true|false)",
    ),
    ("an earlier step failed", r"\brc\b|->failed|\.failed|err\b"),
    ("a system call failed", r"pthread_|open\(|read\(|write\(|stat\(|map\(|advise|sysconf|errno|fd\b|fcntl|fault"),
    ("a limit of numbers", r"UINT64_MAX|UINT32_MAX|SIZE_MAX|INT64_MAX|_MOST|_MAX\b|overflow|isnan|isfinite"),
    ("a log or text", r"log|print|puts|explain|json|text|format"),
    ("a loop that never ran, or always", r"\bfor \(|\bwhile \("),
    ("one side of && or ||", r"&&|\|\|"),
    ("one side of ?:", r" \? "),
    ("a case of switch", r"\bswitch \("),
)
OTHER = "another condition"

Branch = tuple[str, int, int]


def _data_of(build: pathlib.Path) -> Iterator[dict[str, object]]:
    """What gcov says of each object, files of the system left out."""
    for path in sorted(build.rglob("*.gcda")):
        command = ["gcov", "--json-format", "--branch-probabilities", "--stdout", str(path)]
        said = subprocess.run(command, cwd=build, capture_output=True, text=True, check=False).stdout
        for line in said.splitlines():
            yield json.loads(line)


def _counts(build: pathlib.Path) -> tuple[dict[Branch, int], dict[tuple[str, int], int]]:
    """How often each branch and each line ran."""
    branches: collections.Counter[Branch] = collections.Counter()
    lines: collections.Counter[tuple[str, int]] = collections.Counter()
    for data in _data_of(build):
        folder = pathlib.Path(str(data["current_working_directory"]))
        for file in data["files"]:  # type: ignore[attr-defined]
            path = (folder / file["file"]).resolve()
            if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in FOLDERS:
                continue
            name = str(path.relative_to(ROOT))
            for line in file["lines"]:
                lines[name, line["line_number"]] += line["count"]
                for place, branch in enumerate(line["branches"]):
                    branches[name, line["line_number"], place] += branch["count"]
    return dict(branches), dict(lines)


def _room(name: str) -> str:
    parts = name.split("/")
    return parts[1] if parts[0] == "src" else parts[0]


def _texts(names: set[str]) -> dict[str, list[str]]:
    return {name: (ROOT / name).read_text(encoding="utf-8").splitlines() for name in names}


def _reason(text: str) -> str:
    return next((reason for reason, pattern in REASONS if re.search(pattern, text)), OTHER)


def _share(part: int, whole: int) -> str:
    return f"{part / max(whole, 1):.1%}"


def _print_rooms(branches: dict[Branch, int], lines: dict[tuple[str, int], int]) -> None:
    print("| room | lines | reached | branches | taken |\n|---|---|---|---|---|")
    for room in sorted({_room(name) for name, _ in lines}) + ["all"]:
        own = [count for (name, _), count in lines.items() if room in (_room(name), "all")]
        taken = [count for (name, _, _), count in branches.items() if room in (_room(name), "all")]
        reached = _share(sum(map(bool, own)), len(own))
        print(f"| {room} | {len(own)} | {reached} | {len(taken)} | {_share(sum(map(bool, taken)), len(taken))} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="the build folder")
    parser.add_argument("--least", type=float, default=0.0, help="percent of branches that must be taken")
    parser.add_argument("--list", default=None, metavar="REASON", help="print the lines whose branches were not taken")
    options = parser.parse_args()
    branches, lines = _counts(options.build.resolve())
    if not branches:
        sys.exit(f"{options.build} has no data of gcov: configure it with -Db_coverage=true and run its tests")
    _print_rooms(branches, lines)
    texts = _texts({name for name, _, _ in branches})
    missed = [branch for branch, count in branches.items() if count == 0]
    reasons = collections.Counter(_reason(texts[name][line - 1]) for name, line, _ in missed)
    print("\n| not taken because of | branches | of all |\n|---|---|---|")
    for reason, count in reasons.most_common():
        print(f"| {reason} | {count} | {_share(count, len(branches))} |")
    if options.list is not None:
        for name, line in sorted({(name, line) for name, line, _ in missed}):
            if _reason(texts[name][line - 1]) == options.list:
                print(f"{name}:{line}: {texts[name][line - 1].strip()}")
    taken = 100 * (1 - len(missed) / len(branches))
    return 0 if taken >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
