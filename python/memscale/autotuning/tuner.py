"""Finds the largest micro-batch under a budget, and the accumulation that keeps the effective batch.

The planner gives a first answer from traces. A few trials in child processes then confirm or correct
it. The caller's model, optimizer and random state do not change.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core
from ..config import check_config
from ..errors import MemScaleError
from . import payload, trial

if TYPE_CHECKING:
    import torch

    from ..config import Config

__all__ = ["AutoTuner", "Trial", "TuningResult"]

_log = logging.getLogger("memscale")

# The planner's answer takes at most this many traces. It may be rough, because trials correct it.
_PREDICTIONS_MOST = 24


@dataclass(frozen=True)
class Trial:
    """One trial of a batch size.

    Attributes:
        batch: the micro-batch.
        outcome: "fits", "infeasible" (no plan), "out_of_memory", "killed", "timeout" or
            "error".
        peak_bytes, step_seconds: measured in the trial's process; None if it did not finish.
        detail: one line, or "".
    """

    batch: int
    outcome: str
    peak_bytes: int | None = None
    step_seconds: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class TuningResult:
    """The batch to train with.

    Attributes:
        micro_batch: the largest micro-batch that fitted; 0 if none did.
        accumulation: micro-batches per step that keep the effective batch; 1 if none was given.
        predicted_batch: the planner's answer, without trials.
        trials: the trials in the order in which they ran.
        from_cache: whether the answer comes from an earlier search.
    """

    micro_batch: int
    accumulation: int
    predicted_batch: int
    trials: tuple[Trial, ...]
    from_cache: bool = False


class AutoTuner:
    """Finds the largest micro-batch that fits under a configuration.

    Args:
        model: the module. Trials get a copy of its structure without its weights. Its class must be
            importable there, as for any spawned process.
        sample_input: a tensor, tuple or dict as for `wrap()`, batch first; trials repeat or
            cut its first dimension.
        config: the budget and the allowed techniques; `Config()` if None.
        optimizer: class of the optimizer that will step, `torch.optim.AdamW` if None.
        optimizer_arguments: keyword arguments of the optimizer.
        effective_batch: the batch to keep by accumulation; only its divisors are tried.
        max_batch: largest micro-batch to consider.
        max_trials: largest number of child processes.
        steps: training steps of each trial.
        timeout_seconds: time limit of each trial.
        wrapped: False to tune the unmodified model.
        cache: whether to store the answer, by model, machine, versions and configuration.

    Raises:
        TypeError, ValueError: an argument is not allowed.

    Scripts that tune need the usual ``if __name__ == "__main__":`` of spawned processes.

    Example:
        >>> found = AutoTuner(model, batch, Config(memory_budget_gb=8), effective_batch=64).run()
        >>> found.micro_batch * found.accumulation
        64
    """

    def __init__(
        self,
        model: torch.nn.Module,
        sample_input: Any,
        config: Config | None = None,
        *,
        optimizer: type[torch.optim.Optimizer] | None = None,
        optimizer_arguments: dict[str, Any] | None = None,
        effective_batch: int | None = None,
        max_batch: int = 1024,
        max_trials: int = 6,
        steps: int = 2,
        timeout_seconds: float = 600.0,
        wrapped: bool = True,
        cache: bool = True,
    ) -> None:
        import torch

        from ..session.setup import sample_arguments

        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"AutoTuner takes a torch.nn.Module, not {type(model).__qualname__}")
        if optimizer is not None and not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)):
            raise TypeError(f"optimizer must be a subclass of torch.optim.Optimizer or None, not {optimizer!r}")
        sample_arguments(model, sample_input)  # raises if it does not fit the forward
        for name, value in (("max_batch", max_batch), ("max_trials", max_trials), ("steps", steps)):
            _check_count(name, value)
        if effective_batch is not None:
            _check_count("effective_batch", effective_batch)
        if isinstance(timeout_seconds, bool) or not isinstance(timeout_seconds, (int, float)):
            raise TypeError(f"timeout_seconds must be a number, not {type(timeout_seconds).__qualname__}")
        if not timeout_seconds > 0:
            raise ValueError(f"timeout_seconds: {timeout_seconds} is not allowed; give more than 0")
        if optimizer_arguments is not None and not isinstance(optimizer_arguments, dict):
            raise TypeError(f"optimizer_arguments must be a dict or None, not {type(optimizer_arguments).__qualname__}")
        self._model, self._sample = model, sample_input
        self._config = check_config(config)
        self._optimizer = optimizer or torch.optim.AdamW
        self._optimizer_arguments = dict(optimizer_arguments or {})
        self._effective = effective_batch or 0
        self._most = min(max_batch, effective_batch or max_batch)
        self._max_trials, self._steps, self._timeout = max_trials, steps, timeout_seconds
        self._wrapped, self._cache = wrapped, cache
        self._hardware: str | None = None

    def run(self) -> TuningResult:
        """Searches, or returns the answer of an earlier search.

        Raises:
            ProfileError: the model can't be traced without running it.
            MemScaleError: the model can't be copied into a trial.
        """
        path = self._cache_path()
        known = _read_cache(path)
        if known is not None:
            _log.info("tuner: %d per micro-batch, from an earlier search (%s)", known.micro_batch, path)
            return known
        predicted = self.predict()
        result = self._try(predicted)
        _log.info(
            "tuner: micro-batch %d x %d, after %d trials (the planner said %d)",
            result.micro_batch,
            result.accumulation,
            len(result.trials),
            predicted,
        )
        if path is not None and all(made.outcome != "error" for made in result.trials):
            _write_cache(path, result)
        return result

    def predict(self) -> int:
        """The largest micro-batch that fits by the planner's prediction; 0 if none does."""
        search = _core.batch_search_new(self._most, self._effective, 1, _PREDICTIONS_MOST)
        while batch := _core.batch_search_next(search):
            _core.batch_search_report(search, self._is_planned(batch))
        return _core.batch_search_best(search)[0]

    def _documents(self, batch: int) -> tuple[str, str]:
        from ..session.session import Session
        from ..session.setup import sample_arguments
        from ..tracing.profiler import MemoryProfiler

        if self._hardware is None:
            self._hardware = Session(self._model, self._config, applies=False).hardware_json
        args, kwargs = sample_arguments(self._model, trial.resized(self._sample, batch))
        return MemoryProfiler(self._config).trace(self._model, args, kwargs), self._hardware

    def _is_planned(self, batch: int) -> bool:
        graph, hardware = self._documents(batch)
        outlook = json.loads(_core.outlook(graph, hardware, self._config.to_json(), False))
        if not self._wrapped:
            return outlook["risk"] in ("low", "moderate")
        return outlook["planned_peak_bytes"] is not None

    # -- trials -------------------------------------------------------------------------

    def _try(self, predicted: int) -> TuningResult:
        search = _core.batch_search_new(self._most, self._effective, max(predicted, 1), self._max_trials)
        trials: list[Trial] = []
        limit = self._limit_bytes()
        with tempfile.TemporaryDirectory(prefix="memscale-tuner-") as folder:
            file = Path(folder) / "trial"
            self._dump(file)
            while batch := _core.batch_search_next(search):
                made = self._one(file, batch, limit)
                trials.append(made)
                _core.batch_search_report(search, made.outcome == "fits")
                if made.outcome == "error":
                    break  # memory is not the cause, so the next trial would fail too
        best, accumulation = _core.batch_search_best(search)
        return TuningResult(best, accumulation, predicted, tuple(trials))

    def _one(self, file: Path, batch: int, limit_bytes: int) -> Trial:
        request = {
            "batch": batch,
            "accumulation": 2 if self._effective > batch else 1,
            "steps": self._steps,
            "wrapped": self._wrapped,
        }
        answer = trial.run(file, request, limit_bytes, self._timeout)
        made = Trial(batch, **answer)
        peak = "" if made.peak_bytes is None else f", peak {made.peak_bytes:,} bytes"
        _log.info(
            "tuner: batch %d: %s%s%s",
            batch,
            made.outcome,
            peak,
            f" ({made.detail})" if made.detail else "",
            extra={"memscale": {"event": "trial", "trial": asdict(made)}},
        )
        return made

    def _limit_bytes(self) -> int:
        graph, hardware = self._documents(1)
        outlook = json.loads(_core.outlook(graph, hardware, self._config.to_json(), False))
        return int(outlook["capacity_bytes"])

    def _dump(self, file: Path) -> None:
        settings = {field.name: getattr(self._config, field.name) for field in fields(self._config)}
        settings |= {"log_file": None, "observability_port": None}
        try:
            with file.open("wb") as stream:
                payload.dump((self._model, self._optimizer, self._optimizer_arguments, self._sample, settings), stream)
        except Exception as error:  # pickling: the model's classes may raise anything
            raise MemScaleError(
                f"{type(self._model).__name__} can't be copied into a trial: {type(error).__name__}: {error}"
            ) from error

    # -- the cache ------------------------------------------------------------------

    def _cache_path(self) -> Path | None:
        home = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") or "") + "/.cache"
        if not self._cache or home == "/.cache":
            return None
        import torch

        graph, hardware = self._documents(1)
        machine = json.loads(hardware)
        key = [
            graph,
            machine["cpu"],
            machine["ram"]["total_bytes"],
            [gpu["name"] for gpu in machine["gpus"]],
            _core.version(),
            torch.__version__,
            platform.python_version(),
            self._config.to_json(),
            f"{self._optimizer.__module__}.{self._optimizer.__qualname__}",
            repr(self._optimizer_arguments),
            self._effective,
            self._most,
            self._wrapped,
            self._limit_bytes(),
        ]
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
        return Path(home) / "memscale" / f"tuning-{digest[:32]}.json"


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__qualname__}")
    if not 1 <= value <= 1 << 20:
        raise ValueError(f"{name}: {value} is not allowed; give 1 to {1 << 20}")


def _read_cache(path: Path | None) -> TuningResult | None:
    if path is None:
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        trials = tuple(Trial(**made) for made in found.pop("trials"))
        return TuningResult(**found | {"trials": trials, "from_cache": True})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _write_cache(path: Path, result: TuningResult) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(asdict(result)), encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        _log.debug("tuner: %s is not written: %s", path, error)
