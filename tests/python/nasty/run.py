"""Runs the nasty cases and prints the outcome of each. `python run.py [--case PART] [--config NAME] [--device cuda]`.

Trains each case twice unwrapped and checks that the two runs agree. Then trains it wrapped in five configurations and
compares each with the unwrapped run. An outcome is one of

- exact: every loss, gradient, parameter, buffer, generator and watched value has the same bits, and the run leaves the
  process in the same state;
- refused: memscale raised an error in the first step;
- stopped: memscale raised an error in a later step, and everything before it was exact;
- told: only watched values differ (state that the layer writes outside the model), and a warning named the layer;
- wrong: anything else.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import gc
import logging
import os
import pathlib
import pickle
import random
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import cases_ambient
import cases_autograd  # noqa: F401
import cases_copies  # noqa: F401
import cases_effects  # noqa: F401
import cases_hidden  # noqa: F401
import cases_hostile  # noqa: F401
import cases_hostile_loops  # noqa: F401
import cases_loops  # noqa: F401
import cases_modes  # noqa: F401
import cases_more  # noqa: F401
import cases_random  # noqa: F401
import cases_traces  # noqa: F401
import numpy
import torch
from subjects import CASES, Case, Subject

import memscale
import memscale.session.session
from memscale import Config, MemScaleError, _core
from memscale.config import OptimizationMode

# The technique forced on every layer that may use it. None: the planner's own plan.
CONFIGURATIONS: dict[str, str | None] = {
    "recompute": "recompute",
    "selective": "selective_4",
    "offload": "offload_disk",
    "segments": "recompute_segment",
    "smallest": None,
}


@dataclasses.dataclass
class Outcome:
    word: str
    detail: str = ""


# ---- the process's state --------------------------------------------------------------------


def _flags() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, flag in cases_ambient.FLAGS.items():
        try:
            found[name] = flag.read()
        except RuntimeError:  # an old setting that torch has split into several new ones
            found[name] = "unreadable"
    return found


def ambient() -> dict[str, Any]:
    """State of the process that a run could leave changed."""
    state = _flags()
    state |= {
        "function_stack": torch._C._len_torch_function_stack(),
        "dispatch_stack": torch._C._len_torch_dispatch_stack(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast_cpu": torch.is_autocast_enabled("cpu"),
        "saved_hooks": torch._C._autograd._saved_tensors_hooks_is_enabled(),
        "denormals": float(torch.tensor(1e-39) * 1.0) != 0.0,
        "multithreading": torch._C._is_multithreading_enabled(),
    }
    return state


@dataclasses.dataclass
class Run:
    """The results of one run, all of them picklable."""

    found: list[tuple[str, Any]]
    error: str = ""
    error_kind: str = ""
    is_ours: bool = False
    left: dict[str, Any] = dataclasses.field(default_factory=dict)
    heard: list[str] = dataclasses.field(default_factory=list)


def in_child(make: Callable[[], Run]) -> Run:
    """Calls `make` in a new process, so that no run sees changes that another has left."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(make(), pipe)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(data) if data else Run([], f"the process ended with {status}", "crash")


# ---- one run ---------------------------------------------------------------------------------


def train(subject: Subject) -> Iterator[Any]:
    """Runs the usual loop for some steps; yields every value that must not depend on a plan."""
    optimizer = torch.optim.SGD(subject.model.parameters(), lr=0.05, momentum=0.9)
    for step in range(subject.steps):
        torch.manual_seed(100 + step)
        random.seed(100 + step)
        numpy.random.seed(100 + step)
        loss = subject.one_step(subject.batch(step))
        yield f"loss {step}", None if loss is None else loss.detach().clone()
        for name, parameter in subject.model.named_parameters():
            yield f"gradient {step} {name}", None if parameter.grad is None else parameter.grad.clone()
        optimizer.step()
        optimizer.zero_grad()
        for name, value in [*subject.model.named_parameters(), *subject.model.named_buffers()]:
            yield f"value {step} {name}", value.detach().clone()
        yield f"random {step}", torch.get_rng_state()
        if torch.cuda.is_initialized():
            yield f"random of CUDA {step}", torch.cuda.get_rng_state()
        yield f"random of Python {step}", hash(random.getstate())
        yield f"random of NumPy {step}", numpy.random.get_state()[1].tolist()
        if subject.watch is not None:
            yield f"watched {step}", subject.watch()


def collected(subject: Subject) -> Run:
    """Everything that a run has yielded, and the error that ended it, if any."""
    run = Run([])
    try:
        for name, value in train(subject):
            run.found.append((name, on_host(value)))
    except Exception as error:
        run.error, run.error_kind, run.is_ours = str(error), type(error).__name__, isinstance(error, MemScaleError)
        place = traceback.extract_tb(error.__traceback__)[-1]
        run.error += f" ({pathlib.Path(place.filename).name}:{place.lineno})"
    return run


def on_host(value: Any) -> Any:
    """The value with its tensors copied to the host, since the parent that reads it must not use a GPU: it forks."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: on_host(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [on_host(item) for item in value]
    return value


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and bool(torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan()))
        )
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def made(case: Case, device: str) -> Subject:
    torch.manual_seed(1)
    random.seed(1)
    numpy.random.seed(1)
    subject = case.make()
    if device != "cpu":
        subject.model.to(device)
        batch = subject.batch
        subject.batch = lambda step: batch(step).to(device)
    return subject


def plain(case: Case, device: str) -> Run:
    def make() -> Run:
        run = collected(made(case, device))
        run.left = ambient()
        return run

    return in_child(make)


@contextlib.contextmanager
def planned_with(technique: str | None) -> Iterator[None]:
    """Within this context, every plan uses the technique for each layer that may use it; None changes no plan."""
    from memscale.session.session import Session

    usual = Session._make_plan
    if technique is not None:

        def make_plan(session: Session, graph: str) -> str:
            return _core.plan_uniform(graph, session.hardware_json, session.config_json, technique)

        Session._make_plan = make_plan  # type: ignore[method-assign]
    try:
        yield
    finally:
        Session._make_plan = usual  # type: ignore[method-assign]


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    handler, logger = _Heard(), logging.getLogger("memscale")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            yield handler.lines
            handler.lines.extend(str(warning.message) for warning in told)
    finally:
        logger.removeHandler(handler)


def judge(case: Case, configuration: str, expected: Run, device: str = "cpu", **fields: Any) -> Outcome:
    """Runs one case in one configuration and compares it with the plain run."""
    config = Config(
        mode=OptimizationMode.AGGRESSIVE,
        force_optimize=True,
        enable_logging=False,
        disk_offload_dir=os.environ.get("NASTY_DIR", tempfile.gettempdir()),
        **fields,
    )

    def make() -> Run:
        with planned_with(CONFIGURATIONS[configuration]), _listening() as heard:
            subject = made(case, device)
            try:
                memscale.wrap(subject.model, config)
            except MemScaleError as error:
                return Run([], str(error), type(error).__name__, True)
            run = collected(subject)
            memscale.detach(subject.model)
            run.left = ambient()
        run.heard = heard
        return run

    run = in_child(make)
    outcome = _compared(expected, run)
    if outcome.word in ("exact", "told") and run.left != expected.left:
        changed = [key for key in run.left if run.left[key] != expected.left[key]]
        return Outcome("wrong", f"left behind: {changed}")
    return outcome


def _compared(expected: Run, run: Run) -> Outcome:
    pairs = [(name, same(a, b)) for (name, a), (_, b) in zip(expected.found, run.found, strict=False)]
    differ = [name for name, is_same in pairs if not is_same]
    is_told = all(name.startswith("watched") for name in differ) and any("blocks" in line for line in run.heard)
    if differ and not is_told:
        return Outcome("wrong", f"{differ[0]} differs" + _told(run.heard))
    if run.is_ours and not expected.error_kind:
        return Outcome("stopped" if run.found else "refused", run.error)
    if run.error_kind != expected.error_kind or len(run.found) != len(expected.found):
        return Outcome("wrong", f"ended by {run.error_kind} {run.error}")
    return Outcome("told", _told(run.heard)) if differ else Outcome("exact")


def _told(heard: list[str]) -> str:
    return "" if not heard else f" (told: {heard[0][:160]})"


def all_of(case: Case, configurations: list[str], device: str) -> dict[str, Outcome]:
    first, second = plain(case, device), plain(case, device)
    if first.error_kind:
        return dict.fromkeys(configurations, Outcome("fails unwrapped", f"{first.error_kind} {first.error}"))
    differ = [name for (name, a), (_, b) in zip(first.found, second.found, strict=True) if not same(a, b)]
    if differ:
        return dict.fromkeys(configurations, Outcome("differs from itself", differ[0]))
    return {configuration: judge(case, configuration, first, device) for configuration in configurations}


def _load() -> None:
    """Imports every module before children are forked, by training a small wrapped model. Does nothing if torch has
    CUDA: its first backward starts threads that children would lack."""
    if torch.backends.cuda.is_built():
        return
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    memscale.wrap(model, Config(force_optimize=True, enable_logging=False))
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
    memscale.detach(model)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--config", choices=list(CONFIGURATIONS), help="only this configuration")
    parser.add_argument("--every", type=int, default=1, help="only every n-th case")
    parser.add_argument("--first", type=int, default=0, help="number of the first case, from 0")
    parser.add_argument("--device", default="cpu", help="the model and its batches are moved there (default: cpu)")
    parser.add_argument("--output", type=pathlib.Path, help="file to write the list of outcomes to")
    options = parser.parse_args()
    logging.getLogger("memscale").propagate = False
    torch.set_num_threads(1)
    _load()
    gc.collect()
    gc.freeze()
    configurations = [options.config] if options.config else list(CONFIGURATIONS)
    chosen = [case for case in CASES if options.case in str(case)][options.first :: options.every]
    totals: collections.Counter[str] = collections.Counter()
    lines: list[str] = []
    for case in chosen:
        for configuration, outcome in all_of(case, configurations, options.device).items():
            totals[outcome.word] += 1
            if outcome.word != "exact":
                lines.append(f"{outcome.word:9} {case!s:70} {configuration:10} {outcome.detail}")
                print(lines[-1], flush=True)
    summary = f"{len(chosen)} cases, {sum(totals.values())} runs: " + ", ".join(
        f"{count} {word}" for word, count in totals.most_common()
    )
    print(summary)
    if options.output:
        options.output.write_text("\n".join([*lines, summary, ""]))
    return 1 if set(totals) - {"exact", "refused", "told", "stopped"} else 0


if __name__ == "__main__":
    sys.exit(main())
