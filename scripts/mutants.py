"""Changes one operator or constant of the C rules at a time and runs the tests of the rooms that use the file.

`python scripts/mutants.py [--rooms rules,search,...] [--count 500] [--seed 1] [--first 0] [--only 3,7]`. Each change is
a mutant. If a test fails, or hangs, it is killed; if none does, it survives and is printed: a test is missing, or the
change makes no difference. What survives plain tests gets them again under the sanitizers. One build of a copy of the
sources below build/mutants holds all mutants (mutant_copies.py), so the checkout stays as it is. A run that is stopped
goes on with `--first`. The same seed and sources give the same sample, and `--only` runs some of it again. Run `make
build` first: it leaves meson in .venv.

`--seconds 4` gives each test at most 4 seconds of processor time, which finds most of what the whole tests find; run
what survives again with `--only` and without it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
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

from mutant_copies import SWITCH, Change, Changed, with_copies

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
_ENDS_AT_FINDINGS = {"UBSAN_OPTIONS": "halt_on_error=1"}  # as meson test sets it; otherwise a finding is only printed
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
        word, used = self._watched(0, most)
        self.seconds = max(used, 0.01)
        if word == "endless" and most < math.inf:
            self.seconds = math.inf
        return word != "failed"

    def run(self, number: int, most: float) -> str:
        """ "passed", "failed", or "endless": it takes far longer than unchanged. Ends at the first test that fails, and
        after `most` seconds, if it takes longer unchanged: then it has passed so far."""
        is_cut = most < self.seconds
        limit = most if is_cut else max(_SECONDS_LEAST, _TIMES_UNCHANGED * self.seconds)
        word, used = self._watched(number, limit)
        self.spent += used
        self.kills += word == "failed"
        return "passed" if word == "endless" and is_cut else word

    def _watched(self, number: int, limit: float) -> tuple[str, float]:
        """The outcome, and the processor time that it took."""
        waited = threading.Event()
        run = subprocess.Popen(
            self.command,
            cwd=self.folder,
            env={**_ENDS_AT_FINDINGS, **os.environ, **self.environment, "MEMSCALE_MUTANT": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if limit < math.inf:
            resource.prlimit(run.pid, resource.RLIMIT_CPU, (math.ceil(limit), math.ceil(limit)))

        def end() -> None:
            waited.set()
            os.killpg(run.pid, signal.SIGKILL)

        timer = threading.Timer(_SECONDS_WAITING + _TIMES_UNCHANGED * min(limit, 60.0), end)
        timer.start()
        assert run.stdout is not None
        failed = any(b"[  FAILED  ]" in line for line in run.stdout)
        timer.cancel()
        if failed:
            os.killpg(run.pid, signal.SIGKILL)
        run.stdout.close()
        _, status, used = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
        if failed:
            return "failed", used.ru_utime
        if waited.is_set() or run.returncode in (-signal.SIGKILL, -signal.SIGXCPU):
            return "endless", used.ru_utime
        return "failed" if run.returncode else "passed", used.ru_utime


class Suites:
    """Builds and runs the tests of some rooms, in a build folder."""

    def __init__(self, build: pathlib.Path) -> None:
        self._build = build
        self._times = build / "unchanged_seconds.json"  # so that a run that goes on does not measure them again
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
            if test.seconds == 0.0:
                self._measure(test, most)
        return sorted(tests, key=lambda test: test.spent / (test.kills + 1))

    def _measure(self, test: Test, most: float) -> None:
        known = json.loads(self._times.read_text()) if self._times.is_file() else {}
        name = f"{test.target}, at most {most} s"
        if name not in known:
            if not test.measure(most):
                sys.exit(f"the unchanged test {test.target} fails")
            known[name] = test.seconds
            self._times.write_text(json.dumps(known))
        test.seconds = known[name]
        test.spent = min(test.seconds, most)


def _copy_sources(copy: pathlib.Path, chosen: list[Mutant]) -> dict[str, Changed]:
    """Brings the copy of what git knows up to date, with all mutants in it. Returns the files that have some."""
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    changed = {}
    for name in files.stdout.decode().splitlines():
        source, target = ROOT / name, copy / name
        if not source.is_file():
            continue
        data = source.read_bytes()
        changes = [
            Change(number + 1, mutant.line, mutant.column, mutant.old, mutant.new)
            for number, mutant in enumerate(chosen)
            if mutant.file == name
        ]
        if changes:
            changed[name] = with_copies(data.decode(), changes)
            data = changed[name].text.encode()
        if name == "src/base/error.c":
            data += SWITCH.encode()
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            shutil.copymode(source, target)
    return changed


def _errors(build: pathlib.Path, changed: dict[str, Changed]) -> set[int]:
    """Builds all of it. The numbers of the mutants that do not compile, from 1."""
    said = subprocess.run(
        ["ninja", "-C", str(build), "-j", "1", "-k", "0"], capture_output=True, text=True, check=False
    )
    numbers = set()
    for file, line in re.findall(r"^[./]*(src/[^:\s]+):(\d+):\d+: error:", said.stdout, re.MULTILINE):
        number = changed[file].at(int(line)) if file in changed else None
        if number is None:
            sys.exit(f"{file}:{line} does not compile")
        numbers.add(number)
    if said.returncode != 0 and not numbers:
        sys.exit("the unchanged sources do not build")
    return numbers


def _set_up(build: pathlib.Path, copy: pathlib.Path, *options: str) -> None:
    if not (build / "build.ninja").is_file():
        code = _run(
            "meson", "setup", str(build), str(copy), "-Dpython=disabled", "-Dserver=disabled", *_QUICK, *options
        )
        if code != 0:
            sys.exit("meson setup failed")


def _build_all(copy: pathlib.Path, chosen: list[Mutant], plain: bool) -> tuple[list[Suites], set[int]]:
    """The builds with every mutant, and the numbers of the mutants that are in none, from 0."""
    _copy_sources(copy, chosen)
    builds = [copy / "build"]
    _set_up(builds[0], copy)
    if not plain:
        builds.append(copy / "asan")
        _set_up(builds[1], copy, "-Db_sanitize=address,undefined", "-Db_lundef=false")
    invalid: set[int] = set()
    for build in builds:
        while True:
            kept = [dataclasses.replace(m, file="") if i in invalid else m for i, m in enumerate(chosen)]
            changed = _copy_sources(copy, kept)
            invalid |= {number - 1 for file in changed.values() for number in file.outside}
            found = _errors(build, changed)
            if not found:
                break
            invalid |= {number - 1 for number in found}
    return [Suites(build) for build in builds], invalid


def _tested(suites: Suites, number: int, rooms: tuple[str, ...], most: float) -> str:
    for test in suites.of(rooms, most):
        word = test.run(number + 1, most)
        if word != "passed":
            return "killed" if word == "failed" else word
    return "survived"


def outcome(number: int, mutant: Mutant, builds: list[Suites], most: float) -> str:
    """Tests a mutant in each build: "killed", "endless" (a test hangs) or "survived"."""
    rooms = ROOMS[mutant.file.split("/")[1]]
    words = (_tested(suites, number, rooms, most) for suites in builds)
    return next((word for word in words if word != "survived"), "survived")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", default=",".join(ROOMS), help="rooms to change, by commas")
    parser.add_argument("--count", type=int, default=500, help="mutants in the sample")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant to run, from 0")
    parser.add_argument("--only", help="numbers of the mutants to run, by commas")
    parser.add_argument("--seconds", type=float, default=math.inf, help="processor time that each test gets at most")
    parser.add_argument("--plain", action="store_true", help="no second run under the sanitizers")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that run at once")
    parser.add_argument("--list", action="store_true", help="only print the sample")
    options = parser.parse_args()
    chosen = sample(options.rooms.split(","), options.count, options.seed)
    if options.list:
        print("\n".join(map(str, chosen)))
        return 0
    os.environ["PATH"] = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    copy = ROOT / "build" / "mutants"
    builds, invalid = _build_all(copy, chosen, options.plain)
    totals = {"killed": 0, "survived": 0, "endless": 0, "invalid": 0}
    only = range(len(chosen)) if options.only is None else sorted(map(int, options.only.split(",")))
    numbers = [number for number in only if options.first <= number < len(chosen)]

    def run(number: int) -> str:
        return "invalid" if number in invalid else outcome(number, chosen[number], builds, options.seconds)

    for room in options.rooms.split(","):
        for suites in builds:
            suites.of(ROOMS[room], options.seconds)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for number, word in zip(numbers, pool.map(run, numbers), strict=True):
            totals[word] += 1
            print(f"{number:4} {word:8} {chosen[number]}", flush=True)
    seen = totals["killed"] + totals["endless"]
    tried = seen + totals["survived"]
    print(
        f"{tried} mutants, {seen} killed ({seen / max(tried, 1):.0%}; {totals['endless']} because a test hung); "
        f"{totals['invalid']} do not compile"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
