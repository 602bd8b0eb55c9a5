"""The examples of README, guide and docstrings run, links lead somewhere, and the reference is what
docstrings and headers say."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

import memscale
from memscale.execution import notices

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/guide.md")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

# ---- examples ------------------------------------------------------------------------------


def _run(what: str, folder: pathlib.Path) -> list[dict[str, str | None]]:
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(pathlib.Path(__file__).with_name("documents_case.py")), what, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"where"')]


@pytest.mark.parametrize(("what", "least"), [("README.md", 8), ("docs/guide.md", 15), ("docstrings", 14)])
def test_every_example_runs(what: str, least: int, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("transformers")
    told = _run(what, tmp_path)
    failed = [f"{one['where']}\n{one['error']}" for one in told if one["error"] is not None]
    assert not failed, "\n".join(failed)
    assert len(told) >= least  # so many are there that were found when this was written


# ---- links ---------------------------------------------------------------------------------


def _anchors(text: str) -> set[str]:
    without_code = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", without_code, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "ARCHITECTURE.md", "docs/api/python.md", "docs/api/c.md"])
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
    """The constant pieces of a text that is logged."""
    if isinstance(node, ast.Constant):
        return re.split(r"%[sdr]", str(node.value))
    return [str(part.value) for part in getattr(node, "values", ()) if isinstance(part, ast.Constant)]


def _warnings() -> Iterator[tuple[str, list[str]]]:
    """Every warning in Python and C: where it is, and its constant pieces."""
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


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_reference", ROOT / "scripts" / "api_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_what_docstrings_and_headers_say(reference: ModuleType) -> None:
    assert reference.stale_pages(ROOT) == [], "run python3 scripts/api_reference.py"


def test_a_changed_docstring_or_header_makes_the_reference_stale(reference: ModuleType, tmp_path: pathlib.Path) -> None:
    for folder in ("python", "include", "docs/api"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    assert reference.stale_pages(tmp_path) == []
    for file, old, page in (
        ("python/memscale/api.py", "Plans and applies", "docs/api/python.md"),
        ("include/memscale/plan.h", "The replay is the proof", "docs/api/c.md"),
    ):
        path = tmp_path / file
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, "Something else"), encoding="utf-8")
        assert reference.stale_pages(tmp_path) == [page]
        path.write_text(text, encoding="utf-8")


def test_everything_public_is_in_the_reference(reference: ModuleType) -> None:
    page = reference.python_reference(ROOT)
    packages = ("optim", "policy", "techniques")
    names = [name for name in memscale.__all__ if not name.startswith("__") and name not in packages]
    for package in (*packages, "autotuning"):
        module = importlib.import_module(f"memscale.{package}")
        names += [f"{package}.{name}" for name in module.__all__ if not hasattr(memscale, name)]
    missing = [name for name in names if f"### `memscale.{name}`" not in page]
    assert not missing
    whole = reference.c_reference(ROOT)
    for header in (ROOT / "include/memscale").glob("*.h"):
        for function in re.findall(r"^MS_API .*?\b(ms_\w+)\(", header.read_text(encoding="utf-8"), re.MULTILINE):
            assert f"{function}(" in whole, f"{header.name}: {function}"
