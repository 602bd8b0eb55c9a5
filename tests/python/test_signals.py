"""Signals that arrive while a step is traced wait for a place where their handlers may raise (ext/undo_signals.c)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pytest
from process_support import environment_of_tests

from memscale import _core


def _send(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)
    time.sleep(0.01)  # a handler that may run, runs here


def test_a_signal_waits_until_the_undo() -> None:
    seen: list[str] = []

    def run(undo: Any) -> None:
        undo.signals()
        _send()
        seen.append("held")

    with pytest.raises(KeyboardInterrupt):
        _core.guarded(run)
        time.sleep(1)
    assert seen == ["held"]
    with pytest.raises(KeyboardInterrupt):  # as before
        _send()
        time.sleep(1)


def test_it_is_let_in_where_the_caller_says_so() -> None:
    seen: list[str] = []

    def run(undo: Any) -> None:
        undo.signals()
        _core.let_signals_in()  # none has come
        for _ in range(2):
            _send()
            try:
                _core.let_signals_in()
            except KeyboardInterrupt:
                seen.append("let in")

    _core.guarded(run)
    time.sleep(0.01)
    assert seen == ["let in", "let in"]


def test_an_error_does_not_hide_it() -> None:
    def run(undo: Any) -> None:
        undo.signals()
        _send()
        raise ValueError("of the function")

    with pytest.raises(KeyboardInterrupt) as caught:
        try:
            _core.guarded(run)
        except ValueError:
            time.sleep(1)
    assert caught.value.__context__ is None or isinstance(caught.value.__context__, ValueError)


def test_every_handler_of_python_waits_and_is_put_back() -> None:
    seen: list[int] = []

    def handler(number: int, frame: Any) -> None:
        seen.append(number)

    def inner(undo: Any) -> None:
        undo.signals()

    def run(undo: Any) -> None:
        undo.signals()
        _core.guarded(inner)  # the inner undo lets nothing in
        _send(signal.SIGUSR1)
        _send(signal.SIGTERM)
        assert seen == []

    numbers = (signal.SIGUSR1, signal.SIGTERM)
    before = [signal.signal(number, handler) for number in numbers]
    ignored = signal.getsignal(signal.SIGPIPE)
    try:
        _core.guarded(run)
        time.sleep(0.01)
        assert sorted(seen) == sorted(numbers)
        assert [signal.getsignal(number) for number in numbers] == [handler, handler]
        assert signal.getsignal(signal.SIGPIPE) == ignored
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)


def test_a_handler_that_the_function_sets_stays() -> None:
    seen: list[str] = []

    def run(undo: Any) -> None:
        undo.signals()
        signal.signal(signal.SIGUSR1, lambda *_: seen.append("new"))
        _send(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append("old"))
    try:
        _core.guarded(run)
        _send(signal.SIGUSR1)
        assert seen == ["new", "new"]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_other_threads_hold_nothing_back() -> None:
    entered, left = threading.Event(), threading.Event()

    def run(undo: Any) -> None:
        undo.signals()
        entered.set()
        left.wait(10)
        _core.let_signals_in()

    thread = threading.Thread(target=lambda: _core.guarded(run))
    thread.start()
    entered.wait(10)
    try:
        with pytest.raises(KeyboardInterrupt):
            _send()
            time.sleep(1)
    finally:
        left.set()
        thread.join()


# Ctrl-C at calls of Python functions that are evenly spread over the first training forward, which traces the step.
# Each in a child, which goes on and compares two steps with an unwrapped model's. An exception that passes through
# torch's C++ from inside of a fake tensor's operator ends the process now and then, so none may come from there.
_INTERRUPTED = textwrap.dedent(
    """
    import os, signal, sys, traceback
    import torch
    from torch import nn
    import memscale

    TIMES = int(sys.argv[1])
    DISPATCH = ("_subclasses", "_python_dispatch", "_library")  # torch's Python that its C++ calls
    torch.set_num_threads(1)  # a forked child has no other threads

    def build():
        torch.manual_seed(0)
        block = lambda: nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        return nn.Sequential(block(), block(), nn.Linear(64, 8))

    x, y = torch.randn(16, 64), torch.randint(8, (16,))

    def step(model):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return [p.grad for p in model.parameters()] + list(model.buffers())

    def child(at):
        calls = 0
        def count(frame, event, argument):
            nonlocal calls
            calls += 1
            if calls == at:
                os.kill(os.getpid(), signal.SIGINT)
        model = memscale.wrap(build(), memscale.Config(force_optimize=True, enable_logging=False))
        sys.setprofile(count)
        try:
            step(model)
            sys.setprofile(None)
            if at == 0:
                os.write(out, str(calls).encode())
        except KeyboardInterrupt as error:
            sys.setprofile(None)
            files = " ".join(frame.filename for frame in traceback.extract_tb(error.__traceback__))
            status = 12 if any(name in files for name in DISPATCH) else 11
        else:
            status = 10
        model.zero_grad()
        plain = build()
        model.load_state_dict(plain.state_dict())
        for _ in range(2):
            if not all(torch.equal(a, b) for a, b in zip(step(model), step(plain), strict=True)):
                return 20
        return status

    def end_of(at):
        process = os.fork()
        if process == 0:
            status = 30
            try:
                status = child(at)
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

    memscale.trace(build(), x)  # loads what the first trace loads, once for all children
    read, out = os.pipe()
    end_of(0)
    total = int(os.read(read, 100))
    ends = [end_of(1 + total * i // TIMES) for i in range(TIMES)]
    print(total, {end: ends.count(end) for end in set(ends)})
    sys.exit(not set(ends) <= {10, 11} or 11 not in ends)
    """
)


def test_ctrl_c_anywhere_in_a_trace_ends_no_process() -> None:
    command = [sys.executable, "-c", _INTERRUPTED, "16"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment_of_tests())
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
