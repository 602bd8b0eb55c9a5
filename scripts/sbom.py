"""Writes the software bill of materials of a wheel, CycloneDX 1.5, as JSON: memscale and what is bundled with it.

    sbom.py WHEEL OUTPUT

It depends on nothing but the wheel's bytes: the same wheel gives the same document.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
import sys
import zipfile

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
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "name": "memscale",
                "version": version.group(1) if version else "unknown",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "hashes": [{"alg": "SHA-256", "content": _sha256(wheel.read_bytes())}],
                "purl": f"pkg:pypi/memscale@{version.group(1) if version else 'unknown'}",
            }
        },
        "components": libraries + files,
    }


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    pathlib.Path(sys.argv[2]).write_text(json.dumps(bill(pathlib.Path(sys.argv[1])), indent=1) + "\n", encoding="utf-8")
