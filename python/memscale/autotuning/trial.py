"""Runs one trial: a few steps of one batch size in a child process, under a hard memory limit.

`run()` starts the child, which runs `_child()`, and survives however the child ends. The limit is a
memory control group, if one can be made. The child's private maps are limited too, and the parent kills
a child whose resident memory exceeds the limit.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import _core
from ..device import kind_of
from . import payload

__all__ = ["resized", "run"]

_POLL_SECONDS = 0.02


def run(file: Path, request: dict[str, Any], limit_bytes: int, timeout_seconds: float) -> dict[str, Any]:
    """Runs a trial.

    Args:
        file: a file of `payload.dump()` with model, optimizer class, its arguments, sample, and the
            fields of the configuration.
        request: ``batch``, ``accumulation``, ``steps`` and ``wrapped``.
        limit_bytes: the trial ends if its resident memory exceeds this.

    Returns:
        ``outcome`` ("fits", "infeasible", "out_of_memory", "killed", "timeout" or "error"),
        and, if known, ``peak_bytes``, ``step_seconds`` and ``detail``.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    resident, maps = _core.trial_limits(limit_bytes)
    with _group(resident) as group:
        child = context.Process(target=_child, args=(str(file), json.dumps(request), group, maps, sender), daemon=True)
        try:
            child.start()
        except (OSError, RuntimeError) as error:
            return {"outcome": "error", "detail": f"the trial can't be started: {error}"}
        finally:
            sender.close()
        try:
            return _wait(child, receiver, resident, time.monotonic() + timeout_seconds)
        finally:
            receiver.close()
            _end(child)


def _wait(child: Any, receiver: Any, resident: int, until: float) -> dict[str, Any]:
    while not receiver.poll(_POLL_SECONDS):
        if time.monotonic() > until:
            return {"outcome": "timeout"}
        if _resident_bytes(child.pid) > resident:
            return {"outcome": "killed", "detail": "resident memory passed the limit"}
    try:
        outcome: dict[str, Any] = json.loads(receiver.recv())
        return outcome
    except (EOFError, OSError):
        child.join(10)
        return {"outcome": "killed", "detail": f"the process ended with status {child.exitcode}"}


def _end(child: Any) -> None:
    if child.is_alive():
        child.kill()
    child.join()
    child.close()


def _resident_bytes(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(fields[1]) * resource.getpagesize()


@contextlib.contextmanager
def _group(limit_bytes: int) -> Iterator[str | None]:
    """A memory control group for one trial; None if none can be made."""
    made = None
    for root, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        path = Path(root) / f"memscale-trial-{os.getpid()}"
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            (path / file).write_text(str(limit_bytes))
            made = path
            break
        except OSError:
            path.rmdir()
    try:
        yield None if made is None else str(made)
    finally:
        if made is not None:
            with contextlib.suppress(OSError):
                made.rmdir()


# -- in the child ---------------------------------------------------------------------------


def _child(file: str, request: str, group: str | None, maps_bytes: int, sender: Any) -> None:
    with contextlib.suppress(OSError):
        if group is not None:
            Path(group, "cgroup.procs").write_text(str(os.getpid()))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (maps_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    try:
        answer = _train(file, json.loads(request))
    except MemoryError as error:
        answer = {"outcome": "out_of_memory", "detail": str(error)[:500]}
    except Exception as error:
        answer = {"outcome": _outcome_of(error), "detail": f"{type(error).__name__}: {error}"[:500]}
    sender.send(json.dumps(answer))
    sender.close()


def _outcome_of(error: Exception) -> str:
    import torch

    from ..errors import BudgetInfeasibleError

    if isinstance(error, BudgetInfeasibleError):
        return "infeasible"
    is_memory = isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)
    return "out_of_memory" if is_memory else "error"


def _train(file: str, request: dict[str, Any]) -> dict[str, Any]:
    from ..config import Config
    from ..session.setup import wrap_module

    with open(file, "rb") as stream:
        model, optimizer_class, optimizer_arguments, sample, fields = payload.load(stream)
    optimizer = optimizer_class(model.parameters(), **optimizer_arguments)
    model.train()
    batch = resized(sample, request["batch"])
    if request["wrapped"]:
        wrap_module(model, Config(**fields | {"enable_logging": False}), None, optimizer)
    _core.reset_peak_rss()
    seconds = []
    for _ in range(request["steps"]):
        start = time.perf_counter()
        for _ in range(request["accumulation"]):
            _loss(_call(model, batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    return {"outcome": "fits", "peak_bytes": _peak_bytes(model), "step_seconds": min(seconds)}


def _peak_bytes(model: Any) -> int:
    import torch

    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return kind_of(device).peak_bytes(device)


def _call(model: Any, sample: Any) -> Any:
    if isinstance(sample, dict):
        return model(**sample)
    return model(*sample) if isinstance(sample, (tuple, list)) else model(sample)


def _loss(output: Any) -> Any:
    import torch

    loss = getattr(output, "loss", None)
    if loss is not None:
        return loss
    while not isinstance(output, torch.Tensor):
        output = next(iter(output.values() if hasattr(output, "values") else output))
    return output.float().square().mean()


def resized(sample: Any, batch: int) -> Any:
    """The sample with its first dimension repeated or cut to `batch`."""
    import torch

    if isinstance(sample, torch.Tensor):
        if sample.dim() == 0:
            return sample
        index = torch.arange(batch, device=sample.device) % sample.shape[0]
        return sample.index_select(0, index)
    if isinstance(sample, dict):
        return {name: resized(value, batch) for name, value in sample.items()}
    return type(sample)(resized(value, batch) for value in sample) if isinstance(sample, (tuple, list)) else sample
