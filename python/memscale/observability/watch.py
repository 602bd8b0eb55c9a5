"""Reports on one wrapped model while it trains: its log, metrics and history.

`wrap()` makes it before anything else, and the executor's `detach()` closes it. The executor and the
session report plans and steps to it. Its failures never reach them.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from .. import _core
from ..errors import BudgetInfeasibleError
from . import hosted, telemetry
from .connection import HostedRun
from .logs import LogShare, log_detail, open_log
from .metrics import Exporter, Source
from .progress import Progress, progress_from_environment

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["RunWatch"]

_log = logging.getLogger("memscale")
_runs = itertools.count()


def _harmless(method: Callable[..., None]) -> Callable[..., None]:
    """Logs the first failure of a method. Afterwards the watch does nothing."""

    @functools.wraps(method)
    def call(self: RunWatch, *args: Any) -> None:
        if self.is_broken:
            return
        try:
            method(self, *args)
        except Exception:  # any failure: training continues
            self.is_broken = True
            _log.warning("watching the run failed; the run goes on unwatched", exc_info=True)

    return call


class RunWatch(Source):
    """Watches one wrap.

    Args:
        model: name of the model's class.
        config: the wrap's configuration; `enable_logging`, `log_file` and `observability_port` are read.
        shows_progress: whether the environment may switch a line per step on.
    """

    def __init__(self, model: str, config: Config, shows_progress: bool = True) -> None:
        super().__init__(model, next(_runs))
        self.is_broken = False
        self.history = _core.history_new()
        self._lock = threading.Lock()
        self._numbers: dict[str, int | None] = {}
        self._counters: Callable[[], dict[str, int]] = dict
        self._last_counters: dict[str, int] = {}
        self._plans = 0
        self._log_share: LogShare | None = open_log(config)
        self._port = config.observability_port
        self._exporter: Exporter | None = None
        self._progress = progress_from_environment() if shows_progress else None
        self._config = config
        self._hardware: str | None = None
        self._plan: str | None = None
        self._subject: tuple[str, int] = ("other", 0)
        self._documents: dict[str, str] = {}  # of the first plan
        self._hosted: HostedRun | None = None
        self._is_running = False
        _end_with_process(self)

    @_harmless
    def describe(self, model: Any, hardware_json: str) -> None:
        """Records the machine, and the model if telemetry is on, for telemetry's events."""
        self._hardware = hardware_json
        if telemetry.is_enabled():
            count = sum(parameter.numel() for parameter in model.parameters())
            self._subject = (telemetry.architecture_of(model), count)

    @_harmless
    def failed(self, error: BaseException) -> None:
        """Records that the wrap has failed."""
        outcome = "infeasible" if isinstance(error, BudgetInfeasibleError) else "error"
        self._record("wrap_called", outcome)
        run = self._hosted_run()
        if run is not None:
            run.ended("infeasible" if outcome == "infeasible" else "failed")

    def _hosted_run(self) -> HostedRun | None:
        """The run on a server; None if runs are not sent. `connect()` may come after `wrap()`, and again."""
        if self._hosted is None or not self._hosted.is_live:
            self._hosted = hosted.begin_run(self.labels[0])
            if self._hosted is not None and self._documents:
                self._hosted.planned({name: json.loads(text) for name, text in self._documents.items()})
        return self._hosted

    def _record(self, event: str, outcome: str, peak_bytes: int | None = None) -> None:
        if telemetry.is_enabled():
            documents = (self._hardware, self._config.to_json(), self._plan)
            telemetry.record(event, outcome, *self._subject, documents, peak_bytes)

    def begin(self, counters: Callable[[], dict[str, int]]) -> None:
        """Begins to serve metrics. `counters` returns the executor's counters, from any thread."""
        self._counters = counters
        if self._port is not None:
            self._exporter = Exporter(self._port, self)

    def show_progress(self, stream: TextIO | None) -> None:
        """Writes one line per step from now on."""
        self._progress = Progress(stream)

    @property
    def plan_count(self) -> int:
        """Plans made so far, for all shapes together."""
        return self._plans

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of the metrics; None if none are served."""
        return None if self._exporter is None else self._exporter.address

    # -- reports of executor and session ----------------------------------------------

    @_harmless
    def plan_made(self, plan: Any, graph_json: str) -> None:
        """A plan was made from this graph. The first is logged as the wrap's summary, later ones as a line."""
        text = plan.to_json()
        document = json.loads(text)
        with self._lock:
            self._numbers |= {
                "predicted_peak_bytes": document["predicted"]["peak_bytes"],
                "predicted_step_ns": document["predicted"]["step_ns"],
                "budget_bytes": document["pressure"]["allowed_bytes"],
            }
        self._plans += 1
        self._plan = text
        if self._plans == 1:
            self._is_running = True
            self._documents = {"plan": text, "graph": graph_json, "config": self._config.to_json()}
            if self._hardware is not None:
                self._documents["hardware"] = self._hardware
            self._hosted_run()
            self._record("wrap_called", _outcome(document))
            _log.info("%s", str(plan).rstrip(), extra={"memscale": {"event": "plan", "plan": document}})
        else:
            log_detail(f"plan {self._plans}: {plan!r}", {"event": "replan", "plan": document})

    @_harmless
    def step_finished(self, seen: dict[str, Any], tier_bytes: int) -> None:
        """A step has ended. `seen` has the executor's observations."""
        with self._lock:
            for key in ("step", "step_ns", "peak_bytes", "resident_bytes"):
                self._numbers[key] = seen.get(key)
            self._numbers["tier_bytes"] = tier_bytes
            step = dict(self._numbers)
        _core.history_add(self.history, step, self._counters())
        self._begin_again()
        run = self._hosted_run()
        if run is not None:
            run.step(step)
        if self._progress is not None:
            self._progress.step(self.history)
        _log.debug("step %d", seen["step"], extra={"memscale": {"event": "step", "step": step}})

    def _begin_again(self) -> None:
        """A step after the end is of another run, which a log begins by a plan."""
        if not self._is_running and self._documents:
            self._is_running = True
            plan = json.loads(self._documents["plan"])
            log_detail("another run of the model begins", {"event": "plan", "plan": plan})

    @_harmless
    def _finished(self) -> None:
        if self._plans and self._log_share is not None:
            self._record("finish", "finished", self._numbers.get("peak_bytes"))
            self._end(None)

    @_harmless
    def training_ended(self, error: BaseException | None) -> None:
        """A trainer's loop has ended, by `error` or as planned, and the run with it. A later step begins another."""
        self._end(None if error is None else type(error))

    @_harmless
    def process_ended(self, kind: type[BaseException] | None) -> None:
        """The process ends, by an exception of this kind or as planned."""
        if self._log_share is not None:
            self._end(kind)

    def _end(self, kind: type[BaseException] | None) -> None:
        """Ends the run, unless it has ended or has no plan yet."""
        if not self._is_running:
            return
        self._is_running = False
        outcome, counters = hosted.outcome_of(kind), self._counters()
        if self._hosted is not None:
            self._hosted.ended(outcome, counters)
        log_detail(f"the run has {outcome}", {"event": "finish", "outcome": outcome, "counters": counters})

    def close(self) -> None:
        """Stops serving metrics and closes the log file. The counters can still be read."""
        self._finished()
        self._last_counters, self._counters = self.counters(), self._remembered
        if self._progress is not None:
            self._progress.close()
        if self._exporter is not None:
            self._exporter.close()
        if self._log_share is not None:
            self._log_share.close()
        self._exporter = self._log_share = None

    # -- methods for the exporter ----------------------------------------------------------

    def _remembered(self) -> dict[str, int]:
        return self._last_counters

    def counters(self) -> dict[str, int]:
        return self._counters()

    def numbers(self) -> dict[str, int | None]:
        with self._lock:
            return dict(self._numbers)

    def step_times(self) -> tuple[list[tuple[int | None, int]], int]:
        return _core.history_step_times(self.history)


_watches: weakref.WeakSet[RunWatch] = weakref.WeakSet()  # of this process
os.register_at_fork(after_in_child=_watches.clear)


def _end_with_process(watch: RunWatch) -> None:
    """At the end of the process `watch` is told, and the connection after it, which was registered before."""
    if not _watches:
        atexit.unregister(_tell_all)
        atexit.register(_tell_all)
    _watches.add(watch)


def _tell_all() -> None:
    for watch in list(_watches):
        watch.process_ended(hosted.ended_script())


def _outcome(plan: dict[str, Any]) -> str:
    return next((word for word in ("skipped", "over_target") if plan[word]), "planned")
