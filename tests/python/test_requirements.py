"""The locked lists of scripts/locked agree with scripts/requirements*.txt, and installing from them tells whether the
index has those very files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from time_limits import HANG_SECONDS

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
LISTS = sorted(path.name for path in SCRIPTS.glob("requirements*.txt"))


def wanted(name: str) -> list[Requirement]:
    lines = [line.partition("#")[0].strip() for line in (SCRIPTS / name).read_text().splitlines()]
    return [Requirement(line) for line in lines if line]


def locked(name: str) -> list[tuple[Requirement, int]]:
    """Each pinned package, with its number of hashes."""
    entries = re.split(r"\n(?=[a-zA-Z0-9])", "\n" + (SCRIPTS / "locked" / name).read_text())[1:]
    return [(Requirement(entry.partition("\\")[0].strip()), entry.count("--hash=sha256:")) for entry in entries]


@pytest.mark.parametrize("name", LISTS)
def test_every_requirement_is_locked_at_a_version_that_it_allows(name):
    pins = [pin for pin, _ in locked(name)]
    for requirement in wanted(name):
        found = [pin for pin in pins if canonicalize_name(pin.name) == canonicalize_name(requirement.name)]
        assert found, f"{requirement.name} is not locked: run scripts/lock.sh"
        for pin in found:
            (version,) = pin.specifier
            assert version.operator == "==" and version.version in requirement.specifier


@pytest.mark.parametrize("name", LISTS)
def test_every_file_has_a_hash_and_no_index_is_named(name):
    text = (SCRIPTS / "locked" / name).read_text()
    assert locked(name) and all(hashes > 0 for _, hashes in locked(name))
    assert "://" not in text and "index" not in text.replace("indexes", "")
    assert not any(canonicalize_name(pin.name) == "torch" for pin, _ in locked(name))


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("python", ["3.11.2", "3.12.0", "3.13.0", "3.14.0"])
def test_each_python_gets_one_version_of_a_package(name, python):
    environment = {
        **{
            "python_full_version": python,
            "python_version": python.rpartition(".")[0],
            "implementation_name": "cpython",
        },
        **{"platform_python_implementation": "CPython", "sys_platform": "linux", "os_name": "posix"},
        **{"platform_machine": "x86_64", "platform_system": "Linux", "extra": ""},
    }
    chosen = [
        canonicalize_name(pin.name)
        for pin, _ in locked(name)
        if pin.marker is None or Marker(str(pin.marker)).evaluate(environment)
    ]
    assert sorted(chosen) == sorted(set(chosen))
    assert {canonicalize_name(requirement.name) for requirement in wanted(name)} <= set(chosen)


@pytest.fixture
def copy(tmp_path):
    """A project whose only requirement lies in a folder."""
    files, scripts = tmp_path / "files", tmp_path / "scripts"
    files.mkdir()
    (scripts / "locked").mkdir(parents=True)
    shutil.copy(SCRIPTS / "common.sh", scripts)
    code = (
        "import zipfile; w = zipfile.ZipFile('nasty_pin-1.0-py3-none-any.whl', 'w');"
        "w.writestr('nasty_pin.py', ''); d = 'nasty_pin-1.0.dist-info/';"
        "w.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: nasty-pin\\nVersion: 1.0\\n');"
        "w.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n');"
        "w.writestr(d + 'RECORD', ''); w.close()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=files, check=True)
    (scripts / "requirements.txt").write_text("nasty-pin == 1.0\n")
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", tmp_path / ".venv"], check=True)
    return tmp_path


def install(copy: Path, digest: str, **values: str) -> subprocess.CompletedProcess[str]:
    (copy / "scripts/locked/requirements.txt").write_text(f"nasty-pin==1.0 --hash=sha256:{digest}\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    return subprocess.run(
        ["bash", "-euc", '. scripts/common.sh; install_requirements "" --no-index --find-links files'],
        cwd=copy,
        env={**environment, "PIP_CONFIG_FILE": os.devnull, **values},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


def test_the_locked_files_are_installed_and_others_are_told_or_refused(copy):
    import hashlib

    (wheel,) = (copy / "files").iterdir()
    other = "0" * 64
    refused = install(copy, other, LOCKED="only")
    assert refused.returncode == 1 and "LOCKED=only" in refused.stderr
    told = install(copy, other)
    assert told.returncode == 0 and "not locked" in told.stdout and "without hashes" in told.stdout
    quiet = install(copy, hashlib.sha256(wheel.read_bytes()).hexdigest(), LOCKED="only")
    assert quiet.returncode == 0 and quiet.stdout == "", quiet.stderr
