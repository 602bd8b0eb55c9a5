"""Prometheus metrics of wrapped models, served by the official client.

Each port of a process has one server. At each scrape its collector reads C's counters, so nothing is
counted twice and no work is done between scrapes. The server listens on the loopback interface unless
``MEMSCALE_OBSERVABILITY_ADDRESS`` names another. Under torchrun each process takes the port plus its
local rank. Every failure here is only a warning.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

from .. import _core

__all__ = ["Exporter", "Source"]

_log = logging.getLogger("memscale")
_lock = threading.Lock()
_servers: dict[tuple[str, int], _Server] = {}

_LABELS = ("model", "run", "rank")
_NS_PER_S = 1e9

# Each row has the key in a source's numbers, the metric's name and help, and the divisor of the value.
_GAUGES = (
    ("budget_bytes", "memscale_budget_bytes", "bytes that the training device may hold", 1.0),
    ("predicted_peak_bytes", "memscale_predicted_peak_bytes", "peak that the plan in force predicts", 1.0),
    ("predicted_step_ns", "memscale_predicted_step_seconds", "step time that the plan predicts", _NS_PER_S),
    ("peak_bytes", "memscale_last_step_peak_bytes", "peak of the training device in the last step", 1.0),
    ("resident_bytes", "memscale_resident_bytes", "resident memory at the last step's boundary", 1.0),
    ("tier_bytes", "memscale_lower_tier_bytes", "bytes on the lower tier at the last step's boundary", 1.0),
    ("step_ns", "memscale_last_step_seconds", "time of the last step", _NS_PER_S),
)


class Source:
    """The exporter's view of one wrapped model. The server's threads call it."""

    def __init__(self, model: str, run: int) -> None:
        self.labels = (model, str(run), os.environ.get("RANK", "0"))

    def counters(self) -> dict[str, int]:
        """Cumulative counters by name."""
        raise NotImplementedError

    def numbers(self) -> dict[str, int | None]:
        """The last step's measurements and the plan's predictions, in bytes and nanoseconds."""
        raise NotImplementedError

    def step_times(self) -> tuple[list[tuple[int | None, int]], int]:
        """Buckets of step times (upper bound in ns or None, count) and their sum in ns."""
        raise NotImplementedError


class Exporter:
    """Serves one source on a port, from construction to `close()`.

    If the port can't be served, a warning is logged and `address` is None.
    """

    def __init__(self, port: int, source: Source) -> None:
        self._source = source
        self._server: _Server | None = None
        host = os.environ.get("MEMSCALE_OBSERVABILITY_ADDRESS", "127.0.0.1")
        rank = os.environ.get("LOCAL_RANK", "0")
        key = (host, port + int(rank) if rank.isdecimal() else port)
        try:
            with _lock:
                server = _servers.get(key)
                if server is None:
                    server = _servers[key] = _Server(*key)
                server.sources.append(source)
            self._server = server
        except ImportError:
            _log.warning("observability_port: the package prometheus_client is missing; no metrics are served")
        except Exception as error:  # the port is taken, or the client has an unexpected version
            reason = getattr(error, "strerror", None) or error
            _log.warning("observability_port: %s:%d can't be served (%s); no metrics", *key, reason)

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port, or None."""
        return None if self._server is None else self._server.address

    def close(self) -> None:
        """Removes the source. The server ends with its last source."""
        server, self._server = self._server, None
        if server is None:
            return
        with _lock:
            server.sources.remove(self._source)
            is_last = not server.sources
            if is_last:
                _servers.pop(server.address, None)
        if is_last:
            server.close()


class _Server:
    def __init__(self, host: str, port: int) -> None:
        from prometheus_client import make_wsgi_app
        from prometheus_client.registry import CollectorRegistry

        from .metrics_http import MetricsServer

        self.address = (host, port)
        self.sources: list[Source] = []
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self.sources))
        self._httpd = MetricsServer(host, port, make_wsgi_app(registry))
        _log.info("metrics are served on http://%s:%d/metrics", host, port)

    def close(self) -> None:
        self._httpd.end()


class _Collector:
    """Reads every source at each scrape."""

    def __init__(self, sources: list[Source]) -> None:
        self._sources = sources

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        with _lock:
            sources = list(self._sources)
        build = GaugeMetricFamily("memscale_build_info", "version of memscale", labels=("version",))
        build.add_metric((_core.version(),), 1)
        yield build
        read = [(source, source.counters()) for source in sources]
        for counter, name, text, per_unit in _core.counter_metrics():
            family = CounterMetricFamily(name, text, labels=_LABELS)
            for source, counters in read:
                family.add_metric(source.labels, counters[counter] / per_unit)
            yield family
        numbers = [(source, source.numbers()) for source in sources]
        for key, name, text, unit in _GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=_LABELS)
            for source, found in numbers:
                value = found.get(key)
                if value is not None:
                    gauge.add_metric(source.labels, value / unit)
            yield gauge
        times = HistogramMetricFamily("memscale_step_duration_seconds", "step times", labels=_LABELS)
        for source in sources:
            buckets, sum_ns = source.step_times()
            times.add_metric(source.labels, _cumulative(buckets), sum_ns / _NS_PER_S)
        yield times


def _cumulative(buckets: list[tuple[int | None, int]]) -> list[tuple[str, float]]:
    """Buckets in the exposition format: upper bounds in seconds, cumulative counts."""
    rows, total = [], 0
    for bound, count in buckets:
        total += count
        rows.append(("+Inf" if bound is None else repr(bound / _NS_PER_S), float(total)))
    return rows
