"""Raises KeyboardInterrupt at every line and call of memscale's Python in a step. The model must stay intact, and the
next step exact.

A trace function counts events (lines and calls) in memscale's files and raises at the nth, for each n in turn. SQLite's
tests make allocations fail in the same way. `python interrupts.py [--stride N] [--technique NAME]`; `make test` runs it
with large strides.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import torch
from execute_support import no_hooks_left, uniform
from torch import nn

import memscale
from memscale import Config
from memscale.execution.executor import Executor

OURS = os.path.dirname(memscale.__file__) + os.sep
TECHNIQUES = (
    *("recompute", "recompute_segment", "recompute_joined", "recompute_offload_input"),
    *("selective_4", "selective_4_offload_disk", "offload_disk"),
)


class Layer(nn.Module):
    """Has each kind of state that a replay changes and must restore."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.generator = torch.Generator().manual_seed(1)
        self.register_buffer("average", torch.zeros(16))
        self.calls, self.history, self.seen = 0, [], {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.history.append(self.calls)
        self.seen["last"] = self.calls
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        y = torch.nn.functional.gelu(self.norm(self.linear(x)) - self.average)
        return x + y * torch.rand(y.shape, generator=self.generator)


def model_of() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Layer() for _ in range(3)])


def batch(seed: int) -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))


def backward_of(model: nn.Module, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    loss = model(batch(seed)).square().mean()
    loss.backward()
    return loss.detach()


class Counter:
    """Raises at the `nth` event in memscale's files."""

    def __init__(self, nth: int) -> None:
        self.events, self.nth, self.place = 0, nth, ""

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

    def run(self, step: Any) -> bool:
        """Runs the step; returns whether it was interrupted. Python drops an interrupt in a finalizer or a weak
        reference's callback; the step then runs to its end."""
        sys.settrace(self)
        try:
            step()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        return self.place != ""


def identity(model: nn.Module) -> dict[str, Any]:
    """All attributes, buffers, parameters and children of the modules: numbers and strings by value, the rest by id."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        for table in (module.__dict__, module._buffers, module._parameters, module._modules):
            for key, value in table.items():
                if not key.startswith("_memscale"):
                    found[f"{name}.{key}"] = value if isinstance(value, (int, float, str)) else id(value)
    return found


def stacks() -> tuple[Any, ...]:
    c = torch._C
    return (
        c._len_torch_function_stack(),
        c._len_torch_dispatch_stack(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        no_hooks_left(),
    )


def bits(model: nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return [loss, *gradients, *[value.clone() for value in model.state_dict().values()]]


def faults(technique: str, wrapped: bool, directory: str, nth: int) -> tuple[bool, list[str]]:
    """Interrupts the `nth` event of backward (if `wrapped`, of the first step, planning included), then trains another
    step. Returns whether the interrupt came, and a list of faults."""
    model = model_of()
    executor = _attached(model, technique, wrapped, directory)
    counter, wrong = Counter(nth), []
    if not wrapped:
        backward_of(model, 0)
        model.zero_grad()
        torch.manual_seed(1)
        loss = model(batch(1)).square().mean()
        before = identity(model), stacks(), {k: v.clone() for k, v in model.state_dict().items()}
        interrupted = counter.run(loss.backward)
        after = identity(model), stacks(), model.state_dict()
        del loss
        if before[0] != after[0]:
            changed = [key for key in before[0] if before[0][key] != after[0].get(key)]
            wrong.append(f"attributes: {[*changed, *(after[0].keys() - before[0].keys())][:4]}")
        if before[1] != after[1]:
            wrong.append(f"stacks: {before[1]} {after[1]}")
        if list(before[2]) != list(after[2]) or not all(torch.equal(before[2][k], after[2][k]) for k in before[2]):
            wrong.append("state_dict")
    else:
        names = set(model.state_dict())
        interrupted = counter.run(lambda: backward_of(model, 0))
        if set(model.state_dict()) != names:
            wrong.append("state_dict")
        fakes = [name for name, value in model.state_dict().items() if type(value) is not torch.Tensor]
        if fakes:
            wrong.append(f"not plain tensors: {fakes[:3]}")
    # The interrupted step may have changed statistics and counters, as it may unwrapped. The twin starts from them.
    twin = model_of()
    twin.load_state_dict(model.state_dict())
    for own, other in zip(model, twin, strict=True):
        other.calls, other.history, other.seen = own.calls, list(own.history), dict(own.seen)
        other.generator.set_state(own.generator.get_state())
    model.zero_grad()
    try:
        if not _same(bits(model, backward_of(model, 2)), bits(twin, backward_of(twin, 2))):
            wrong.append("the next step's bits")
    except Exception as error:
        wrong.append(f"the next step: {error!r}")
    if stacks() != (0, 0, True, False, True):
        wrong.append(f"stacks after the next step: {stacks()}")
    _detached(model, executor)
    return interrupted, [
        f"{technique} {'step' if wrapped else 'backward'} {nth} {counter.place}: {what}" for what in wrong
    ]


def _attached(model: nn.Module, technique: str, wrapped: bool, directory: str) -> Executor | None:
    if wrapped:
        memscale.wrap(model, Config(force_optimize=True, enable_logging=False, disk_offload_dir=directory))
        return None
    executor = Executor(model, disk_dir=directory)
    executor.attach()
    executor.apply(uniform(model, technique))
    return executor


def _detached(model: nn.Module, executor: Executor | None) -> None:
    if executor is not None:
        executor.detach()
    else:
        memscale.detach(model)


def _same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def all_faults(technique: str, wrapped: bool, directory: str, stride: int, first: int = 1) -> Iterator[str]:
    """Interrupts every `stride`-th event, one per run, until a run ends before its event. Yields the faults."""
    nth = first
    while True:
        interrupted, wrong = faults(technique, wrapped, directory, nth)
        yield from wrong
        if not interrupted:
            return
        nth += stride


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--technique", choices=[*TECHNIQUES, "wrapped"])
    parser.add_argument("--directory", default="/tmp")
    options = parser.parse_args()
    torch.set_num_threads(1)
    count = 0
    for technique in [options.technique] if options.technique else [*TECHNIQUES, "wrapped"]:
        for line in all_faults(technique, technique == "wrapped", options.directory, options.stride):
            count += 1
            print(line, flush=True)
    print(f"{count} faults")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
