"""The `memscale` logger and the destinations of its lines.

Each wrap calls `open_log()`, and `LogShare.close()` when it ends. Readable lines go to standard error if
the application has not set up logging. JSON lines (docs/formats/log.schema.json) go to `log_file`; wraps
that name the same file share a handler. If a log can't be written, a warning is logged and training
continues.
"""

from __future__ import annotations

import datetime
import json
import logging
import logging.handlers
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from .. import _core

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["LogShare", "drain_core_log", "log_detail", "open_log"]

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
_VERSION = 1
_lock = threading.Lock()
_files: dict[str, tuple[JsonLinesHandler, int]] = {}


class LogShare:
    """One wrap's share in the log file. Closing it a second time does nothing."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    def close(self) -> None:
        """Closes the file if no other wrap writes to it."""
        path, self._path = self._path, None
        if path is None:
            return
        with _lock:
            handler, users = _files[path]
            if users > 1:
                _files[path] = (handler, users - 1)
                return
            del _files[path]
        logging.getLogger("memscale").removeHandler(handler)
        handler.close()


def open_log(config: Config) -> LogShare:
    """Applies `enable_logging` and `log_file` to the `memscale` logger."""
    logger = logging.getLogger("memscale")
    _set_level(logger, config.enable_logging)
    if not logger.hasHandlers():
        logger.addHandler(_LastResort())
    return LogShare(None if config.log_file is None else _open_file(logger, str(config.log_file)))


class _LastResort(logging.Handler):
    """Writes to standard error while no other handler does, because an application may set up logging after
    the first wrap."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("memscale: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        logger = logging.getLogger("memscale")
        others = [*logger.handlers, *(logging.getLogger().handlers if logger.propagate else ())]
        if any(not isinstance(other, (_LastResort, JsonLinesHandler)) for other in others):
            return
        try:
            _write_beside_bars(f"{self.format(record)}\n")
        except Exception:  # the stream is closed, or there is none
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Does nothing, so a line that can't be written to standard error is lost."""


def _write_beside_bars(text: str) -> None:
    """Writes to the present standard error. If tqdm draws bars, it writes the text, so that the bars stay intact."""
    stream: Any = sys.stderr
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if tqdm is not None and getattr(tqdm, "_instances", None):
        tqdm.write(text, file=stream, end="")
    else:
        stream.write(text)
    stream.flush()


def _is_other_rank() -> bool:
    """Whether another process of this run has rank 0. That process logs everything that all ranks have in common."""
    return os.environ.get("RANK", "0") != "0"


# The level that memscale gave to the logger. A level that the application set is left alone.
_ours: list[int] = []


def _set_level(logger: logging.Logger, is_enabled: bool) -> None:
    if is_enabled and logger.level != logging.NOTSET and logger.level not in _ours:
        return
    level = logging.INFO if is_enabled and not _is_other_rank() else logging.WARNING
    logger.setLevel(level)
    _ours[:] = [level]


def _open_file(logger: logging.Logger, path: str) -> str | None:
    """The key of the file's handler; None, with a warning, if it can't be written."""
    key = os.path.abspath(path)
    with _lock:
        if key in _files:
            handler, users = _files[key]
            _files[key] = (handler, users + 1)
            return key
        try:
            handler = JsonLinesHandler(key, encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            logger.warning("log_file: %r can't be written (%s); the run goes on without it", path, reason)
            return None
        _files[key] = (handler, 1)
    logger.addHandler(handler)
    return key


class JsonLinesHandler(logging.handlers.WatchedFileHandler):
    """A JSON object per line; reopens the file if it was moved away (logrotate).

    Errors are logged once and never reach the caller.
    """

    def __init__(self, path: str, encoding: str) -> None:
        super().__init__(path, encoding=encoding)
        self.setFormatter(_JsonFormatter())
        self._told = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except Exception:  # the file's directory is gone
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Warns once that lines are lost."""
        if not self._told:
            self._told = True
            logging.getLogger("memscale").warning(
                "log_file: %r can't be written any more; lines are lost", self.baseFilename
            )


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
        line: dict[str, Any] = {
            "version": _VERSION,
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": record.process,
            "rank": os.environ.get("RANK"),
            "event": "message",
            "message": record.getMessage(),
        }
        line.update(getattr(record, "memscale", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def log_detail(text: str, fields: dict[str, Any] | None = None) -> None:
    """Logs a line that needs no action, at level DEBUG. At level INFO it still goes to `log_file`.

    Args:
        text: the line.
        fields: further members of its JSON object.
    """
    logger = logging.getLogger("memscale")
    extra = {} if fields is None else {"memscale": fields}
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s", text, extra=extra)
        return
    if not logger.isEnabledFor(logging.INFO):
        return
    record = logger.makeRecord(logger.name, logging.DEBUG, __file__, 0, "%s", (text,), None, extra=extra)
    with _lock:
        handlers = [handler for handler, _ in _files.values()]
    for handler in handlers:
        handler.handle(record)


def drain_core_log() -> None:
    """Passes on the lines that C wrote since the last call, from any of its threads. Lines that need no
    action are details."""
    logger = logging.getLogger("memscale")
    for level, line in _core.log_drain():
        if _LEVELS[level] <= logging.INFO:
            log_detail(line)
        else:
            logger.log(_LEVELS[level], "%s", line)
