"""Every script of examples/ runs as it is and prints a line before and after, with the same loss."""

from __future__ import annotations

import pathlib
import re

import pytest
from forked_python import run_python

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples"
NEEDS = {
    "trl_sft": ("trl", "datasets"), "peft_lora": ("peft",), "lightning_fit": ("lightning",),
    "hf_trainer": ("accelerate",), "vision": ("transformers",), "audio": ("transformers",),
}  # fmt: skip
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "tell")


def test_all_are_short_and_the_page_lists_them() -> None:
    assert len(SCRIPTS) == 11
    listed = re.findall(r"\[(\w+)\.py\]", (FOLDER / "README.md").read_text())
    assert sorted(listed) == SCRIPTS
    for name in SCRIPTS:
        assert len((FOLDER / f"{name}.py").read_text().splitlines()) <= 55, name


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_prints_before_and_after(name: str, tmp_path: pathlib.Path) -> None:
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module)
    done = run_python(FOLDER / f"{name}.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = re.findall(r"^.*? loss ([\d.]+)", done.stdout, re.MULTILINE)
    assert before == after, done.stdout
    assert "now" in done.stdout or "ran again" in done.stdout
