"""`memscale push`: sends logs of runs to a memscale-server. The program (cli/cmd_push.c) starts it.

It keeps no notes: the server knows how far each run is. So it may be stopped at any point, started again, and run
twice at once; each step counts once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from .. import _core
from ..errors import MemScaleError
from .sender import Server, send_due

__all__ = ["main"]

_LOOK_S = 2.0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="memscale push", allow_abbrev=False)
    parser.add_argument("paths", nargs="*", default=["."], metavar="FOLDER|FILE")
    parser.add_argument("--server", metavar="URL")
    parser.add_argument("--token-file", metavar="FILE")
    parser.add_argument("--project")
    parser.add_argument("--name")
    parser.add_argument("--follow", action="store_true")
    parser.add_argument("--ended", action="store_true")
    parser.add_argument("--allow-http", action="store_true")
    parser.add_argument("--patience", type=_patience, default=60.0, metavar="SECONDS")
    return parser.parse_args(argv)


def _patience(text: str) -> float:
    seconds = float(text)
    if not 0.0 <= seconds <= 1e6:
        raise argparse.ArgumentTypeError("must be 0 (for ever) to 1000000 seconds")
    return seconds


def _server(options: argparse.Namespace) -> Server:
    url = options.server or os.environ.get("MEMSCALE_SERVER")
    if not url:
        raise MemScaleError("name the server: --server URL, or MEMSCALE_SERVER in the environment")
    if options.token_file:
        token = pathlib.Path(options.token_file).read_text(encoding="utf-8").strip()
    else:
        token = os.environ.get("MEMSCALE_TOKEN", "")
    if not token:
        raise MemScaleError("the token is missing: --token-file FILE, or MEMSCALE_TOKEN in the environment")
    return Server(url, token, options.allow_http)


class _Paths:
    """The files to send, with those that appear in folders later."""

    def __init__(self, push: Any, paths: list[str]) -> None:
        self._push = push
        self._folders = [path for path in paths if os.path.isdir(path)]
        self._known: set[str] = set()
        for path in paths:
            if path not in self._folders:
                _core.push_add(push, os.path.abspath(path), False)

    def look(self) -> None:
        """Adds files that were not there before."""
        for path in self._found():
            if path not in self._known:
                self._known.add(path)
                with contextlib.suppress(UnicodeEncodeError):  # a name that is no text
                    _core.push_add(self._push, path, True)

    def _found(self) -> Iterator[str]:
        for folder in self._folders:
            for place, folders, names in os.walk(os.path.abspath(folder)):
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                for path in (os.path.join(place, name) for name in sorted(names) if not name.startswith(".")):
                    if os.path.isfile(path) and not os.path.islink(path):
                        yield path


def _tell_news(push: Any) -> None:
    for line in _core.push_news(push):
        print(f"memscale: push: {line}", file=sys.stderr)


def _summary(push: Any) -> str:
    counts = _core.push_counts(push)
    return f"{counts['steps']} new steps of {counts['runs']} runs sent"


def _push_all(push: Any, paths: _Paths, server: Server, follow: bool) -> str:
    """Sends until nothing is left, or for ever; the reason if it had to stop."""
    while True:
        paths.look()
        state, wait_s, reason = send_due(push, server, lambda: True)
        _tell_news(push)
        if state == "stopped":
            return reason
        if state == "idle" and not follow:
            return ""
        time.sleep(_LOOK_S if state == "idle" else min(max(wait_s, 0.01), _LOOK_S))


def main(argv: list[str] | None = None) -> int:
    """The command. 0: all that the logs hold is on the server; 1: some is not; 2: the command line is wrong."""
    options = _arguments(argv)
    try:
        server = _server(options)
    except (OSError, UnicodeDecodeError, MemScaleError) as error:
        print(f"memscale: push: {error}", file=sys.stderr)
        return 2
    push = _core.push_new(options.project, options.name, options.ended, options.patience)
    try:
        reason = _push_all(push, _Paths(push, options.paths), server, options.follow)
    except KeyboardInterrupt:
        reason = "" if options.follow else "interrupted"
    if reason:
        print(f"memscale: push: {reason}; the same command goes on from here", file=sys.stderr)
    print(_summary(push))
    return 1 if reason or _core.push_counts(push)["refused_runs"] else 0


if __name__ == "__main__":
    sys.exit(main())
