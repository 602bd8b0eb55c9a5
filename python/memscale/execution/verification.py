"""Compares steps under the plan with steps that keep everything, before training.

The executor calls `verify_plan` if `verify_correctness` is set. Two steps that keep everything come first: if they
differ, the model does not repeat itself and nothing more is compared. Two steps under the plan follow; the second of
them starts with everything that the first left in memory and on disk. Each must equal the unoptimized step, and
replays compare their saved tensors as well. Every backward runs under the settings of `wrap()`, because a loop may
set others for the forward alone, and after draws from the global generators. All steps run on copies of the model's
buffers and do not touch `.grad`. Random states, attributes and hooks are restored at the end. C says how many rows of
the batch fit the budget.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from .. import _core
from ..base.arguments import plain_tensors
from ..base.settings import Switches
from ..base.walk import is_training, loss_of
from ..device import advance_generators
from ..errors import IntegrationError
from ..model.caches import without_cache
from ..model.isolation import Snapshot, isolated
from ..model.reach import Reach, read_place, write_place

if TYPE_CHECKING:
    from ..planning.execution_plan import ExecutionPlan
    from ..planning.planner import Planner

__all__ = ["verify_plan"]

_log = logging.getLogger("memscale")

_STEPS_COMPARED = 2

_Gradients = dict[str, torch.Tensor | None]


class PlanRunner(Protocol):
    """Carries out a given plan; see `Executor`."""

    def attach(self) -> None: ...

    def apply(self, plan: str | None) -> None: ...

    def detach(self) -> None: ...


def verify_plan(
    model: torch.nn.Module,
    planner: Planner,
    plan: ExecutionPlan,
    make_executor: Callable[[], PlanRunner],
    outside: Switches,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Runs steps with everything kept and steps under `plan`, and compares them.

    Args:
        make_executor: returns an executor of `model` that carries out a given plan.
        outside: the settings under which each backward runs.
        args, kwargs: the arguments of a training forward. If the unoptimized step does not fit
            the budget, the first half of the rows is tried, then a quarter, and so on.

    Raises:
        IntegrationError: loss or gradients differ by more than the plan allows. The text names the
            first such parameter in the order of `named_parameters()`, or the layer whose replay differed.
    """
    if plan.skipped:
        _log.info("verify_correctness: nothing is optimized, so there is nothing to compare")
        return
    obstacle = Reach(list(model.modules())).obstacle
    if obstacle is not None:
        _log.warning("verify_correctness: %s, and a comparison would do that too; nothing is compared", obstacle)
        return
    kwargs = without_cache(model, args, dict(kwargs))
    total = next((len(tensor) for tensor in plain_tensors((args, kwargs)) if tensor.dim() > 0), 0)
    rows = total
    inputs = (args, kwargs)
    while True:
        whole = rows == total
        found = planner.rehearsal(model, plan, None if whole else inputs[0], inputs[1])
        if found is None:
            _log.warning("verify_correctness: the step can't be traced on %d rows; it is not compared", rows)
            return
        fits, exactness, text = found
        if fits:
            break
        if rows <= 1:
            _log.warning("verify_correctness: no unoptimized step fits within the budget; nothing is compared")
            return
        rows //= 2
        inputs = _first_rows((args, kwargs), total, rows)
    if exactness == "lossy":
        _log.info("verify_correctness: the plan changes values as documented; nothing is compared")
        return
    step = partial(_step, model, inputs, outside)
    _compare(step, lambda: step(make_executor, text), exactness, f"{rows} of {total} rows")


def _compare(
    plain_step: Callable[[], _Gradients | None],
    planned_step: Callable[[], _Gradients | None],
    exactness: str,
    scope: str,
) -> None:
    try:
        expected = plain_step()
    except RuntimeError as error:  # reentrant checkpoints refuse torch.autograd.grad()
        _log.warning("verify_correctness: the unoptimized step can't be made (%s); nothing is compared", str(error))
        return
    if expected is None:
        _log.warning("verify_correctness: no output of the forward is differentiable; nothing is compared")
        return
    differing = _differing(expected, plain_step() or {}, exactness)
    if differing:
        _log.warning(
            "verify_correctness: two unoptimized steps of this model differ from each other (%s), so a plan "
            "can't be compared with them: an operator is not deterministic, or the step depends on state of an earlier "
            "step that memscale can't restore",
            differing[0],
        )
        return
    for _ in range(_STEPS_COMPARED):
        try:
            seen = planned_step()
        except IntegrationError as error:  # of a replay, which names its layer
            raise IntegrationError(
                f"verify_correctness: two unoptimized steps agree, but under the plan {error}"
            ) from error
        _hold_against(expected, seen or {}, exactness, scope)
    promise = "equal to the bit" if exactness == "exact" else "equal but for rounding"
    _log.info("verify_correctness: loss and %d gradients are %s (%s)", len(expected) - 1, promise, scope)


def _hold_against(expected: _Gradients, seen: _Gradients, exactness: str, scope: str) -> None:
    differing = _differing(expected, seen, exactness)
    if not differing:
        return
    more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
    raise IntegrationError(
        f"verify_correctness: {differing[0]}{more} under the plan is not what an unoptimized step gives ({scope}), "
        "and two unoptimized steps agree: memscale changes this model. A layer gives other results if its saved "
        "tensors are moved, or if it runs again"
    )


def _step(
    model: torch.nn.Module,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    outside: Switches,
    make_executor: Callable[[], PlanRunner] | None = None,
    plan: str | None = None,
) -> _Gradients | None:
    """Loss and gradients of one step, by their names in an error. The model is restored afterwards."""

    def run(snapshot: Snapshot) -> _Gradients | None:
        _copy_buffers(snapshot)
        if not is_training(model):
            model.train()
        executor = make_executor() if make_executor is not None else None
        try:
            if executor is not None:
                executor.attach()
                executor.apply(plan)
            return _gradients(model, inputs, outside)
        finally:
            if executor is not None:
                executor.detach()

    return isolated(model, run)


def _gradients(
    model: torch.nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]], outside: Switches
) -> _Gradients | None:
    args, kwargs = _first_rows(inputs, -1, 0)
    output = model(*args, **kwargs)
    loss = loss_of(output)
    if loss is None:
        terms = [value.abs().float().square().mean() for value in plain_tensors(output) if value.requires_grad]
        loss = torch.stack(terms).sum() if terms else None
    del output
    if loss is None:
        return None
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    # Unlike backward(), grad() runs no hooks on the accumulation of gradients and leaves .grad alone.
    gradients = _core.guarded(_backward, outside, loss, [parameter for _, parameter in named])
    found: _Gradients = {"the loss": loss.detach()}
    for (name, _), gradient in zip(named, gradients, strict=True):
        found[f"the gradient of {name}"] = gradient
    return found


def _backward(
    undo: Any, outside: Switches, loss: torch.Tensor, parameters: list[torch.nn.Parameter]
) -> tuple[torch.Tensor | None, ...]:
    outside.put(undo)
    advance_generators()
    return torch.autograd.grad(loss, parameters, allow_unused=True)


def _copy_buffers(snapshot: Snapshot) -> None:
    """Replaces buffers and plain tensors by copies; the snapshot restores the originals."""
    copies: dict[int, torch.Tensor] = {}
    for place in snapshot.reach.places if snapshot.reach is not None else ():
        value = read_place(place)
        if isinstance(value, torch.Tensor):
            write_place(place, copies.setdefault(id(value), value.clone()))
    for container in snapshot.containers():
        pairs = list(container.items() if isinstance(container, dict) else enumerate(container))
        for key, value in pairs if isinstance(container, (dict, list)) else ():
            is_leaf = isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
            if is_leaf and not value.requires_grad:
                container[key] = copies.setdefault(id(value), value.clone())


def _first_rows(value: Any, total: int, rows: int) -> Any:
    """`value` with every tensor of `total` rows cut to `rows` rows, detached from the caller's graph."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        part = value[:rows] if value.dim() > 0 and len(value) == total else value
        return part.detach().requires_grad_() if value.requires_grad else part
    if kind in (tuple, list):
        return kind(_first_rows(item, total, rows) for item in value)
    if kind is dict:
        return {key: _first_rows(item, total, rows) for key, item in value.items()}
    return value


def _differing(expected: _Gradients, seen: _Gradients, exactness: str) -> list[str]:
    return [name for name, value in expected.items() if not _same(value, seen.get(name), exactness)]


def _same(a: torch.Tensor | None, b: torch.Tensor | None, exactness: str) -> bool:
    if a is None or b is None:
        return a is b
    if a.layout is not torch.strided or b.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    if exactness == "exact":
        return torch.equal(a, b) or torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
    try:
        torch.testing.assert_close(b, a, equal_nan=True)
    except AssertionError:
        return False
    return True
