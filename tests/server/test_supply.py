"""The program's bill of materials names what it is made of."""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from server_support import PROGRAM, ROOT

BILL = pathlib.Path(PROGRAM).parent / "memscale-server.cdx.json"
OF_THE_SYSTEM = {"c", "m", "dl", "pthread", "asan", "ubsan"}


@pytest.fixture(scope="module")
def document() -> dict:
    if not BILL.exists():
        pytest.skip("the bill of materials is not built")
    return json.loads(BILL.read_text())


def test_the_bill_is_of_this_program(document: dict) -> None:
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    subject = document["metadata"]["component"]
    (digest,) = subject["hashes"]
    assert digest == {"alg": "SHA-256", "content": hashlib.sha256(pathlib.Path(PROGRAM).read_bytes()).hexdigest()}
    told = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout.split()
    assert [subject["name"], subject["version"]] == told


def test_the_bill_names_every_library_that_the_program_loads(document: dict) -> None:
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("readelf is not installed")
    dynamic = subprocess.run([readelf, "-d", PROGRAM], capture_output=True, text=True, check=True).stdout
    loaded = set(re.findall(r"NEEDED.*\[lib(\S+?)\.so", dynamic)) - OF_THE_SYSTEM
    named = {component["name"].removeprefix("lib") for component in document["components"]}
    assert len(loaded) >= 7 and loaded <= named
    assert named - loaded == {"uPlot", "xxhash"}  # built in
    for component in document["components"]:
        assert re.fullmatch(r"\d+(\.\d+)+", component["version"]) and component["licenses"], component


def test_the_same_program_gives_the_same_bill(document: dict, tmp_path: pathlib.Path) -> None:
    libraries = [
        f"{part['name']}={part['version']}={part['licenses'][0]['license']['id']}" for part in document["components"]
    ]
    version = document["metadata"]["component"]["version"]
    output = tmp_path / "bill"
    line = [sys.executable, ROOT / "scripts" / "sbom.py", "--program", PROGRAM, output, version, *reversed(libraries)]
    subprocess.run(line, check=True)
    assert output.read_bytes() == BILL.read_bytes()
