"""The graph of a traced training step, as a Python object over the JSON that C wrote.

`memscale.trace()` returns it to users. Sessions pass on the text itself. C computes every number; this
file computes none.
"""

from __future__ import annotations

import json
import os
from typing import Any

from .. import _core

__all__ = ["ModelGraph"]


class ModelGraph:
    """One training step of a model: its layers, and the memory, saved tensors and work of each.

    Args:
        text: the graph's JSON document (docs/formats/graph.schema.json).

    Raises:
        MemScaleError: `text` is not a valid graph.

    Immutable, and safe to read from any thread. Two graphs are equal if their documents are equal, byte
    for byte.

    Example:
        >>> graph = memscale.trace(model, {"input_ids": x, "labels": x})
        >>> graph.save("g.json")  # memscale plan --graph g.json --budget 4.0GB
    """

    __slots__ = ("_document", "_text")

    def __init__(self, text: str) -> None:
        _core.graph_check(text)
        self._text = text
        self._document: dict[str, Any] = json.loads(text)

    @property
    def model(self) -> str:
        """Class name of the traced model."""
        return str(self._document["model"])

    @property
    def signature(self) -> str:
        """Shapes, dtypes and plain values of the arguments, as one line."""
        return str(self._document["signature"])

    @property
    def layers(self) -> list[str]:
        """Qualified names of the layers that plans treat one by one, in order of execution."""
        return [node["name"] for node in self._document["nodes"] if node["kind"] == "layer"]

    def to_json(self) -> str:
        """The document, as C wrote it."""
        return self._text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the document to a file, which ``memscale plan --graph`` reads.

        Raises:
            OSError: `path` can't be written.
            TypeError: `path` is not a path.
        """
        with open(os.fspath(path), "w", encoding="utf-8") as file:
            file.write(self._text)

    def __repr__(self) -> str:
        return f"<ModelGraph {self.model}: {len(self.layers)} layers, {self.signature}>"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, ModelGraph) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)
