"""Writes docs/api/python.md and docs/api/c.md from docstrings and from the public headers.

``python3 scripts/api_reference.py`` writes both, ``--check`` says which of them is not what
the sources say and exits with status 1. Reads the sources only: nothing is imported or
built. Called by hand, by check_structure.py and by the tests.
"""

from __future__ import annotations

import argparse
import ast
import pathlib
import re
import sys
import textwrap
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = 96

# ---- what is in the Python reference ----------------------------------------------

# Title, names under `memscale.` as users write them, with the file that each is defined in.
PYTHON_PAGES: list[tuple[str, list[tuple[str, str]]]] = [
    (
        "Wrapping and planning",
        [
            ("wrap", "api"),
            ("detach", "api"),
            ("optimize", "api"),
            ("apply_all_optimizations", "api"),
            ("plan", "api"),
            ("trace", "api"),
        ],
    ),
    (
        "Configuration",
        [("Config", "config"), ("OptimizationMode", "config"), ("AsyncOffloadConfig", "config")],
    ),
    (
        "The pipeline",
        [
            ("core.executor.Executor", "execution/executor"),
            ("core.execution_plan.ExecutionPlan", "planning/execution_plan"),
            ("core.model_graph.ModelGraph", "tracing/model_graph"),
            ("core.profiler.MemoryProfiler", "tracing/profiler"),
            ("core.decision_engine.DecisionEngine", "planning/decision_engine"),
        ],
    ),
    (
        "Before a run",
        [
            ("OOMPredictor", "autotuning/predictor"),
            ("autotuning.Prediction", "autotuning/predictor"),
            ("estimate_savings", "autotuning/predictor"),
            ("autotuning.Savings", "autotuning/predictor"),
            ("AutoTuner", "autotuning/tuner"),
            ("autotuning.TuningResult", "autotuning/tuner"),
            ("autotuning.Trial", "autotuning/tuner"),
        ],
    ),
    ("Optimizers", [("optim.AdamW", "optim/adamw"), ("optim.AdamW8bit", "optim/adamw")]),
    (
        "Loss heads",
        [
            ("techniques.cross_entropy", "techniques/loss_head"),
            ("techniques.linear_cross_entropy", "techniques/linear_head"),
        ],
    ),
    ("Integrations", [("integrations.lightning.MemScaleCallback", "integrations/lightning")]),
    (
        "Policy",
        [
            ("policy.StrategyContext", "policy/decision"),
            ("policy.StrategyDecision", "policy/decision"),
            ("policy.plan_by_policy", "policy/decision"),
            ("policy.TrainedPolicy", "policy/artifact"),
            ("policy.load_policy", "policy/artifact"),
            ("policy.seal_policy", "policy/artifact"),
        ],
    ),
    (
        "Telemetry",
        [
            ("enable_telemetry", "observability/telemetry"),
            ("disable_telemetry", "observability/telemetry"),
        ],
    ),
    (
        "Errors",
        [
            (name, "errors")
            for name in (
                "MemScaleError",
                "ConfigError",
                "ProfileError",
                "BudgetInfeasibleError",
                "OffloadError",
                "IntegrationError",
            )
        ],
    ),
]

SECTIONS = {"Args", "Attributes", "Example", "Raises", "Returns", "Yields"}
LISTS = {"Args", "Attributes", "Raises"}
GENERATED = "<!-- Written by scripts/api_reference.py from the sources; change those and run it again. -->"

Function = ast.FunctionDef | ast.AsyncFunctionDef

# ---- docstrings ---------------------------------------------------------------------


def prose(text: str) -> str:
    """A paragraph of a docstring or comment on one line, with the code marks of Markdown."""
    return " ".join(text.split()).replace("``", "`")


def paragraphs(lines: list[str]) -> Iterator[str]:
    """Runs of lines between blank ones."""
    current: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            current.append(line)
        elif current:
            yield "\n".join(current)
            current = []


def items(lines: list[str]) -> Iterator[str]:
    """Entries of a list section: a line that is indented less than its continuation."""
    text = textwrap.dedent("\n".join(lines)).strip()
    current = ""
    for line in text.splitlines():
        if line and not line.startswith(" "):
            if current:
                yield current
            current = line
        else:
            current += " " + line.strip()
    if current:
        yield current


def item(text: str) -> str:
    """One entry of a list section as an item of Markdown, its name marked as code."""
    name, colon, rest = text.partition(": ")
    if colon and re.fullmatch(r"[\w., *]+", name):
        return f"- {', '.join(f'`{part.strip()}`' for part in name.split(','))}: {prose(rest)}"
    return f"- {prose(text)}"


def section(title: str, lines: list[str]) -> Iterator[str]:
    """A named part of a docstring as Markdown."""
    if title == "Example":
        yield "```pycon\n" + textwrap.dedent("\n".join(lines)).strip() + "\n```"
    elif title in LISTS:
        yield f"**{title}**\n\n" + "\n".join(item(text) for text in items(lines))
    else:
        yield f"**{title}**"
        yield from (prose(text) for text in paragraphs(lines))


def docstring(node: ast.AST) -> Iterator[str]:
    """Blocks of Markdown of a definition's docstring."""
    text = ast.get_docstring(node)  # type: ignore[arg-type]
    title: str | None = None
    lines: list[str] = []

    def flush() -> Iterator[str]:
        if title is not None:
            yield from section(title, lines)
        else:
            yield from (prose(part) for part in paragraphs(lines))

    for line in (text or "").splitlines():
        word = line.rstrip(":")
        begins = line.endswith(":") and word in SECTIONS
        ends = title is not None and line and not line.startswith(" ")
        if begins or ends:
            yield from flush()
            title, lines = (word, []) if begins else (None, [line])
        else:
            lines.append(line)
    yield from flush()


# ---- Python ---------------------------------------------------------------------------


def signature(name: str, parts: list[str], result: str = "") -> str:
    """A call as code, on several lines where one would be long."""
    line = f"{name}({', '.join(parts)}){result}"
    if len(line) <= COLUMNS:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def parameters(function: Function, is_method: bool) -> list[str]:
    """A function's parameters as they are written, `self` left out."""
    arguments = function.args
    bare = ast.arguments(posonlyargs=[], args=[], vararg=None, kwonlyargs=[], kw_defaults=[], kwarg=None, defaults=[])
    given = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(given) - len(arguments.defaults))
    defaults += arguments.defaults
    found: list[str] = []
    for argument, default in list(zip(given, defaults, strict=True))[1 if is_method else 0 :]:
        found.append(_parameter(argument, default, bare))
    if arguments.vararg is not None:
        found.append("*" + _parameter(arguments.vararg, None, bare))
    elif arguments.kwonlyargs:
        found.append("*")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(_parameter(argument, default, bare))
    if arguments.kwarg is not None:
        found.append("**" + _parameter(arguments.kwarg, None, bare))
    return found


def _parameter(argument: ast.arg, default: ast.expr | None, bare: ast.arguments) -> str:
    text = argument.arg
    if argument.annotation is not None:
        text += f": {ast.unparse(argument.annotation)}"
    if default is not None:
        text += (" = " if argument.annotation is not None else "=") + ast.unparse(default)
    return text


def decorators(node: ast.AST) -> set[str]:
    """Names of what a definition is decorated with."""
    return {ast.unparse(one).split("(")[0] for one in getattr(node, "decorator_list", [])}


def function_blocks(name: str, function: Function, is_method: bool, level: int) -> Iterator[str]:
    """Heading, signature and docstring of one function, method or property."""
    short = name.rsplit(".", 1)[-1] if is_method else name
    yield f"{'#' * level} `{short}`"
    if decorators(function) & {"property", "functools.cached_property"}:
        result = f": {ast.unparse(function.returns)}" if function.returns is not None else ""
        yield f"```python\n{short}{result}  # attribute\n```"
    else:
        result = f" -> {ast.unparse(function.returns)}" if function.returns is not None else ""
        is_static = "staticmethod" in decorators(function)
        call = signature(short, parameters(function, is_method and not is_static), result)
        yield f"```python\n{call}\n```"
    yield from docstring(function)


def class_call(name: str, node: ast.ClassDef) -> str | None:
    """How an object is made: the parameters of `__init__`, or a dataclass's fields."""
    if any("Enum" in ast.unparse(base) for base in node.bases):
        return None
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            return signature(name, parameters(inner, True))
    if not decorators(node) & {"dataclass", "dataclasses.dataclass"}:
        return None
    fields = [inner for inner in node.body if isinstance(inner, ast.AnnAssign)]
    return signature(name, [ast.unparse(field) for field in fields])


def members(node: ast.ClassDef) -> Iterator[str]:
    """Members of an enumeration with the text below each."""
    for value, text in zip(node.body, node.body[1:], strict=False):
        is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(value, ast.Assign) and is_text:
            yield f"- `{ast.unparse(value)}`: {prose(str(text.value.value))}"  # type: ignore[attr-defined]


def public_methods(node: ast.ClassDef) -> Iterator[Function]:
    """Methods and properties that users may call and that say what they do."""
    for inner in node.body:
        is_function = isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and not inner.name.startswith("_") and ast.get_docstring(inner):  # type: ignore[union-attr]
            yield inner  # type: ignore[misc]


def class_blocks(name: str, node: ast.ClassDef) -> Iterator[str]:
    """Heading, call, docstring, members and methods of one class."""
    yield f"### `memscale.{name}`"
    call = class_call(name.rsplit(".", 1)[-1], node)
    if call is not None:
        yield f"```python\n{call}\n```"
    yield from docstring(node)
    if any("Enum" in ast.unparse(base) for base in node.bases):
        yield "\n".join(members(node))
    for method in public_methods(node):
        yield from function_blocks(f"{name}.{method.name}", method, True, 4)


def definition(root: pathlib.Path, file: str, name: str) -> ast.ClassDef | Function:
    """The class or function of that name in a module of the package.

    Raises:
        LookupError: there is none, or it has no docstring.
    """
    path = root / "python" / "memscale" / f"{file}.py"
    for node in ast.parse(path.read_text(encoding="utf-8"), str(path)).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            if not ast.get_docstring(node):
                raise LookupError(f"{file}.py: {name} has no docstring")
            return node
    raise LookupError(f"{file}.py: there is no {name}")


def anchor(heading: str) -> str:
    """The fragment that renderers give to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def python_reference(root: pathlib.Path = ROOT) -> str:
    """The page of everything public in Python."""
    blocks = [
        "# Python reference",
        GENERATED,
        "What users call, as its docstrings say; the [guide](../guide.md) goes by task, and the C library has a "
        "[page of its own](c.md). GB is 1e9 bytes.",
    ]
    body: list[str] = []
    for title, names in PYTHON_PAGES:
        links = [f"[`{name}`](#{anchor('memscale.' + name)})" for name, _ in names]
        blocks.append(f"- [{title}](#{anchor(title)}): {', '.join(links)}")
        body.append(f"## {title}")
        for name, file in names:
            node = definition(root, file, name.rsplit(".", 1)[-1])
            if isinstance(node, ast.ClassDef):
                body.extend(class_blocks(name, node))
            else:
                body.extend(function_blocks(f"memscale.{name}", node, False, 3))
    head, contents = blocks[:3], "\n".join(blocks[3:])
    return "\n\n".join([*head, contents, *body]) + "\n"


# ---- C ---------------------------------------------------------------------------------

COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)
HEADING = re.compile(r"/\* -{2,} (.*?) -{2,} ?\*/$")
# What every header has and no reader needs.
PLUMBING = re.compile(
    r"^#ifndef MEMSCALE_\w+_H\n#define MEMSCALE_\w+_H\n|^#ifdef __cplusplus\n(?:extern \"C\" \{|\})\n#endif\n?"
    r"|^#endif\s*\Z|^#include .*\n",
    re.MULTILINE,
)


def comment_lines(comment: str) -> list[str]:
    """The text of a comment without its frame of stars."""
    inner = COMMENT.fullmatch(comment.strip())
    text = inner.group(1) if inner is not None else ""
    lines = [re.sub(r"^\s*\* ?", "", line) if number else line for number, line in enumerate(text.splitlines())]
    return textwrap.dedent("\n".join([lines[0].strip(), *lines[1:]]) if lines else "").splitlines()


def comment_blocks(comment: str) -> Iterator[str]:
    """A comment as Markdown: lists and tables that are laid out by hand keep their layout."""
    for paragraph in paragraphs(comment_lines(comment)):
        lines = textwrap.dedent(paragraph).splitlines()
        if lines[0].startswith("- "):
            yield "\n".join(prose(text) for text in items(lines))
        elif any(line.startswith((" ", "- ")) for line in lines):
            yield "```text\n" + "\n".join(lines) + "\n```"
        else:
            yield prose(paragraph)


def chunks(text: str) -> Iterator[str]:
    """Runs of lines between blank ones outside of braces, comments and macros."""
    current: list[str] = []
    depth, in_comment = 0, False
    for line in [*text.splitlines(), ""]:
        if not line.strip() and depth == 0 and not in_comment:
            if current:
                yield "\n".join(current)
            current = []
            continue
        current.append(line)
        code = COMMENT.sub("", line)
        in_comment = "/*" in code or (in_comment and "*/" not in code)
        if not in_comment:
            depth += code.count("{") - code.count("}")


def chunk_blocks(chunk: str) -> Iterator[str]:
    """One run of a header as Markdown: heading, or comment and the declarations it is about."""
    heading = HEADING.fullmatch(chunk.strip())
    if heading is not None:
        title = heading.group(1).strip()
        yield f"### {title[0].upper()}{title[1:]}"
        return
    leading = re.match(r"/\*.*?\*/(?=\n|$)\n?", chunk, re.DOTALL)
    code = chunk
    if leading is not None:
        yield from comment_blocks(leading.group().strip())
        code = chunk[leading.end() :]
    if code.strip():
        yield f"```c\n{code.strip()}\n```"


def header_blocks(path: pathlib.Path) -> Iterator[str]:
    """One header as Markdown."""
    text = path.read_text(encoding="utf-8")
    opening = COMMENT.match(text)
    yield f"## memscale/{path.name}"
    if opening is not None:
        first, *rest = comment_blocks(re.sub(rf"\b{re.escape(path.name)} - ", "", opening.group(), count=1))
        yield first[0].upper() + first[1:]
        yield from rest
        text = text[opening.end() :]
    for chunk in chunks(PLUMBING.sub("", text)):
        yield from chunk_blocks(chunk)


def c_reference(root: pathlib.Path = ROOT) -> str:
    """The page of every public header."""
    headers = sorted((root / "include" / "memscale").glob("*.h"))
    headers.sort(key=lambda path: path.name != "base.h")  # its conventions hold for all
    links = ", ".join(f"[{path.name}](#{anchor('memscale/' + path.name)})" for path in headers)
    blocks = [
        "# C reference",
        GENERATED,
        "The public headers of libmemscale: every declaration and what it promises. Conventions that all of them "
        'share stand first, in base.h. `#include "memscale/pipeline.h"` and link with `-lmemscale`.',
        links,
    ]
    for path in headers:
        blocks.extend(header_blocks(path))
    return "\n\n".join(blocks) + "\n"


# ---- the pages --------------------------------------------------------------------------

PAGES = {"docs/api/python.md": python_reference, "docs/api/c.md": c_reference}


def stale_pages(root: pathlib.Path = ROOT) -> list[str]:
    """Pages, by path below `root`, that are missing or not what the sources say."""
    found = []
    for name, make in PAGES.items():
        path = root / name
        if not path.exists() or path.read_text(encoding="utf-8") != make(root):
            found.append(name)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Writes docs/api from docstrings and public headers.")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where a page is stale")
    if parser.parse_args(arguments).check:
        stale = stale_pages()
        for name in stale:
            print(f"{name} is not what the sources say: run python3 scripts/api_reference.py")
        return 1 if stale else 0
    for name, make in PAGES.items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make(), encoding="utf-8")
        print(f"{name}: {len(path.read_text(encoding='utf-8').splitlines())} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
