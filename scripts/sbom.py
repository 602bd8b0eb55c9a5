"""Writes the software bill of materials of a wheel or of memscale-server, CycloneDX 1.5, as JSON.

    sbom.py WHEEL OUTPUT                                                     memscale and what is bundled with it
    sbom.py --program PROGRAM OUTPUT VERSION NAME=VERSION=LICENCE...         a program and what it was built with

It depends on nothing but these: the same wheel or program gives the same document.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
import sys
import zipfile
from collections.abc import Sequence

# Bundled sources, with the file of LICENSES that holds their licence.
_BUNDLED = {"jansson": ("MIT", "jansson.txt"), "xxHash": ("BSD-2-Clause", "xxHash.txt"), "uPlot": ("MIT", "uPlot.txt")}


def bill(wheel: pathlib.Path) -> dict[str, object]:
    """The document of one wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        version = re.search(r"^Version: (.+)$", archive.read(metadata).decode(), re.MULTILINE)
        files = [
            {"type": "file", "name": name, "hashes": [{"alg": "SHA-256", "content": _sha256(archive.read(name))}]}
            for name in sorted(names)
            if ".so" in name or name.endswith("/memscale")
        ]
    found = [(name, *licence) for name, licence in _BUNDLED.items() if any(n.endswith(licence[1]) for n in names)]
    libraries = [
        {"type": "library", "name": name, "licenses": [{"license": {"id": licence}}]} for name, licence, _ in found
    ]
    number = version.group(1) if version else "unknown"
    return _document(
        {"type": "library", "name": "memscale", "version": number, "purl": f"pkg:pypi/memscale@{number}"},
        wheel,
        libraries + files,
    )


def bill_of_program(program: pathlib.Path, version: str, libraries: list[str]) -> dict[str, object]:
    """The document of a program; each library is NAME=VERSION=LICENCE."""
    parts = [library.split("=") for library in sorted(libraries)]
    components = [
        {
            "type": "library",
            "name": name,
            "version": number,
            "licenses": [{"license": {"id": licence}}],
            "purl": f"pkg:generic/{name}@{number}",
        }
        for name, number, licence in parts
    ]
    subject: dict[str, object] = {"type": "application", "name": program.name, "version": version}
    return _document({**subject, "purl": f"pkg:generic/{program.name}@{version}"}, program, components)


def _document(subject: dict[str, object], file: pathlib.Path, components: Sequence[object]) -> dict[str, object]:
    own = {
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "hashes": [{"alg": "SHA-256", "content": _sha256(file.read_bytes())}],
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**subject, **own}},
        "components": components,
    }


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    if sys.argv[1] == "--program":
        output, document = sys.argv[3], bill_of_program(pathlib.Path(sys.argv[2]), sys.argv[4], sys.argv[5:])
    else:
        output, document = sys.argv[2], bill(pathlib.Path(sys.argv[1]))
    pathlib.Path(output).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
