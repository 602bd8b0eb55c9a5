"""Predicts whether a run fits, before it starts: `OOMPredictor` and `estimate_savings()`.

The graph of a step comes from a trace, as in `wrap()`, or C derives it from a Hugging Face
``config.json`` without torch. C judges the graph.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _core
from ..config import check_config
from .configured import model_of, sample_of

if TYPE_CHECKING:
    import torch

    from ..config import Config

__all__ = ["OOMPredictor", "Prediction", "Savings", "estimate_savings"]


@dataclass(frozen=True)
class Prediction:
    """A run's need compared with the available memory.

    Attributes:
        need_bytes: predicted peak of the unmodified run: resident bytes of the process on a
            CPU host (including freed memory that libc keeps), allocated bytes on a GPU.
        capacity_bytes: the configuration's budget, or the device's memory.
        risk: that the unmodified run does not fit: "low" or "moderate" (it fits), "high" (the
            prediction's error decides) or "certain" (it does not fit).
        planned_peak_bytes, planned_step_ns: prediction for the run wrapped with the capacity as its
            budget; None if no plan fits.
        planned_risk: the risk of the wrapped run.
        smallest_budget_bytes: the smallest budget that a plan of this configuration meets; None if
            the run fits comfortably (then it is not searched for).
        advice: suggested changes, the most useful first; empty if the risk is low.
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
        """Whether the unmodified run should fit, because its risk is low or moderate."""
        return self.risk in ("low", "moderate")


@dataclass(frozen=True)
class Savings:
    """The smallest peak that each mode reaches, and the peak of the unmodified step.

    Attributes:
        unmodified_peak_bytes, unmodified_step_ns: the prediction for a step that keeps everything.
        conservative, balanced, aggressive: dicts of ``smallest_budget_bytes``, ``peak_bytes``
            and ``step_ns``.
    """

    unmodified_peak_bytes: int
    unmodified_step_ns: int
    conservative: dict[str, int]
    balanced: dict[str, int]
    aggressive: dict[str, int]


class OOMPredictor:
    """Predicts peak and risk of a training run before it starts.

    Args:
        model: an `nn.Module`, which is traced and does not change; a Hugging Face configuration, whose
            model is built without memory for its weights; or a ``config.json``, as the path of the
            file or its folder, or as the dict in it. For a ``config.json`` neither torch nor
            transformers is imported, the families and the step are those of ``memscale predict --hf``,
            and the prediction assumes a process that holds torch and the model.
        config: its `memory_budget_gb` is the capacity; if that is None, the device's memory is.
        optimizer: the optimizer that will step, if it exists. Otherwise two fp32 values per parameter
            are reserved.

    Raises:
        TypeError: `model` has another type, `optimizer` is not an optimizer, or an optimizer is given with a
            ``config.json``.
        OSError: the file can't be read.

    Example:
        >>> OOMPredictor(GPT2Config()).predict(batch=4, sequence=512).risk
        'low'
        >>> OOMPredictor("gpt2/config.json").predict(batch=4, sequence=512).risk
        'low'
    """

    def __init__(
        self, model: Any, config: Config | None = None, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        self._config = check_config(config)
        self._optimizer = optimizer
        self._document = _document_of(model)
        if self._document is None:
            self._model, self._is_absent = _model_of(model)
        elif optimizer is not None:
            raise TypeError("an optimizer needs the model that it steps: give the model instead of its config.json")
        else:
            self._model, self._is_absent = None, True
        if optimizer is not None:
            import torch

            if not isinstance(optimizer, torch.optim.Optimizer):
                raise TypeError(
                    f"optimizer must be a torch.optim.Optimizer or None, not {type(optimizer).__qualname__}"
                )

    def predict(self, sample_input: Any = None, *, batch: int | None = None, sequence: int | None = None) -> Prediction:
        """Predicts for one shape.

        Args:
            sample_input: a tensor, a tuple of positional or a dict of keyword arguments, as
                for `wrap()`.
            batch, sequence: a shape instead of a sample, for models of token ids. The arguments are
                then ``input_ids`` and, if the forward takes them, ``labels``, int64
                `[batch, sequence]`.

        Raises:
            TypeError: neither a sample nor a shape is given, or both are; the arguments do not fit the
                model's forward; or a sample is given with a ``config.json``.
            ProfileError: the model can't be traced without running it.
            MemScaleError: the ``config.json`` is malformed or of another family, or its model does
                not take the shape. The text names the member.
        """
        graph, hardware = self._documents(sample_input, batch, sequence)
        found = json.loads(_core.outlook(graph, hardware, self._config.to_json(), self._is_absent))
        return Prediction(**found | {"advice": tuple(found["advice"])})

    def savings(self, sample_input: Any = None, *, batch: int | None = None, sequence: int | None = None) -> Savings:
        """The savings of memscale at this shape. Arguments and errors are those of `predict()`."""
        graph, hardware = self._documents(sample_input, batch, sequence)
        return Savings(**json.loads(_core.savings(graph, hardware, self._config.to_json(), self._is_absent)))

    def _documents(self, sample_input: Any, batch: int | None, sequence: int | None) -> tuple[str, str]:
        from ..session.machine import probe_machine
        from ..session.session import Session

        if self._document is not None:
            if sample_input is not None:
                raise TypeError("a config.json has no forward: give batch and sequence")
            shape = _shape(batch, sequence)
            return _core.predict_hf_graph(self._document, *shape), probe_machine(self._config)

        from ..session.setup import sample_arguments
        from ..tracing.profiler import MemoryProfiler

        sample = _sample(self._model, sample_input, batch, sequence)
        session = Session(self._model, self._config, applies=False)
        args, kwargs = sample_arguments(self._model, sample)
        graph = MemoryProfiler(self._config).trace(self._model, args, kwargs, optimizer=self._optimizer)
        return graph, session.hardware_json


def estimate_savings(model: Any, sample_input: Any = None, config: Config | None = None, **shape: int) -> Savings:
    """The savings of memscale on a model: the smallest peak of each mode, and its step time.

    Args:
        model: an `nn.Module`, a Hugging Face configuration or its ``config.json``.
        sample_input: as for `wrap()`; or give ``batch=`` and ``sequence=``.
        config: the allowed techniques; `Config()` if None.

    Raises:
        MemScaleError: as `OOMPredictor`.

    Example:
        >>> saved = memscale.estimate_savings(model, batch)
        >>> saved.balanced["peak_bytes"] / saved.unmodified_peak_bytes
    """
    return OOMPredictor(model, config).savings(sample_input, **shape)


def _document_of(given: Any) -> str | None:
    """The text of a config.json, if its path or its contents are given."""
    if isinstance(given, Mapping) and "model_type" in given:
        return json.dumps(dict(given))
    if not isinstance(given, (str, os.PathLike)):
        return None
    path = pathlib.Path(given)
    return (path / "config.json" if path.is_dir() else path).read_text(encoding="utf-8")


def _model_of(given: Any) -> tuple[Any, bool]:
    """The module, and whether its weights are absent from memory."""
    import torch

    if isinstance(given, torch.nn.Module):
        return given, False
    if type(given).__module__.partition(".")[0] != "transformers" or not hasattr(given, "model_type"):
        raise TypeError(
            "OOMPredictor takes a torch.nn.Module, a Hugging Face configuration or its config.json, not "
            f"{type(given).__module__}.{type(given).__qualname__}"
        )
    return model_of(given), True


def _sample(model: Any, sample_input: Any, batch: int | None, sequence: int | None) -> Any:
    if (sample_input is None) == (batch is None and sequence is None):
        raise TypeError("give either sample_input or batch and sequence")
    return sample_of(model, *_shape(batch, sequence)) if sample_input is None else sample_input


def _shape(batch: int | None, sequence: int | None) -> tuple[int, int]:
    for name, value in (("batch", batch), ("sequence", sequence)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TypeError(f"{name} must be a positive int, not {value!r}")
    return batch, sequence  # type: ignore[return-value]
