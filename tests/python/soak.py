"""Random models under random plans, faults and interrupts, each beside an unwrapped twin, for as long as told.

`python soak.py SEED` trains one model, `python soak.py SEED SECONDS` the models from that seed on. Each model is
trained in a process of its own. Wrapped model and twin take their steps in turn: losses, gradients, parameters, buffers
and the plain attributes of every module must agree to the bit. In some steps a call of the library fails (`fault_arm`),
or a KeyboardInterrupt is raised at a line of memscale's Python. Such a step may end with an error. Then the twin takes
over what the model holds, and the steps go on: a failed step must change nothing that the next one sees, and a failed
backward nothing at all. In the end `detach()` must leave hooks, modes and attributes as it found them, and no file.

Never part of a test; `make soak` calls it. A failure prints the command that repeats it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import faulthandler
import gc
import logging
import os
import pathlib
import pickle
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from execute_support import assert_nothing_left, hook_tables, no_hooks_left, plan_json, state_of, uniform
from soak_models import Subject, subject_of

import memscale
from memscale import Config, MemScaleError, _core
from memscale.base.modes import FUNCTION, modes_on
from memscale.execution.executor import Executor
from memscale.model.layers import find_layers
from memscale.session.session import Session

OURS = os.path.dirname(memscale.__file__) + os.sep
HANG_SECONDS = 300
STEPS = 5

TECHNIQUES = (
    *("keep", "recompute", "recompute_offload_input", "recompute_joined", "recompute_segment"),
    *("recompute_nested_2", "recompute_nested_3", "offload_disk"),
    *(f"selective_{n}{rest}" for n in range(1, 5) for rest in ("", "_offload_disk")),
)
FAULTS = {
    "write": errno.EIO,
    "read": errno.EIO,
    "short": 0,
    "flip": 0,
    "map": errno.ENOMEM,
    "open": errno.ENOSPC,
    "alloc": errno.ENOMEM,
    "thread": errno.EAGAIN,
    "system": errno.EIO,
}


# ---- what is raised --------------------------------------------------------------------------------


class Interrupts:
    """Counts the events of our files, and raises at the `nth`."""

    def __init__(self, nth: int) -> None:
        self.nth, self.events, self.place = nth, 0, ""

    def __call__(self, frame: Any, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event in ("call", "line"):
            self.events += 1
            if self.events == self.nth:
                self.place = f"{frame.f_code.co_filename.removeprefix(OURS)}:{frame.f_lineno} {frame.f_code.co_name}"
                sys.settrace(None)
                raise KeyboardInterrupt
        return self

    @contextlib.contextmanager
    def raised(self) -> Iterator[None]:
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(None)


@dataclasses.dataclass
class Trouble:
    """What happens to a step: nothing, a fault, or an interrupt."""

    fault: str = ""
    interrupts: Interrupts | None = None
    nth: int = 0
    in_backward: bool = False

    @contextlib.contextmanager
    def around(self, part: str) -> Iterator[None]:
        if self.in_backward and part != "backward":
            yield
        elif self.interrupts is not None:
            with self.interrupts.raised():
                yield
        else:
            if self.fault and not _core.fault_passed(self.fault):
                _core.fault_arm(self.fault, self.nth, FAULTS[self.fault])
            yield

    def struck(self) -> bool:
        """Whether it happened; also ends it."""
        struck = bool(self.fault) and _core.fault_passed(self.fault) >= self.nth
        _core.fault_disarm_all()
        return struck or (self.interrupts is not None and bool(self.interrupts.place))

    def __str__(self) -> str:
        if self.fault:
            return f"{self.fault} {self.nth}"
        return f"interrupt at {self.interrupts.place}" if self.interrupts and self.interrupts.place else "no trouble"


def trouble_of(draw: random.Random, events: int) -> Trouble:
    """For one step; `events` is how many lines of ours an earlier step passed, or 0."""
    choice, in_backward = draw.random(), draw.random() < 0.5
    if choice < 0.25:
        return Trouble(fault=draw.choice(list(FAULTS)), nth=int(2 ** (8 * draw.random())), in_backward=in_backward)
    if choice < 0.5:
        nth = draw.randint(1, events) if events else int(2 ** (15 * draw.random()))
        return Trouble(interrupts=Interrupts(nth), in_backward=in_backward)
    return Trouble(interrupts=Interrupts(0) if choice < 0.6 else None)


def is_allowed(error: BaseException, trouble: Trouble) -> bool:
    """Whether a step may end with this error."""
    if trouble.interrupts is not None and trouble.interrupts.place:
        return isinstance(error, KeyboardInterrupt)
    # torch says this if it is given no memory.
    no_memory = isinstance(error, RuntimeError) and "allocate memory" in str(error)
    return bool(trouble.fault) and (isinstance(error, (MemScaleError, MemoryError)) or no_memory)


# ---- plans -----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Plan:
    """How the model is wrapped: by an executor and a plan of our own, or by `wrap()`."""

    draw: random.Random
    folder: str
    way: str
    technique: str
    other: Subject  # made from the same seed, for use at will

    def attach(self, subject: Subject) -> None:
        {"own": self._own, "forced": self._forced, "chosen": self._chosen, "budget": self._budget}[self.way](subject)

    def _own(self, subject: Subject) -> None:
        draw, model = self.draw, subject.model
        settings = {"min_bytes": draw.choice([1, 1, 256, 1 << 16]), "host_cap": 0}
        settings |= {"write_window": draw.choice([0, 4096, 1 << 20]), "read_window": draw.choice([0, 4096, 1 << 20])}
        root = draw.choice(["keep", "offload_disk"])
        plan = uniform(model, self.technique, root, **settings)
        if draw.random() < 0.5:  # another technique for each layer
            entries = [("", 0, root)]
            for index, (name, _) in enumerate(find_layers(model)):
                entries += [(name, 0, draw.choice(TECHNIQUES)), ("", index + 1, root)]
            plan = plan_json(entries, draw.choice(["keep", "recompute"]), **settings)
        executor = Executor(model, disk_dir=self.folder)
        executor.attach()
        executor.apply(plan)

    def _config(self, **fields: Any) -> Config:
        draw = self.draw
        return Config(
            mode=draw.choice(["conservative", "balanced", "aggressive", "aggressive"]),
            enable_logging=False,
            disk_offload_dir=self.folder,
            use_static_profiling=draw.random() < 0.9,
            warmup_steps=draw.choice([1, 2]),
            auto_policy=draw.random() < 0.1,
            verify_correctness=draw.random() < 0.05,
            **fields,
        )

    def _wrap(self, subject: Subject, config: Config) -> None:
        memscale.wrap(subject.model, config, subject.sample() if self.draw.random() < 0.3 else None)

    def _forced(self, subject: Subject) -> None:
        technique = self.technique

        def make_plan(session: Session, graph: str) -> str:
            return _core.plan_uniform(graph, session.hardware_json, session.config_json, technique)

        Session._make_plan = make_plan  # type: ignore[method-assign]  # the process ends with this model
        self._wrap(subject, self._config(force_optimize=True))

    def _chosen(self, subject: Subject) -> None:
        self._wrap(subject, self._config(force_optimize=self.draw.random() < 0.8))

    def _budget(self, subject: Subject) -> None:
        config = self._config(memory_budget_gb=0.001)
        config.use_static_profiling, config.verify_correctness = True, False
        # A forked process maps its libraries anew, page by page: its resident bytes grow until all were used once.
        memscale.wrap(self.other.model, dataclasses.replace(config, memory_budget_gb=None))
        for part in (*self.other.parts(0), *self.other.parts(0)):
            part[1]()
        memscale.detach(self.other.model)
        try:
            memscale.plan(subject.model, subject.sample(), config)
        except memscale.BudgetInfeasibleError as error:
            config.memory_budget_gb = (error.smallest_budget_bytes + self.draw.randrange(8 << 20)) / 1e9
        except memscale.ProfileError:  # it can't be traced
            config.memory_budget_gb = None
        self._wrap(subject, config)


# ---- one model --------------------------------------------------------------------------------------


def stacks() -> dict[str, Any]:
    """What the process may not keep of a step."""
    return {
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "grad": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "saved-tensor hooks": torch._C._autograd._saved_tensors_hooks_is_enabled(),
        "hooks on the stack": not no_hooks_left(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
    }


def held(subject: Subject) -> dict[str, Any]:
    """All that a model holds, except gradients."""
    state = {key: value for key, value in state_of(subject.model).items() if "_memscale" not in key}
    for name, module in subject.model.named_modules():
        if isinstance(module.__dict__.get("generator"), torch.Generator):
            state[f"{name}.generator"] = module.generator.get_state()
    return state


def results(subject: Subject) -> dict[str, Any]:
    found: dict[str, Any] = {f"loss {index}": loss for index, loss in enumerate(subject.losses)}
    for name, parameter in subject.model.named_parameters():
        found[f"gradient of {name}"] = None if parameter.grad is None else parameter.grad.clone()
    found["random state"] = torch.get_rng_state()
    found["random state of Python"] = random.getstate()
    return found


def is_same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.isnan(), b.isnan()) and _equal(a, b)
    return type(a) is type(b) and bool(a == b)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.nan_to_num(), b.nan_to_num())


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    if found.keys() != expected.keys():
        return [f"{key} is there only once" for key in found.keys() ^ expected.keys()]
    return [key for key in found if not is_same(found[key], expected[key])]


def adopt(subject: Subject, other: Subject) -> None:
    """Gives `subject` what `other` holds."""
    with torch.no_grad():
        for mine, theirs in zip(subject.model.modules(), other.model.modules(), strict=True):
            for name, parameter in theirs._parameters.items():
                if parameter is not None:
                    mine._parameters[name].copy_(parameter)
            for name, buffer in theirs._buffers.items():
                if buffer is not None:
                    mine._buffers[name].copy_(buffer)
            for name, value in theirs.__dict__.items():
                if type(value) in (int, float, bool) and name in mine.__dict__:
                    mine.__dict__[name] = value
            if isinstance(theirs.__dict__.get("generator"), torch.Generator):
                mine.generator.set_state(theirs.generator.get_state())


class Run:
    """One model with its twin."""

    def __init__(self, seed: int, folder: str) -> None:
        self.draw = random.Random(seed + 1)
        self.subject, self.twin = subject_of(seed), subject_of(seed)
        way = self.draw.choice(["own", "own", "forced", "forced", "chosen", "budget"])
        self.plan = Plan(self.draw, folder, way, self.draw.choice(TECHNIQUES), subject_of(seed))
        self.has_trouble = self.draw.random() < 0.7
        self.counts: collections.Counter[str] = collections.Counter({way: 1})
        self.wrong: list[str] = []
        self.events = 0
        self.stacks = stacks()

    def tell(self, what: str) -> None:
        self.wrong.append(f"{self.plan.way} {self.plan.technique}: {what}")

    def left(self, ended: bool, part: str, trouble: Trouble) -> list[str]:
        """What a step has left of its modes."""
        executor = self.subject.model.__dict__.get("_memscale_executor")
        expected = dict(self.stacks)
        profile = None if executor is None else executor._layer_calls.profile
        if profile is not None:  # the profile of a real step goes on to the optimizer's
            expected["dispatch modes"] += 1
            expected["function modes"] += profile._composites in modes_on(FUNCTION)
        if ended and part == "forward" and trouble.interrupts is not None:
            return []  # the next forward ends it: a frame that is traced can't be watched
        return [f"{key} {value}" for key, value in stacks().items() if expected[key] != value]

    def one_step(self, step: int, trouble: Trouble) -> str | None:
        """A step of the wrapped model; what error ended it, or None."""
        held_before, part = None, ""
        self.subject.prepare(step)
        try:
            for part, do in self.subject.parts(step):
                held_before = held(self.subject) if part == "backward" else None
                with trouble.around(part):
                    do()
        except BaseException as error:
            ended: str | None = f"{type(error).__name__} {error}"
            trouble_said = str(trouble)
            if trouble.struck() and is_allowed(error, trouble):
                self.counts["failed steps"] += 1
            elif self.plan.way == "budget" and isinstance(error, memscale.BudgetInfeasibleError):
                self.counts["budgets refused"] += 1
            else:
                where = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{pathlib.Path(where.filename).name}:{where.lineno}"
                self.tell(f"step {step}, {part}, {trouble_said}: {ended} ({place})")
            del error
        else:
            ended = None
            trouble_said = str(trouble)
            self.counts["troubles struck"] += trouble.struck()
        gc.collect()
        if left := self.left(ended is not None, part, trouble):
            self.tell(f"step {step}, {part}, {trouble_said}: left {left}")
        if ended and held_before is not None and not self.subject.replays_itself:
            for key in differences(held(self.subject), held_before)[:3]:
                self.tell(f"step {step}, {trouble_said}: the failed backward changed {key}")
        return ended

    def steps(self) -> None:
        for step in range(STEPS):
            trouble = trouble_of(self.draw, self.events) if self.has_trouble and step < STEPS - 1 else Trouble()
            if self.one_step(step, trouble) is not None:
                adopt(self.twin, self.subject)
                self.twin.prepare(step)
                for subject in (self.subject, self.twin):
                    subject.optimizer.zero_grad()
                continue
            if trouble.interrupts is not None:
                self.events = trouble.interrupts.events
            if not self.compare(step, str(trouble)):
                return
            self.counts["steps"] += 1

    def compare(self, step: int, trouble_said: str) -> bool:
        """The same step by the twin."""
        found = results(self.subject)
        self.twin.prepare(step)
        for _, do in self.twin.parts(step):
            do()
        wrong = differences(found, results(self.twin))
        for subject in (self.subject, self.twin):
            subject.finish(step)
        wrong += differences(held(self.subject), held(self.twin))
        if not wrong:
            torch.manual_seed(step)
            random.seed(step)
            mine = self.subject.evaluate(step)
            torch.manual_seed(step)
            random.seed(step)
            theirs = self.twin.evaluate(step)
            wrong = [] if mine is None or is_same(mine, theirs) else ["loss of the evaluation"]
        if wrong:
            self.tell(f"step {step}, {trouble_said}: {', '.join(wrong[:3])} and {len(wrong)} in all differ")
        return not wrong

    def everything(self) -> None:
        model = self.subject.model
        before = hook_tables(model)
        interrupts = Interrupts(int(2 ** (13 * self.draw.random())) if self.draw.random() < 0.05 else 0)
        try:
            with interrupts.raised():
                self.plan.attach(self.subject)
        except memscale.MemScaleError as error:
            self.counts[f"refused: {type(error).__name__}"] += 1
            if not isinstance(error, memscale.BudgetInfeasibleError):
                self.tell(f"refused: {error}")
        except KeyboardInterrupt:
            self.counts["interrupted wraps"] += 1
        attached: Executor | None = model.__dict__.get("_memscale_executor")
        self.steps()
        if attached is not None:
            for key in ("recomputed_layers", "offloaded_bytes", "fetched_bytes"):
                self.counts[f"models with {key}"] += attached.counters().get(key, 0) > 0
            self.end(attached)
        gc.collect()
        if hook_tables(model) != before:
            changed = [name for name, table in hook_tables(model).items() if before.get(name) != table]
            self.tell(f"hooks or attributes left on {changed[:3]} ({interrupts.place})")
        if not self.wrong:
            self.one_step(STEPS, Trouble())
            self.compare(STEPS, "after detach()")
        if os.listdir(self.plan.folder):
            self.tell(f"files left: {os.listdir(self.plan.folder)}")

    def end(self, executor: Executor) -> None:
        interrupts = Interrupts(int(2 ** (9 * self.draw.random())) if self.draw.random() < 0.1 else 0)
        if not self.wrong:
            try:
                assert_nothing_left(executor)
            except AssertionError as error:
                self.tell(f"left in the executor: {error}")
        try:
            with interrupts.raised():
                executor.detach()
        except KeyboardInterrupt:
            self.counts["interrupted detaches"] += 1
            executor.detach()


# ---- many models -------------------------------------------------------------------------------------


def one_model(seed: int) -> tuple[collections.Counter[str], list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        run = Run(seed, folder)
        run.everything()
    return run.counts, run.wrong


def in_child(seed: int) -> tuple[collections.Counter[str], list[str]]:
    """In a process of its own, which may crash or hang."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            faulthandler.enable()
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            try:
                answer: Any = one_model(seed)
            except BaseException:
                answer = collections.Counter(), [traceback.format_exc()]
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(answer, pipe)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if not data:
        return collections.Counter(), [f"the process ended with status {status:#x}, or hung"]
    return pickle.loads(data)


def _load() -> None:
    """What a first wrap and a first step import, so that no child has to."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    memscale.wrap(model, Config(force_optimize=True, enable_logging=False))
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
    memscale.detach(model)


def main() -> int:
    seed = int(sys.argv[1])
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    logging.disable(logging.CRITICAL)
    # Python prints an exception in a weak reference's callback and drops it.
    sys.unraisablehook = lambda unraisable: None
    torch.set_num_threads(1)
    _load()
    gc.collect()
    gc.freeze()
    totals: collections.Counter[str] = collections.Counter()
    failed = 0
    until, told = time.monotonic() + seconds, time.monotonic()
    while totals["models"] == 0 or time.monotonic() < until:
        counts, wrong = in_child(seed)
        totals += counts
        totals["models"] += 1
        if wrong:
            failed += 1
            print(f"python {pathlib.Path(__file__).resolve()} {seed}")
            print("\n".join(f"    {line}" for line in wrong), flush=True)
        seed += 1
        if time.monotonic() > told + 60:
            told = time.monotonic()
            print(f"{totals['models']} models, {totals['steps']} steps, {failed} failed", flush=True)
    print(f"{failed} of {totals['models']} models failed: " + ", ".join(f"{n} {key}" for key, n in totals.items()))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
