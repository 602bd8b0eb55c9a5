"""The execution plan, as a Python object over the JSON that C wrote.

`memscale.plan()`, `wrap()` and `DecisionEngine` make plans. The executor keeps its plan as
``executor.plan``. C computes every number and text; this file computes none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypedDict

from .. import _core

__all__ = ["ExecutionPlan"]


class _Predicted(TypedDict):
    peak_bytes: int
    step_ns: int


class _Settings(TypedDict):
    ceiling_bytes: int


class _Pressure(TypedDict):
    allowed_bytes: int
    budget_given: bool


class _Always(TypedDict):
    model: str
    predicted: _Predicted
    unoptimized: _Predicted
    smallest_budget_bytes: int | None
    settings: _Settings
    pressure: _Pressure
    skipped: bool
    over_target: bool
    decision_source: str
    entries: list[dict[str, Any]]
    step_options: list[dict[str, Any]]


class _Document(_Always, total=False):
    """The part of docs/formats/plan.schema.json that this file reads."""

    reserve_bytes: int
    state_moved_bytes: int
    explanation: Mapping[str, Any]


class ExecutionPlan:
    """The technique of every layer, its predicted memory and time, and the reason.

    Args:
        text: the plan's JSON document (docs/formats/plan.schema.json).
        hardware: the hardware's JSON document, shown in the table; may be None.

    Raises:
        MemScaleError: `text` is not a plan.
        TypeError: `text` or `hardware` is not a str.

    Immutable, and safe to read from any thread. Two plans are equal if their documents are equal, byte
    for byte.

    Example:
        >>> plan = memscale.plan(model, sample_input, Config(memory_budget_gb=4.0))
        >>> print(plan)
        >>> print(plan.explain("transformer.h.0"))
    """

    __slots__ = ("_document", "_hardware", "_text")

    def __init__(self, text: str, hardware: str | None = None) -> None:
        if hardware is not None and not isinstance(hardware, str):
            raise TypeError(f"hardware must be a str or None, not {type(hardware).__qualname__}")
        _core.plan_explain(text, -1)  # C reads it strictly and raises if it is not a plan
        self._text = text
        self._hardware = hardware
        self._document: _Document = json.loads(text)

    # -- numbers ------------------------------------------------------------------

    @property
    def predicted_peak_bytes(self) -> int:
        """Peak of the training device. It is in resident bytes of the process on a CPU host and in
        allocated bytes on a GPU. Caches that fill unused budget are included."""
        return self._document["predicted"]["peak_bytes"]

    @property
    def reserve_bytes(self) -> int:
        """Bytes that a budget needs beyond the predicted peak, for memory that operators may take
        beside tensors and that a cache may fill. They are not expected to be used."""
        return self._document.get("reserve_bytes", 0)

    @property
    def predicted_step_seconds(self) -> float:
        """Time of forward, backward and optimizer step together, in seconds."""
        return self._document["predicted"]["step_ns"] / 1e9

    @property
    def unoptimized_peak_bytes(self) -> int:
        """Peak of the same step with everything kept."""
        return self._document["unoptimized"]["peak_bytes"]

    @property
    def unoptimized_step_seconds(self) -> float:
        """Time of the same step with everything kept, in seconds."""
        return self._document["unoptimized"]["step_ns"] / 1e9

    @property
    def smallest_budget_bytes(self) -> int | None:
        """The smallest budget that a plan meets; None if the run fits comfortably, so that it was
        not searched."""
        return self._document["smallest_budget_bytes"]

    @property
    def budget_bytes(self) -> int | None:
        """The budget that was asked for; None if there is only the target of a share of the memory."""
        pressure = self._document["pressure"]
        return pressure["allowed_bytes"] if pressure["budget_given"] else None

    @property
    def ceiling_bytes(self) -> int:
        """Limit on the sum of live and cached tensor memory, for the allocator of CPU tensors."""
        return self._document["settings"]["ceiling_bytes"]

    @property
    def moved_state_bytes(self) -> int | None:
        """The least bytes of optimizer state that leave the device; 0 means all that may, None means none."""
        chosen = {option["name"] for option in self._document["step_options"] if option["chosen"]}
        return self._document.get("state_moved_bytes", 0) if chosen & {"state_on_disk", "state_on_host"} else None

    @property
    def skipped(self) -> bool:
        """Whether the run fits comfortably, so that no technique is used."""
        return self._document["skipped"]

    @property
    def over_target(self) -> bool:
        """Whether no plan meets the budget or the default target, and this is the smallest."""
        return self._document["over_target"]

    @property
    def decision_source(self) -> str:
        """The source of mode and eligible techniques; ``"user_config"`` without a policy."""
        return self._document["decision_source"]

    # -- entries --------------------------------------------------------------------

    @property
    def entries(self) -> list[Mapping[str, Any]]:
        """One mapping for each node of the graph, in order of execution.

        The root's own work has the name ``""``. Layers have their module's name.
        """
        return [dict(entry) for entry in self._document["entries"]]

    @property
    def layers(self) -> list[Mapping[str, Any]]:
        """The entries of layers, in order of execution."""
        return [entry for entry in self.entries if entry["name"]]

    @property
    def techniques(self) -> dict[str, int]:
        """The number of layers that use each technique, by name."""
        counts: dict[str, int] = {}
        for entry in self.layers:
            counts[entry["technique"]] = counts.get(entry["technique"], 0) + 1
        return counts

    @property
    def step_options(self) -> dict[str, Mapping[str, Any]]:
        """The decisions for the step as a whole, by the option's name, such as ``"exact_loss_head"``.

        Each has `chosen`, `exactness` and `rule`. The effect of the option alone is in `saved_bytes`
        of the peak and in `cost_ns` or `gain_ns` of the step.
        """
        return {option["name"]: dict(option) for option in self._document["step_options"]}

    @property
    def explanation(self) -> Mapping[str, Any] | None:
        """The place and the parts of the peak in bytes, the lower bound on the step's time in
        nanoseconds, and the effect of the next larger and the next smaller budget (see
        docs/formats/plan.schema.json); None for a plan that was made without a graph."""
        found = self._document.get("explanation")
        return None if found is None else dict(found)

    def __len__(self) -> int:
        return len(self.layers)

    # -- texts ------------------------------------------------------------------------

    def explain(self, layer: int | str | None = None) -> str:
        """The reason for a layer's technique: rule, bytes, time, runner-up.

        Args:
            layer: index into `layers` (negative counts from the end), or a module's
                qualified name (its first call). None explains the whole plan: the place and the
                parts of its peak, the distance of its time from the lower bound, and the effect of
                the next larger and the next smaller budget.

        Raises:
            IndexError: no layer has that index; the text has the number of layers.
            KeyError: no layer has that name; the text lists the names.
            TypeError: `layer` has another type.
        """
        return _core.plan_explain(self._text, -1 if layer is None else self._entry_index(layer))

    def _entry_index(self, layer: int | str) -> int:
        indices = [i for i, entry in enumerate(self._document["entries"]) if entry["name"]]
        names = [self._document["entries"][i]["name"] for i in indices]
        if isinstance(layer, str):
            if layer not in names:
                raise KeyError(f"no layer {layer!r} in this plan; its layers are {_listed(names)}")
            return indices[names.index(layer)]
        if isinstance(layer, bool) or not isinstance(layer, int):
            raise TypeError(f"layer must be an int, a str or None, not {type(layer).__qualname__}")
        if not -len(indices) <= layer < len(indices):
            raise IndexError(f"no layer {layer} in this plan; it has {len(indices)} layers, numbered from 0")
        return indices[layer]

    def to_json(self) -> str:
        """The document, as C wrote it."""
        return self._text

    def __str__(self) -> str:
        return _core.plan_table(self._text, self._hardware)

    def __repr__(self) -> str:
        peak = self.predicted_peak_bytes / 1e9
        return f"<ExecutionPlan {self._document['model']}: {self.techniques}, peak {peak:.2f} GB>"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, ExecutionPlan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)


def _listed(names: list[str]) -> str:
    """The names, or the first and the last few if there are many."""
    if not names:
        return "none"
    shown = names if len(names) <= 8 else [*names[:5], "...", *names[-2:]]
    return ", ".join(shown)
