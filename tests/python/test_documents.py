"""The examples of README, guide and docstrings run, every link has a target, and the reference has every public
name. `make docs` checks that the site builds without a warning."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from forked_python import run_python

import memscale
from memscale.execution import notices

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/guide.md")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

# ---- examples ------------------------------------------------------------------------------


def _run(what: str, folder: pathlib.Path) -> list[dict[str, str | None]]:
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    done = run_python(
        pathlib.Path(__file__).with_name("documents_case.py"), what, folder, env=environment, timeout=1200
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"where"')]


@pytest.mark.parametrize(
    ("what", "least"), [("README.md", 8), ("docs/guide.md", 15), ("docs/compile.md", 4), ("docstrings", 14)]
)
def test_every_example_runs(what: str, least: int, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("transformers")
    told = _run(what, tmp_path)
    failed = [f"{one['where']}\n{one['error']}" for one in told if one["error"] is not None]
    assert not failed, "\n".join(failed)
    assert len(told) >= least  # a lower bound, so that a search that finds none fails


# ---- links ---------------------------------------------------------------------------------


def _anchors(text: str) -> set[str]:
    without_code = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", without_code, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


MORE_PAGES = (
    "docs/compile.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "docs/index.md",
    "docs/api/python.md",
    "docs/api/c.md",
)


@pytest.mark.parametrize("page", [*PAGES, *MORE_PAGES, "docs/formats/README.md", "docs/results/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    for target in LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if target.startswith(("http://", "https://")):
            continue
        file, _, fragment = target.partition("#")
        goal = (path.parent / file).resolve() if file else path
        assert goal.exists(), f"{page}: {target}"
        if fragment:
            assert fragment in _anchors(goal.read_text(encoding="utf-8")), f"{page}: {target}"


def test_the_guide_goes_by_task_and_is_led_to_the_reference() -> None:
    guide = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
    for task in (
        "Fit a model",
        "Choose a budget",
        "Read the plan",
        "Hugging Face Trainer",
        "Lightning",
        "Several processes",
        "CPU only",
        "The disk tier",
        "Troubleshooting",
    ):
        assert re.search(rf"^## .*{re.escape(task)}", guide, re.MULTILINE), task
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert "api/python.md" in text and "api/c.md" in text


# ---- troubleshooting -----------------------------------------------------------------------


def _texts(node: ast.AST) -> list[str]:
    """The constant pieces of a logged text."""
    if isinstance(node, ast.Constant):
        return re.split(r"%[sdr]", str(node.value))
    return [str(part.value) for part in getattr(node, "values", ()) if isinstance(part, ast.Constant)]


def _warnings() -> Iterator[tuple[str, list[str]]]:
    """Every warning in Python and C: its place and its constant pieces."""
    for path in sorted((ROOT / "python/memscale").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            arguments = {"warning": node.args[:1], "say": node.args[2:3]}.get(node.func.attr, [])
            is_warning = node.func.attr == "warning" or "WARNING" in ast.unparse(node)
            for argument in arguments if is_warning else ():
                yield f"{path.name}:{node.lineno}", _texts(argument)
    for obstacle, text in notices._OBSTACLES.items():
        yield f"notices.py: {obstacle}", re.split(r"\{\w+\}", text)
    for path in sorted((ROOT / "src").rglob("*.c")):
        text = path.read_text(encoding="utf-8")
        for literal in re.findall(r'MS_LOG_WARNING,\s*"([^"]*)"', text):
            yield path.name, re.split(r"%(?:\"? ?PRI\w+|\w)", literal)


def test_every_warning_is_in_the_guides_troubleshooting() -> None:
    guide = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
    told = guide[guide.index("## Troubleshooting") :]
    found = [(where, [piece.strip() for piece in pieces if len(piece.strip()) >= 12]) for where, pieces in _warnings()]
    missing = [
        f"{where}: {pieces}"
        for where, pieces in found
        if pieces and not any(piece[:25] in told or piece[-18:] in told for piece in pieces)
    ]
    assert not missing, "\n".join(missing)
    assert len(found) > 30


# ---- reference -----------------------------------------------------------------------------


def _names_shown() -> set[str]:
    """The names that the pages of docs/api/python document, as users write them."""
    shown: set[str] = set()
    for path in (ROOT / "docs/api/python").glob("*.md"):
        module = ""
        for directive, name in re.findall(r"^\.\. (\w+):: (\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE):
            if directive == "currentmodule":
                module = name + "."
            elif directive == "automodule":
                shown |= {f"{name}.{member}" for member in importlib.import_module(name).__all__}
            else:
                shown.add(module + name)
    return shown


def test_everything_public_of_python_is_in_the_reference() -> None:
    pytest.importorskip("torch")
    packages = ("optim", "policy", "techniques")
    names = [f"memscale.{name}" for name in memscale.__all__ if not name.startswith("__") and name not in packages]
    for package in (*packages, "autotuning"):
        names += [f"memscale.{package}.{name}" for name in importlib.import_module(f"memscale.{package}").__all__]
    shown = _names_shown()
    # The pages document each name once: under its package or under memscale.
    short = {name.rsplit(".", 1)[-1] for name in shown}
    assert not [name for name in names if name not in shown and name.rsplit(".", 1)[-1] not in short]


HEADER = """\
/*
 * made.h - what a header may hold.
 *
 *   left    right
 */
#ifndef MEMSCALE_MADE_H

/* ---- one section ------ */

/* Both. */
MS_API int ms_one(void);
MS_API int ms_two(void);

MS_API int ms_three(void);

/* The table. */
#define MS_ROW_TABLE(X) \\
    X(A, "a", "first")

enum {
#define MS_ROW_ENUM(id, name, text) MS_ROW_##id,
    MS_ROW_TABLE(MS_ROW_ENUM)
#undef MS_ROW_ENUM
};

/* A struct. */
typedef struct ms_pair {
    int one; /* behind */
} ms_pair;
"""


def test_doxygen_is_shown_every_comment_and_no_other_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "made.h"
    path.write_text(HEADER, encoding="utf-8")
    command = [sys.executable, str(ROOT / "docs/extensions/header_filter.py"), str(path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) == len(HEADER.splitlines())  # so that warnings have the header's line numbers
    assert lines[:2] == ["/** @file", " * What a header may hold."]
    assert " *       left    right" in lines  # indented enough to be kept as it is
    assert "/** Both. */" in lines and "/* ---- one section ------ */" not in lines
    assert "/** Described above. */ MS_API int ms_two(void);" in lines
    assert "MS_API int ms_three(void);" in lines  # has no comment, so Doxygen warns
    assert "/** Described above. */ enum {" in lines
    assert "#define MS_ROW_ENUM(id, name, text) MS_ROW_##id, /**< name: text */" in lines
    assert "    int one; /**< behind */" in lines
