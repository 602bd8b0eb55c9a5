"""The `memscale` logger: where its lines go.

Called once per wrap. Adds a handler to standard error only when the application has
not set up logging itself, and a file handler per distinct `log_file`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from .. import _core

if TYPE_CHECKING:
    from ..config import Config

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


def configure_logging(config: Config) -> None:
    """Makes `enable_logging` and `log_file` true for the `memscale` logger."""
    logger = logging.getLogger("memscale")
    if config.enable_logging and logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    elif not config.enable_logging:
        logger.setLevel(logging.WARNING)
    if not logger.hasHandlers():
        handler: logging.Handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("memscale: %(message)s"))
        logger.addHandler(handler)
    if config.log_file is not None:
        _add_file(logger, str(config.log_file))


def _add_file(logger: logging.Logger, path: str) -> None:
    from ..errors import ConfigError

    wanted = logging.FileHandler(path, delay=True)
    known = {h.baseFilename for h in logger.handlers if isinstance(h, logging.FileHandler)}
    if wanted.baseFilename in known:
        return
    try:
        with open(wanted.baseFilename, "a", encoding="utf-8"):
            pass
    except OSError as error:
        raise ConfigError(
            f"log_file: {path!r} can't be written: {error.strerror}", field="log_file"
        ) from error
    wanted.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(wanted)


def drain_core_log() -> None:
    """Passes on the lines that C wrote since the last call, from any of its threads."""
    logger = logging.getLogger("memscale")
    for level, line in _core.log_drain():
        logger.log(_LEVELS[level], "%s", line)
