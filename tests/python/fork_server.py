"""The server of forked_python.py: imports torch and transformers, then forks for each program that it is told to run.
Not a test by itself.

Reads a request a line from standard input, `{"command", "environment", "folder", "output", "errors"}`. Answers two
lines: the process's number, and at its end its exit code as subprocess gives it. One program runs at a time.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import random
import runpy
import sys
import types
import warnings
from typing import Any

import numpy
import torch
from transformers import GPT2LMHeadModel, LlamaForCausalLM  # noqa: F401

_PATH = sys.path[1:]  # the first entry is this folder


def _next_program() -> dict[str, Any] | None:
    """The request of the program that this process is to run; None at the end of the requests, which only the server
    sees."""
    for line in iter(sys.stdin.readline, ""):
        request: dict[str, Any] = json.loads(line)
        child = os.fork()
        if child == 0:
            return request
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def _redirect(number: int, path: str, flags: int) -> None:
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, number)
    os.close(opened)


def _become(request: dict[str, Any]) -> list[str]:
    """Makes this process one that `python` has just begun, but for what is imported. Returns its arguments, from the
    program's name on."""
    _redirect(0, os.devnull, os.O_RDONLY)
    _redirect(1, request["output"], os.O_WRONLY)
    _redirect(2, request["errors"], os.O_WRONLY)
    environment: dict[str, str] = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["folder"])
    sys.path[:] = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *_PATH]
    random.seed()
    numpy.random.seed()
    if "OMP_NUM_THREADS" in environment:
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    command: list[str] = request["command"]
    while command[0] == "-W":
        warnings.simplefilter(command[1])  # type: ignore[arg-type]  # one of its words
        command = command[2:]
    return command


def _run(command: list[str]) -> None:
    """Runs `-c CODE`, `-m MODULE` or a file, as `__main__`."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        sys.path.insert(0, "")
        exec(compile(command[1], "<string>", "exec"), main.__dict__)
    elif command[0] == "-m":
        found = importlib.util.find_spec(command[1])
        sys.argv = [str(found.origin if found else command[1]), *command[2:]]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
        main.__file__ = command[0]
        with open(command[0]) as source:
            exec(compile(source.read(), command[0], "exec"), main.__dict__)


if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # what collections of a child touch, the kernel copies
    _request = _next_program()
    if _request is not None:
        _run(_become(_request))
