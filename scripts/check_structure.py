"""Checks the structure of the tree; called by test.sh and lint.sh.

The rules: rooms include and import only the rooms they may use; files and functions keep to their longest length;
only the device seam knows kinds of device; no file names a home folder. Prints every place that breaks a rule;
exits with status 1 if there is one.
"""

from __future__ import annotations

import ast
import pathlib
import re
import sys
from collections.abc import Iterator

import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILE_LINES_MAX = 800
EXT_FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 100

# ---- includes and imports ----------------------------------------------------


def read_rooms(path: pathlib.Path) -> dict[str, dict[str, list[str]]]:
    """The table of rooms; a room may use only rooms that stand above it in the file."""
    rooms = tomllib.loads(path.read_text(encoding="utf-8"))
    seen: set[str] = set()
    for room, row in rooms.items():
        later = set(row["may_use"]) - seen
        if later:
            raise SystemExit(f"{path.name}: {room} uses {', '.join(sorted(later))}, which must stand above it")
        seen.add(room)
    return rooms


C_ROOMS = read_rooms(ROOT / "src" / "rooms.toml")
HEADER_ROOMS = {header: room for room, row in C_ROOMS.items() for header in row["headers"]}

PYTHON_ROOMS = read_rooms(ROOT / "python" / "rooms.toml")

# Error handling has one style: steps run `if (rc == MS_OK)`, and only `goto cleanup` may jump, to the one exit.
OTHER_ERROR_STYLE = re.compile(
    r"^[ \t]*(?:goto (?!cleanup;)\w+;|rc = rc [!=]= MS_OK$|rc = rc [!=]= MS_OK \?)", re.MULTILINE
)
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)


def room_of_include(name: str) -> str | None:
    """The room that an include of ours belongs to; None for a system header."""
    first, _, rest = name.partition("/")
    if first == "memscale" and rest.endswith(".h"):
        return HEADER_ROOMS.get(rest.removesuffix(".h"), "no room")
    return first if rest and first in C_ROOMS else None


def check_c_includes(path: pathlib.Path, text: str) -> Iterator[str]:
    """The includes of a C file that its room does not allow."""
    parts = path.relative_to(ROOT).parts
    room = None
    if parts[0] == "src":
        room = parts[1] if len(parts) > 2 else "src"
        if room not in C_ROOMS:
            yield f"{room} is not a room of src/rooms.toml"
            return
    elif parts[0] == "include":
        room = room_of_include(f"memscale/{path.name}")
        if room == "no room":
            yield "is in no room of src/rooms.toml"
            return
    for bracket, name in INCLUDE.findall(text):
        used = room_of_include(name)
        if room and used and used != room and used not in C_ROOMS[room]["may_use"]:
            yield f"{room} must not include {name}"
        if room and (name == "Python.h" or name.startswith(("torch/", "ATen/", "c10/"))):
            yield f"the library must not include {name}"
        if bracket == "<" and used is not None:
            yield f"{name} is ours: include it in quotes"


def imported_modules(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and full name of everything of ours that a module imports, also lazily or for types.

    `from a import b` gives ``a.b``, which may be a module or a name in one.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "memscale")


def package_of(path: pathlib.Path) -> tuple[str, ...]:
    """The package that a module's relative imports start from."""
    return path.relative_to(ROOT / "python").parts[:-1]


def check_python_imports(path: pathlib.Path, tree: ast.AST) -> Iterator[str]:
    """The imports of a module that its room does not allow."""
    own = path.relative_to(ROOT / "python").with_suffix("").parts[1]
    if own not in PYTHON_ROOMS:
        yield f"{own} is not a room of python/rooms.toml"
        return
    for line, name in imported_modules(tree, package_of(path)):
        used = name.split(".")[1] if "." in name else "__init__"
        if used not in PYTHON_ROOMS:  # a name that the package re-exports, such as wrap
            used = "__init__"
        if used != own and used not in PYTHON_ROOMS[own]["may_use"]:
            yield f"line {line}: {own} must not import {used}"


def python_import_graph(package: pathlib.Path) -> dict[str, set[str]]:
    """For each module of a package, the modules of that package that it imports."""
    files = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for _, used in imported_modules(tree, path.relative_to(package.parent).parts[:-1]):
            if used == f"{package.name}._core":  # the extension
                continue
            module = used if used in files else used.rpartition(".")[0]
            if module in files and module != name:
                graph[name].add(module)
    return graph


def ext_include_graph(folder: pathlib.Path) -> dict[str, set[str]]:
    """For each file of the extension, the files that it includes; a source and its header count as one."""
    graph: dict[str, set[str]] = {path.stem: set() for path in folder.glob("*.[ch]")}
    for path in sorted(folder.glob("*.[ch]")):
        used = {name.removesuffix(".h") for _, name in INCLUDE.findall(path.read_text(encoding="utf-8"))}
        graph[path.stem] |= (used & graph.keys()) - {path.stem}
    return graph


def import_circle(graph: dict[str, set[str]]) -> list[str]:
    """The members of one circle of the graph, in order; empty if it has no circle."""
    done: set[str] = set()

    def visit(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for used in sorted(graph[name]):
            circle = visit(used, [*way, name])
            if circle:
                return circle
        done.add(name)
        return []

    return next(filter(None, (visit(name, []) for name in sorted(graph))), [])


# ---- lengths -----------------------------------------------------------------


def long_c_functions(text: str) -> Iterator[tuple[int, int]]:
    """Line and length of every function of more than FUNCTION_LINES_MAX lines.

    In this tree the braces of a function stand alone in the first column; those of types
    and tables never do.
    """
    start = None
    last_blank = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line == "{" and start is None:
            start = last_blank + 1
        elif line == "}" and start is not None:
            if number - start + 1 > FUNCTION_LINES_MAX:
                yield start, number - start + 1
            start = None
        if start is None and (not line or line.startswith(("#", "}", " */", "/*"))):
            last_blank = number


def long_python_functions(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """The same for Python; decorators don't count."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield node.lineno, length


# ---- devices -----------------------------------------------------------------

# The seam: only these places may distinguish kinds of device.
DEVICE_ROOM = ("src/device/", "include/memscale/device.h", "python/memscale/device.py")
# These store the number of the training device, which is -1 for the host; others call ms_hardware_host_is_device().
DEVICE_NUMBERS = ("src/hardware/hardware.c", "src/hardware/hardware_json.c", "src/sim/process.c")
C_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
DEVICE_SIGN = re.compile(r"\bdevice (?:<|>=|==|!=) -?[01]\b")


def c_device_facts(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Lines of C outside the seam that name a kind of device, or recognise one by its number."""
    code = C_COMMENT.sub(lambda comment: "\n" * comment.group().count("\n"), text)
    for number, line in enumerate(code.splitlines(), 1):
        if "cuda" in line.lower():
            yield number, "names a kind of device: ask its row (src/device)"
        if DEVICE_SIGN.search(line) and name not in DEVICE_NUMBERS:
            yield number, "recognises the host by a device's number: call ms_hardware_host_is_device()"


def docstrings_of(tree: ast.AST) -> set[int]:
    """The id() of each node that is a docstring, also of attributes."""
    bodies = [node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list)]
    return {id(node.value) for body in bodies for node in body if isinstance(node, ast.Expr)}


def python_device_facts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The same for Python: identifiers, attributes and strings other than docstrings."""
    documentation = docstrings_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) in documentation:
            continue
        words = [value for _, value in ast.iter_fields(node) if isinstance(value, str)]
        if any("cuda" in word.lower() for word in words):
            yield getattr(node, "lineno", 0), "names a kind of device: ask memscale.device"


def check_devices(path: pathlib.Path, text: str) -> Iterator[str]:
    """Places outside the seam that name or distinguish kinds of device."""
    name = path.relative_to(ROOT).as_posix()
    if name.startswith(DEVICE_ROOM):
        return
    found: Iterator[tuple[int, str]] = iter(())
    if name.startswith(("src/", "ext/", "cli/", "include/")):
        found = c_device_facts(name, text)
    elif name.startswith("python/memscale/"):
        found = python_device_facts(ast.parse(text, name))
    for line, what in found:
        yield f"line {line}: {what}"


# ---- words -------------------------------------------------------------------

FORBIDDEN = [
    (re.compile(r"/(?:(?:home|Users)/(?!me\b|user\b|you\b)|root/|work/)[\w.]"), "a path of one machine"),
    (re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE), "a conflict mark"),
]


def forbidden_words(text: str) -> Iterator[tuple[int, str]]:
    """Line and kind of every forbidden text."""
    for pattern, kind in FORBIDDEN:
        for match in pattern.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, f"{kind}: {match.group().strip()}"


# ---- the whole tree ----------------------------------------------------------

CODE_FOLDERS = ["include", "src", "ext", "cli", "server", "python", "tests", "bench", "scripts"]
TEXT_SUFFIXES = {".c", ".h", ".py", ".sh", ".md", ".build", ".toml", ".json", ".txt", ".yml"}


def tracked_files() -> list[pathlib.Path]:
    """Every text file of the tree, except built and installed ones."""
    files = [p for p in ROOT.iterdir() if p.is_file()]
    for folder in [*CODE_FOLDERS, "docs", ".ci"]:
        files += [p for p in (ROOT / folder).rglob("*") if p.is_file()]
    return sorted(
        p for p in files if p.suffix in TEXT_SUFFIXES and "__pycache__" not in p.parts and "corpus" not in p.parts
    )


def check_code(path: pathlib.Path, text: str) -> Iterator[str]:
    """The places of one file that break the rules for C and Python."""
    lines = text.count("\n")
    most = EXT_FILE_LINES_MAX if path.parent == ROOT / "ext" else FILE_LINES_MAX
    if lines > most:
        yield f"{lines} lines, more than {most}"
    if path.suffix == ".py":
        tree = ast.parse(text, str(path))
        long_functions = list(long_python_functions(tree))
        if (ROOT / "python" / "memscale") in path.parents:
            yield from check_python_imports(path, tree)
    else:
        long_functions = list(long_c_functions(text))
        yield from check_c_includes(path, text)
        for match in OTHER_ERROR_STYLE.finditer(text):
            yield f"line {text.count(chr(10), 0, match.start()) + 1}: {match.group().strip()}: see CONTRIBUTING"
    for line, length in long_functions:
        yield f"line {line}: a function of {length} lines, more than {FUNCTION_LINES_MAX}"


NAMED_SOURCE = re.compile(r"\b([a-z][a-z0-9_]*\.c)\b")  # a placeholder has capitals: step_NAME.c


def check_named_sources(text: str, sources: set[str]) -> Iterator[str]:
    """Comments that name a C file that does not exist."""
    for comment in C_COMMENT.finditer(text):
        for match in NAMED_SOURCE.finditer(comment.group()):
            if match.group(1) not in sources:
                line = text.count("\n", 0, comment.start() + match.start()) + 1
                yield f"line {line}: there is no file {match.group(1)}"


def main() -> int:
    """Prints every broken rule; returns 1 if there is one."""
    problems = 0
    files = tracked_files()
    sources = {path.name for path in files if path.suffix == ".c"}
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        found: list[str] = []
        if path.suffix in {".c", ".h", ".py"}:
            found += check_code(path, text)
            found += check_devices(path, text)
        if path.suffix in {".c", ".h"}:
            found += check_named_sources(text, sources)
        if path != pathlib.Path(__file__).resolve():
            found += [f"line {line}: {what}" for line, what in forbidden_words(text)]
        for message in found:
            print(f"{path.relative_to(ROOT)}: {message}")
        problems += len(found)
    circle = import_circle(python_import_graph(ROOT / "python" / "memscale"))
    if circle:
        print(f"python/memscale: imports in a circle: {' -> '.join(circle)}")
        problems += 1
    circle = import_circle(ext_include_graph(ROOT / "ext"))
    if circle:
        print(f"ext: includes in a circle: {' -> '.join(circle)}")
        problems += 1
    print(f"structure: {len(files)} files, {problems} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
