"""Validators of the documents that docs/formats describes; a schema may refer to another by its file's name."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jsonschema
import referencing
from referencing.jsonschema import DRAFT202012

FORMATS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "formats"


def schema(name: str) -> dict[str, Any]:
    """The schema of `name` ("plan"), checked."""
    found = json.loads((FORMATS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def validator(name: str) -> jsonschema.Draft202012Validator:
    """Judges documents of the format `name`."""
    resources = [
        (path.name, DRAFT202012.create_resource(json.loads(path.read_text()))) for path in FORMATS.glob("*.json")
    ]
    return jsonschema.Draft202012Validator(schema(name), registry=referencing.Registry().with_resources(resources))
