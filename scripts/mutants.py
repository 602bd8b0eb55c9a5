"""Changes one operator or constant of the C rules at a time and runs the tests of the rooms that use the file.

`python scripts/mutants.py [--rooms rules,search,...] [--count 500] [--seed 1] [--first 0]`. Each change is a mutant. If
a test fails, it is killed; if none does, it survives and is printed: either a test is missing, or the change makes no
difference. One whose tests do not end is counted by itself, because a busy machine does the same. Works on a copy of
the sources below build/mutants, so the checkout stays as it is, and a run that is stopped goes on with `--first`. The
same seed gives the same sample. Run `make build` first: it leaves meson in .venv.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent

# A room, and the rooms whose tests are to find its mistakes.
ROOMS = {
    "rules": ("rules", "plan"),
    "sim": ("sim", "search", "plan"),
    "search": ("search", "plan"),
    "plan": ("plan", "pipeline"),
    "execute": ("execute",),
}

# What is replaced, and by what. Spaces around operators tell them from pointers and signs.
CHANGES = (
    *((" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "), (" != ", " == ")),
    *((" && ", " || "), (" || ", " && "), (" + ", " - "), (" - ", " + "), (" * ", " / "), (" / ", " * ")),
    *((" += ", " -= "), (" -= ", " += "), ("return true;", "return false;"), ("return false;", "return true;")),
    *(("ms__max_u64(", "ms__min_u64("), ("ms__min_u64(", "ms__max_u64("), ("continue;", "break;"), ("if (!", "if (")),
)
_SECONDS_LEAST = 120
_TIMES_UNCHANGED = 4  # a mutant may loop for ever: its tests get this many times what they take unchanged


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    column: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old.strip()} -> {self.new.strip()}"


def _code_of(text: str) -> str:
    """The text with comments and strings blanked, so that places stay the same."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", "_", match.group())

    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.DOTALL)


def mutants_of(path: pathlib.Path) -> Iterator[Mutant]:
    name = str(path.relative_to(ROOT))
    for number, line in enumerate(_code_of(path.read_text(encoding="utf-8")).splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        for old, new in CHANGES:
            for match in re.finditer(re.escape(old), line):
                yield Mutant(name, number, match.start(), old, new)


def sample(rooms: list[str], count: int, seed: int) -> list[Mutant]:
    found = [
        mutant for room in rooms for path in sorted((ROOT / "src" / room).glob("*.c")) for mutant in mutants_of(path)
    ]
    random.Random(seed).shuffle(found)
    return found[:count]


def _run(*command: str, seconds: float | None = None) -> int:
    """The exit code, or 124 if the time is over."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # meson then ends its tests, which a kill would leave behind
            process.wait()
            return 124
        finally:
            process.terminate()


def _targets(build: pathlib.Path) -> dict[str, list[str]]:
    """The programs of each suite's tests."""
    said = subprocess.run(["meson", "introspect", "--tests", str(build)], capture_output=True, check=True).stdout
    found: dict[str, list[str]] = {}
    for test in json.loads(said):
        program = pathlib.Path(test["cmd"][0])
        if program.is_relative_to(build):
            found.setdefault(test["suite"][0].split(":")[-1], []).append(str(program.relative_to(build)))
    return found


class Suites:
    """Builds and runs the tests of some rooms, in a build folder."""

    def __init__(self, build: pathlib.Path) -> None:
        self._build, self._targets = build, _targets(build)
        self._seconds: dict[tuple[str, ...], float] = {}

    def build(self, rooms: tuple[str, ...]) -> bool:
        targets = [target for room in rooms for target in self._targets[room]]
        return _run("ninja", "-C", str(self._build), "-j", "2", *targets) == 0

    def run(self, rooms: tuple[str, ...]) -> int:
        """The exit code; 124 if the tests do not end in a few times what they take unchanged."""
        suites = [f"--suite={room}" for room in rooms]
        most = self._seconds.get(rooms)
        limit = None if most is None else max(_SECONDS_LEAST, _TIMES_UNCHANGED * most)
        command = ("meson", "test", "-C", str(self._build), "--no-rebuild", "--maxfail=1", "-t", "100", *suites)
        return _run(*command, seconds=limit)

    def time(self, rooms: tuple[str, ...]) -> None:
        """Runs the unchanged tests, which must pass, and notes how long they take."""
        start = time.monotonic()
        if rooms not in self._seconds:
            if not self.build(rooms) or self.run(rooms) != 0:
                sys.exit(f"the unchanged tests of {', '.join(rooms)} fail")
            self._seconds[rooms] = time.monotonic() - start


def _prepare(copy: pathlib.Path) -> pathlib.Path:
    """A copy of what git knows, and its build with tests; brought up to date if it is there."""
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    for name in files.stdout.decode().splitlines():
        source, target = ROOT / name, copy / name
        if source.is_file() and (not target.is_file() or target.read_bytes() != source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            shutil.copymode(source, target)
    build = copy / "build"
    if not (build / "build.ninja").is_file():
        code = _run("meson", "setup", str(build), str(copy), "-Dpython=disabled", "-Dserver=disabled")
        if code != 0:
            sys.exit("meson setup failed")
    if _run("ninja", "-C", str(build), "-j", "2") != 0:
        sys.exit("the unchanged sources do not build")
    return build


def outcome(mutant: Mutant, copy: pathlib.Path, suites: Suites) -> str:
    """Builds and tests one mutant: "killed", "survived", "endless" or "invalid" (it does not compile)."""
    rooms = ROOMS[mutant.file.split("/")[1]]
    suites.time(rooms)
    path = copy / mutant.file
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    line = lines[mutant.line - 1]
    lines[mutant.line - 1] = line[: mutant.column] + mutant.new + line[mutant.column + len(mutant.old) :]
    path.write_text("".join(lines), encoding="utf-8")
    try:
        if not suites.build(rooms):
            return "invalid"
        return {0: "survived", 124: "endless"}.get(suites.run(rooms), "killed")
    finally:
        path.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", default=",".join(ROOMS), help="rooms to change, by commas")
    parser.add_argument("--count", type=int, default=500, help="mutants in the sample")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant to run, from 0")
    parser.add_argument("--list", action="store_true", help="only print the sample")
    options = parser.parse_args()
    chosen = sample(options.rooms.split(","), options.count, options.seed)
    if options.list:
        print("\n".join(map(str, chosen)))
        return 0
    os.environ["PATH"] = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    copy = ROOT / "build" / "mutants"
    suites = Suites(_prepare(copy))
    totals = {"killed": 0, "survived": 0, "endless": 0, "invalid": 0}
    for number, mutant in enumerate(chosen[options.first :], options.first):
        word = outcome(mutant, copy, suites)
        totals[word] += 1
        print(f"{number:4} {word:8} {mutant}", flush=True)
    tried = totals["killed"] + totals["survived"]
    share = totals["killed"] / max(tried, 1)
    print(
        f"{tried} mutants, {totals['killed']} killed ({share:.0%}); "
        f"{totals['endless']} ran too long, {totals['invalid']} do not compile"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
