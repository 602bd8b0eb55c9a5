"""Will a run fit, before it is made: `OOMPredictor` and `estimate_savings()`.

A step is traced without running it, as `wrap()` does; C judges the graph.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import IntegrationError

if TYPE_CHECKING:
    import torch

    from ..config import Config

__all__ = ["OOMPredictor", "Prediction", "Savings", "estimate_savings"]


@dataclass(frozen=True)
class Prediction:
    """How a run stands against the memory there is.

    Attributes:
        need_bytes: predicted peak of the unmodified run: resident bytes of the process on a
            CPU host (with what libc keeps of freed memory), allocated bytes on a GPU.
        capacity_bytes: the configuration's budget, or what the device has.
        risk: of the unmodified run: "low", "moderate" (both fit), "high" (may fit, within
            the error of the prediction) or "certain" (does not fit).
        planned_peak_bytes, planned_step_ns: of the run wrapped under the capacity as a
            budget; None where no plan fits.
        planned_risk: the same for it.
        smallest_budget_bytes: that any plan of this configuration meets; None where it was
            not searched, because the run fits comfortably.
        advice: what to change, most useful first; empty where the risk is low.
    """

    need_bytes: int
    capacity_bytes: int
    risk: str
    planned_peak_bytes: int | None
    planned_step_ns: int | None
    planned_risk: str
    smallest_budget_bytes: int | None
    advice: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the unmodified run is taken to fit: its risk is low or moderate."""
        return self.risk in ("low", "moderate")


@dataclass(frozen=True)
class Savings:
    """What memscale can save: the smallest peak of each mode beside the unmodified step.

    Attributes:
        unmodified_peak_bytes, unmodified_step_ns: of the step with everything kept.
        conservative, balanced, aggressive: dicts of ``smallest_budget_bytes``, ``peak_bytes``
            and ``step_ns``.
    """

    unmodified_peak_bytes: int
    unmodified_step_ns: int
    conservative: dict[str, int]
    balanced: dict[str, int]
    aggressive: dict[str, int]


class OOMPredictor:
    """Predicts peak and risk of a training run before it is made.

    Args:
        model: an `nn.Module`, which is traced and left as it was, or a Hugging Face
            configuration, whose model is built without memory for its weights.
        config: `memory_budget_gb` is the capacity; without it, what the device has.
        optimizer: the one that will step, if it exists; otherwise two fp32 values per
            parameter are reserved.

    Raises:
        TypeError: `model` is neither.

    Example:
        >>> OOMPredictor(GPT2Config()).predict(batch=4, sequence=512).risk
        'low'
    """

    def __init__(
        self, model: Any, config: Config | None = None, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        from ..core.setup import check_config

        self._config = check_config(config)
        self._optimizer = optimizer
        self._model, self._is_absent = _model_of(model)

    def predict(
        self, sample_input: Any = None, *, batch: int | None = None, sequence: int | None = None
    ) -> Prediction:
        """Judges one shape.

        Args:
            sample_input: a tensor, a tuple of positional or a dict of keyword arguments, as
                for `wrap()`.
            batch, sequence: instead of it, for models of token ids: ``input_ids`` and, where
                the forward takes them, ``labels``, int64 `[batch, sequence]`.

        Raises:
            TypeError: neither or both are given, or they do not fit the model's forward.
            ProfileError: the model can't be traced without running it.
        """
        graph, hardware = self._documents(sample_input, batch, sequence)
        found = json.loads(_core.outlook(graph, hardware, self._config.to_json(), self._is_absent))
        return Prediction(**found | {"advice": tuple(found["advice"])})

    def savings(
        self, sample_input: Any = None, *, batch: int | None = None, sequence: int | None = None
    ) -> Savings:
        """What memscale can save at this shape; arguments and errors as for `predict()`."""
        graph, hardware = self._documents(sample_input, batch, sequence)
        return Savings(**json.loads(_core.savings(graph, hardware, self._config.to_json(), self._is_absent)))

    def _documents(self, sample_input: Any, batch: int | None, sequence: int | None) -> tuple[str, str]:
        from ..core.profiler import MemoryProfiler
        from ..core.session import Session
        from ..core.setup import sample_arguments

        sample = _sample(self._model, sample_input, batch, sequence)
        session = Session(self._model, self._config, applies=False)
        args, kwargs = sample_arguments(self._model, sample)
        graph = MemoryProfiler(self._config).trace(self._model, args, kwargs, optimizer=self._optimizer)
        return graph, session.hardware_json


def estimate_savings(model: Any, sample_input: Any = None, config: Config | None = None, **shape: int) -> Savings:
    """What memscale can save on a model: the smallest peak of each mode, and what it costs.

    Args:
        model: an `nn.Module` or a Hugging Face configuration.
        sample_input: as for `wrap()`; or give ``batch=`` and ``sequence=``.
        config: which techniques may be used; `Config()` if None.

    Raises:
        as `OOMPredictor`.

    Example:
        >>> saved = memscale.estimate_savings(model, batch)
        >>> saved.balanced["peak_bytes"] / saved.unmodified_peak_bytes
    """
    return OOMPredictor(model, config).savings(sample_input, **shape)


def _model_of(given: Any) -> tuple[Any, bool]:
    """The module, and whether its weights are not in memory."""
    import torch

    if isinstance(given, torch.nn.Module):
        return given, False
    if type(given).__module__.partition(".")[0] != "transformers" or not hasattr(given, "model_type"):
        raise TypeError(
            "OOMPredictor takes a torch.nn.Module or a Hugging Face configuration, not "
            f"{type(given).__module__}.{type(given).__qualname__}"
        )
    return _build(given), True


def _build(config: Any) -> Any:
    """The model of a configuration, its weights in maps that are never touched."""
    import torch
    import transformers

    kinds = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModel")
    for kind in kinds:
        auto = getattr(transformers, kind)
        if type(config) in auto._model_mapping:
            with torch.device("meta"):
                model = auto.from_config(config)
            return model.to_empty(device="cpu").train()
    raise IntegrationError(f"transformers has no model for a {type(config).__name__}")


def _sample(model: Any, sample_input: Any, batch: int | None, sequence: int | None) -> Any:
    if (sample_input is None) == (batch is None and sequence is None):
        raise TypeError("give either sample_input or batch and sequence")
    if sample_input is not None:
        return sample_input
    for name, value in (("batch", batch), ("sequence", sequence)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TypeError(f"{name} must be a positive int, not {value!r}")
    import inspect

    import torch

    ids = torch.zeros((batch or 0, sequence or 0), dtype=torch.int64)
    takes_labels = "labels" in inspect.signature(model.forward).parameters
    return {"input_ids": ids, "labels": ids} if takes_labels else {"input_ids": ids}
