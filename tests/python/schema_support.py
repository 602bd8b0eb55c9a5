"""Validators for the document formats of docs/formats. A schema may refer to another by its file's name."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jsonschema
import referencing
from referencing.jsonschema import DRAFT202012

FORMATS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "formats"


def schema(name: str) -> dict[str, Any]:
    """The schema of the format `name`, such as "plan"; asserts that it is a valid schema."""
    found = json.loads((FORMATS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(found)
    return found


def validator(name: str) -> jsonschema.Draft202012Validator:
    """A validator for documents of the format `name`."""
    resources = [
        (path.name, DRAFT202012.create_resource(json.loads(path.read_text()))) for path in FORMATS.glob("*.json")
    ]
    return jsonschema.Draft202012Validator(schema(name), registry=referencing.Registry().with_resources(resources))
