"""Changes one operator or constant of the C rules at a time and runs the tests of the rooms that use the file.

`python scripts/mutants.py [--rooms rules,search,...] [--count 500] [--seed 1] [--first 0] [--only 3,7]`. Each change is
a mutant. If a test fails, or hangs, it is killed; if none does, it survives and is printed: a test is missing, or the
change makes no difference. What survives plain tests gets them again under the sanitizers. Works on a copy of the
sources below build/mutants, so the checkout stays as it is, and a run that is stopped goes on with `--first`. The same
seed and sources give the same sample, and `--only` runs some of it again. Run `make build` first: it leaves meson in
.venv.

`--seconds 4` gives each test at most 4 seconds of processor time, which finds most of what the whole tests find; run
what survives again with `--only` and without it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
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
_QUICK = ("-Dshared=false", "-Ddebug=false", "-Doptimization=1")  # to build: that takes as long as most tests
_TIMES_UNCHANGED = 10  # a mutant may loop for ever: a test gets this many times what it takes unchanged
_SECONDS_LEAST = 5  # of processor time: that of a busy machine is the same as that of an idle one
_SECONDS_WAITING = 120  # a mutant may wait for ever


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


def _changes_nothing(code: str, old: str, new: str) -> bool:
    """Whether the change makes < to <= between operands that are known to differ, or > to >=."""
    if old.strip() + new.strip() not in ("<<=", ">>="):
        return False
    differ = re.search(r"([\w.>\[\]-]+) != ([\w.>\[\]-]+)", code)
    return differ is not None and f"{differ[1]}{old}{differ[2]}" in code


def mutants_of(path: pathlib.Path) -> Iterator[Mutant]:
    name = str(path.relative_to(ROOT))
    before = ""
    for number, line in enumerate(_code_of(path.read_text(encoding="utf-8")).splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        for old, new in CHANGES:
            for match in re.finditer(re.escape(old), line):
                if not _changes_nothing(before + line, old, new):
                    yield Mutant(name, number, match.start(), old, new)
        before = line


def sample(rooms: list[str], count: int, seed: int) -> list[Mutant]:
    found = [
        mutant for room in rooms for path in sorted((ROOT / "src" / room).glob("*.c")) for mutant in mutants_of(path)
    ]
    random.Random(seed).shuffle(found)
    return found[:count]


def _run(*command: str) -> int:
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode


def _processor_seconds() -> float:
    """Of the processes that have ended."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


@dataclasses.dataclass
class Test:
    """A program of a room's tests, its target in ninja, and its environment."""

    target: str
    command: list[str]
    folder: str
    environment: dict[str, str]
    seconds: float = 0.0  # of processor time with unchanged sources; infinite if more than it gets
    kills: int = 0
    spent: float = 0.0  # seconds on mutants

    def measure(self, most: float) -> bool:
        """Whether it passes with unchanged sources."""
        before = _processor_seconds()
        word = self._watched(most)
        self.seconds = self.spent = max(_processor_seconds() - before, 0.01)
        if word == "endless" and most < math.inf:
            self.seconds = math.inf
        return word != "failed"

    def run(self, most: float) -> str:
        """ "passed", "failed", or "endless": it takes far longer than unchanged. Ends at the first test that fails, and
        after `most` seconds, if it takes longer unchanged: then it has passed so far."""
        is_cut = most < self.seconds
        before = _processor_seconds()
        word = self._watched(most if is_cut else max(_SECONDS_LEAST, _TIMES_UNCHANGED * self.seconds))
        self.spent += _processor_seconds() - before
        self.kills += word == "failed"
        return "passed" if word == "endless" and is_cut else word

    def _watched(self, limit: float) -> str:
        def bound() -> None:
            if limit < math.inf:
                seconds = math.ceil(limit)
                resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

        with subprocess.Popen(
            self.command,
            cwd=self.folder,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=bound,
            start_new_session=True,
        ) as run:
            waited = threading.Event()

            def end() -> None:
                waited.set()
                os.killpg(run.pid, signal.SIGKILL)

            timer = threading.Timer(_SECONDS_WAITING + _TIMES_UNCHANGED * min(limit, 60.0), end)
            timer.start()
            assert run.stdout is not None
            failed = any(b"[  FAILED  ]" in line for line in run.stdout)
            timer.cancel()
            if failed and run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
        if waited.is_set() or run.returncode in (-signal.SIGKILL, -signal.SIGXCPU):
            return "failed" if failed else "endless"
        return "failed" if run.returncode else "passed"


class Suites:
    """Builds and runs the tests of some rooms, in a build folder."""

    def __init__(self, build: pathlib.Path) -> None:
        self._build = build
        self._tests: dict[str, list[Test]] = {}
        said = subprocess.run(["meson", "introspect", "--tests", str(build)], capture_output=True, check=True).stdout
        for test in json.loads(said):
            program = pathlib.Path(test["cmd"][0])
            if program.is_relative_to(build):
                target = str(program.relative_to(build))
                room = test["suite"][0].split(":")[-1]
                found = Test(target, test["cmd"], test["workdir"], test["env"])
                self._tests.setdefault(room, []).append(found)

    def of(self, rooms: tuple[str, ...], most: float) -> list[Test]:
        """The tests of the rooms, first those that kill most in a second. Runs them unchanged at first."""
        tests = [test for room in rooms for test in self._tests[room]]
        for test in tests:
            if test.seconds == 0.0 and (not self.build(test) or not test.measure(most)):
                sys.exit(f"the unchanged test {test.target} fails")
        return sorted(tests, key=lambda test: test.spent / (test.kills + 1))

    def build(self, test: Test) -> bool:
        return _run("ninja", "-C", str(self._build), "-j", "1", test.target) == 0


def _copy_sources(copy: pathlib.Path) -> None:
    """Brings the copy of what git knows up to date."""
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    for name in files.stdout.decode().splitlines():
        source, target = ROOT / name, copy / name
        if source.is_file() and (not target.is_file() or target.read_bytes() != source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            shutil.copymode(source, target)


def _built(copy: pathlib.Path, name: str, *options: str) -> Suites:
    """The tests of a build of the copy, made or brought up to date."""
    build = copy / name
    if not (build / "build.ninja").is_file():
        code = _run(
            "meson", "setup", str(build), str(copy), "-Dpython=disabled", "-Dserver=disabled", *_QUICK, *options
        )
        if code != 0:
            sys.exit("meson setup failed")
    return Suites(build)


def _tested(suites: Suites, rooms: tuple[str, ...], most: float) -> str:
    for test in suites.of(rooms, most):
        if not suites.build(test):
            return "invalid"
        word = test.run(most)
        if word != "passed":
            return "killed" if word == "failed" else word
    return "survived"


def outcome(mutant: Mutant, copy: pathlib.Path, builds: list[Suites], most: float) -> str:
    """Tests a mutant in each build: "killed", "endless" (a test hangs), "survived" or "invalid" (does not compile)."""
    rooms = ROOMS[mutant.file.split("/")[1]]
    for suites in builds:
        suites.of(rooms, most)
    path = copy / mutant.file
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    line = lines[mutant.line - 1]
    lines[mutant.line - 1] = line[: mutant.column] + mutant.new + line[mutant.column + len(mutant.old) :]
    path.write_text("".join(lines), encoding="utf-8")
    try:
        words = (_tested(suites, rooms, most) for suites in builds)
        return next((word for word in words if word != "survived"), "survived")
    finally:
        path.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", default=",".join(ROOMS), help="rooms to change, by commas")
    parser.add_argument("--count", type=int, default=500, help="mutants in the sample")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant to run, from 0")
    parser.add_argument("--only", help="numbers of the mutants to run, by commas")
    parser.add_argument("--seconds", type=float, default=math.inf, help="processor time that each test gets at most")
    parser.add_argument("--plain", action="store_true", help="no second run under the sanitizers")
    parser.add_argument("--list", action="store_true", help="only print the sample")
    options = parser.parse_args()
    chosen = sample(options.rooms.split(","), options.count, options.seed)
    if options.list:
        print("\n".join(map(str, chosen)))
        return 0
    os.environ["PATH"] = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    copy = ROOT / "build" / "mutants"
    _copy_sources(copy)
    builds = [_built(copy, "build")]
    if not options.plain:
        builds.append(_built(copy, "asan", "-Db_sanitize=address,undefined", "-Db_lundef=false"))
    totals = {"killed": 0, "survived": 0, "endless": 0, "invalid": 0}
    only = None if options.only is None else set(map(int, options.only.split(",")))
    for number, mutant in enumerate(chosen):
        if number < options.first or (only is not None and number not in only):
            continue
        word = outcome(mutant, copy, builds, options.seconds)
        totals[word] += 1
        print(f"{number:4} {word:8} {mutant}", flush=True)
    seen = totals["killed"] + totals["endless"]
    tried = seen + totals["survived"]
    print(
        f"{tried} mutants, {seen} killed ({seen / max(tried, 1):.0%}; {totals['endless']} because a test hung); "
        f"{totals['invalid']} do not compile"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
