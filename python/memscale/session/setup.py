"""The steps of `wrap()`, in order: check, take over the allocator, measure, hook, plan.

Only `memscale.api` calls it. On a CPU host the order matters: the allocator is taken over
before the baseline is measured, the baseline is measured before the plan is made, and the
peak counter of the process is reset last.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import logging
import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from ..base.compiler import original_of
from ..base.warnings import warn_nothing_to_undo, warn_replaced
from ..config import AsyncOffloadConfig, Config
from ..device import kind_of
from ..errors import BudgetInfeasibleError, ConfigError, IntegrationError
from ..model.placement import name_on, placement_on, placements_of, planned_device, planned_names
from ..observability.logs import drain_core_log
from ..observability.watch import RunWatch
from .ranks import session_for

if TYPE_CHECKING:
    import torch

    from ..execution.executor import Executor
    from ..execution.per_device import DeviceExecutors
    from ..execution.siblings import Siblings
    from ..model.placement import Placement
    from .session import Session

    _Samples = list[tuple[tuple[Any, ...], dict[str, Any]]]

_log = logging.getLogger("memscale")

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}

# The live executors whose wrap was given a budget.
_with_budgets: weakref.WeakSet[Executor] = weakref.WeakSet()


def effective_config(config: Config, async_offload: bool | None, async_config: AsyncOffloadConfig | None) -> Config:
    """A copy of `config` with `async_offload` from the argument, else the environment, else the field."""
    effective = copy.copy(config)
    if async_offload is None:
        async_offload = _async_from_environment()
    if async_offload is not None:
        effective.async_offload = async_offload
    if async_config is not None:
        effective.async_config = async_config
    return effective


def _async_from_environment() -> bool | None:
    text = os.environ.get("MEMSCALE_ASYNC_OFFLOAD")
    if text is None:
        return None
    if text.strip().lower() in _TRUE:
        return True
    if text.strip().lower() in _FALSE:
        return False
    raise ConfigError(f"MEMSCALE_ASYNC_OFFLOAD: {text!r} is not allowed; give 1 or 0", field="async_offload")


def sample_arguments(model: torch.nn.Module, sample_input: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from a tensor, tuple or mapping.

    Raises:
        TypeError: `sample_input` has another type, or the model's forward does not take it.
    """
    import torch

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(sample_input, Config):
        raise TypeError("sample_input must be the arguments of a training forward, not a Config; pass config=...")
    if isinstance(sample_input, torch.Tensor):
        args = (sample_input,)
    elif isinstance(sample_input, Mapping):
        kwargs = dict(sample_input)
    elif isinstance(sample_input, tuple):
        args = sample_input
    elif isinstance(sample_input, list):
        raise TypeError(
            "sample_input must be one sample here: a tensor, a tuple of positional arguments or a dict of keyword "
            "arguments; a list is several samples, which memscale.wrap() takes"
        )
    else:
        raise TypeError(
            "sample_input must be a tensor, a tuple of positional arguments or a dict of keyword arguments, not "
            f"{type(sample_input).__qualname__}; {_what_to_give_instead(sample_input)}"
        )
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(
            f"sample_input does not fit {type(model).__name__}.forward{signature}: {error}; give a tensor, a "
            "tuple of positional arguments or a dict of keyword arguments"
        ) from None
    return args, kwargs


def _what_to_give_instead(sample_input: Any) -> str:
    if sample_input is None:
        return "give what the training loop passes to the model"
    if isinstance(sample_input, (str, bytes)):
        return "a model reads tensors: give the batch that the text or the file becomes"
    return "give a single argument of another type as a tuple, (argument,)"


def _samples(model: torch.nn.Module, sample_input: Any) -> _Samples:
    """The arguments of each sample; several are a list.

    Raises:
        TypeError: as `sample_arguments()`, or the list is empty.
    """
    if sample_input is None:
        return []
    if not isinstance(sample_input, list):
        return [sample_arguments(model, sample_input)]
    if not sample_input:
        raise TypeError("sample_input is an empty list; give the samples to plan for, such as [shortest, longest]")
    return [sample_arguments(model, sample) for sample in sample_input]


def inside_compiled(module: torch.nn.Module) -> torch.nn.Module:
    """The caller's module, if `module` is what `torch.compile()` returned for it; otherwise `module` itself."""
    original: torch.nn.Module = original_of(module)
    return original


def executor_of(model: torch.nn.Module) -> Executor | DeviceExecutors | None:
    """The executor that `wrap()` left on a module, if any."""
    executor: Executor | DeviceExecutors | None = original_of(model).__dict__.get("_memscale_executor")
    return executor


def wrap_module(
    model: torch.nn.Module,
    config: Config,
    sample_input: Any = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Executor | DeviceExecutors:
    """Wraps one module, or the module inside what `torch.compile()` returned, and returns its executor, attached, or
    its executors if it lies on several devices.

    Raises:
        as `memscale.wrap()`; the model is then left unwrapped.
    """
    from ..execution.siblings import Siblings

    inner = original_of(model)
    placements = placements_of(inner)
    _refuse_unknown_devices(inner, config, placements)
    places: list[Placement | None] = [*placements] if placements else [None]
    members: list[_Member] = []
    samples: _Samples = []
    siblings = Siblings()
    try:
        # The pre-hook that is put first runs last, and the leader switches autocast on before others plan.
        for placement in reversed(places):
            one = _config_on(config, planned_device(inner, placement), placement)
            watch = RunWatch(name_on(inner, placement), one, placement is None or placement.leads)
            with _telling(watch):
                samples = samples if members else _prepared(inner, sample_input, optimizer)
                members.append(_attached(model, one, optimizer, watch, placement, siblings, not samples))
        leader = members[-1]
        for member in reversed(members):
            with _telling(member.watch):
                _plan_samples(inner, member, leader.session, samples)
    except BaseException:
        for member in reversed(members):
            member.executor.detach()
        raise
    _warn_of_several_budgets([member.executor for member in members], config)
    if not placements:
        return leader.executor
    return _together(inner, [member.executor for member in reversed(members)], placements)


class _Member(NamedTuple):
    """The executor of one device and what belongs to it, or those of a model on one device."""

    executor: Executor
    session: Session
    watch: RunWatch


@contextmanager
def _telling(watch: RunWatch) -> Iterator[None]:
    """Tells `watch` of an error, and closes it then."""
    try:
        yield
    except BaseException as error:
        watch.failed(error)
        watch.close()
        raise


def _prepared(model: torch.nn.Module, sample_input: Any, optimizer: torch.optim.Optimizer | None) -> _Samples:
    """Checks what was given, and removes earlier wraps. Returns the samples."""
    from ..base.torch_names import check_torch

    check_torch()
    from ..base.vector_math import settle_vector_math

    settle_vector_math()
    _check_optimizer(optimizer)
    _refuse_what_cannot_be_hooked(model)
    samples = _samples(model, sample_input)
    previous = executor_of(model)
    if previous is not None:
        warn_replaced(model)
        previous.detach()
    _unwrap_submodules(model)
    return samples


def _attached(
    given: torch.nn.Module,
    config: Config,
    optimizer: torch.optim.Optimizer | None,
    watch: RunWatch,
    placement: Placement | None,
    siblings: Siblings,
    says_what_follows: bool,
) -> _Member:
    """An executor of the module, or of the module inside what `torch.compile()` returned, attached."""
    from ..execution.executor import Executor

    model = original_of(given)
    session = session_for(model, config, optimizer, placement)
    executor = Executor(model, config, session, placement=placement, siblings=siblings)
    executor.run_watch = session.run_watch = watch
    watch.begin(executor.counters)
    watch.describe(model, session.hardware_json)
    try:
        executor.attach(given if given is not model else None)
        if says_what_follows:
            _say_what_follows(model, session, config, placement)
    except BaseException:
        executor.detach()
        raise
    return _Member(executor, session, watch)


# ---- models on several devices ----------------------------------------------------------


def place_on(
    model: torch.nn.Module, device: str | torch.device | None, config: Config
) -> tuple[Placement | None, Config]:
    """The device to plan for, as in `placement_on()`, and the config for it.

    Raises:
        IntegrationError: none is named of several, or one that holds no parameter.
        ConfigError: a budget is for a device on which no parameter lies.
    """
    placement = placement_on(model, device)
    _refuse_unknown_devices(model, config, placements_of(model))
    one = _config_on(config, planned_device(model, placement), placement)
    # Nobody leads where there is one plan.
    return placement, dataclasses.replace(one, use_mixed_precision=config.use_mixed_precision)


def _refuse_unknown_devices(model: torch.nn.Module, config: Config, placements: list[Placement]) -> None:
    """Raises ConfigError if a budget is for a device on which no parameter lies."""
    if not isinstance(config.memory_budget_gb, Mapping):
        return
    known = planned_names(model, placements)
    unknown = next((name for name in config.memory_budget_gb if name not in known), None)
    if unknown is not None:
        raise ConfigError(
            f"memory_budget_gb: {unknown!r} is no device that is planned for this {type(model).__name__}, but "
            f"{' and '.join(known)}",
            field="memory_budget_gb",
        )


def _config_on(config: Config, device: torch.device, placement: Placement | None) -> Config:
    """The config for one device: its budget, its share of what the devices' plans divide among them, and without what
    is done once a model, unless it leads."""
    one = config.for_device(str(device))
    if placement is None:
        return one
    if config.verify_correctness and placement.leads:
        _log.warning("verify_correctness: the model lies on several devices; nothing is compared")
    return dataclasses.replace(
        one,
        verify_correctness=False,
        use_mixed_precision=one.use_mixed_precision and placement.leads,
        use_8bit_optimizer=one.use_8bit_optimizer and placement.leads,
        observability_port=one.observability_port if placement.leads else None,
        max_cpu_offload_gb=_share(one.max_cpu_offload_gb, placement),
        max_disk_offload_gb=_share(one.max_disk_offload_gb, placement),
        async_config=None
        if one.async_config is None
        else dataclasses.replace(one.async_config, pinned_pool_gb=_share(one.async_config.pinned_pool_gb, placement)),
    )


def _share(whole: float | None, placement: Placement) -> float | None:
    return None if whole is None else whole / placement.count


def _together(model: torch.nn.Module, executors: list[Executor], placements: list[Placement]) -> DeviceExecutors:
    """Leaves the executors of several devices on the model, as one."""
    from ..execution.hooks import EXECUTOR_ATTRIBUTE
    from ..execution.per_device import DeviceExecutors

    devices = [str(placement.device) for placement in placements]
    together = DeviceExecutors(dict(zip(devices, executors, strict=True)))
    model.__dict__[EXECUTOR_ATTRIBUTE] = together
    hosts = sorted({str(parameter.device) for parameter in model.parameters()} - set(devices))
    if hosts:
        _log.info("what lies on %s has no plan: its tensors stay, and no budget limits them", " and ".join(hosts))
    return together


# ---- parts of a wrap ----------------------------------------------------------------------


def _say_what_follows(
    model: torch.nn.Module, session: Session, config: Config, placement: Placement | None = None
) -> None:
    """Logs the machine and what may be done on it. The plan is logged when shapes are known."""
    device = planned_device(model, placement)
    size = sum(p.numel() * p.element_size() for p in model.parameters() if placement is None or p.device == device)
    _log.info("%s", _core.plan_intent(session.hardware_json, config.to_json(), name_on(model, placement), size))
    drain_core_log()


def _plan_samples(model: torch.nn.Module, member: _Member, leader: Session, samples: _Samples) -> None:
    """Plans for each sample, under the leader's autocast; the last one's plan is put in force. From now on the peak is
    that of the training.

    Raises:
        BudgetInfeasibleError: of the sample that needs the largest budget, which fits the others too.
    """
    from ..base.signature import input_signature

    executor, session, _ = member
    refused: BudgetInfeasibleError | None = None
    for args, kwargs in [] if session.awaits_parameters else samples:
        try:
            with leader.precision(model, args, kwargs):
                plan = session.plan_sample(model, input_signature(model, args, kwargs), args, kwargs)
                if session.applies_at_once and refused is None:
                    executor.apply(plan)
                    executor.verify(args, kwargs)
        except BudgetInfeasibleError as error:
            if refused is None or error.smallest_budget_bytes > refused.smallest_budget_bytes:
                refused = error
    try:
        if refused is not None:
            raise refused
    finally:
        del refused  # as in MemoryProfiler
    kind_of(session.device).reset_peak(session.device)


def _warn_of_several_budgets(executors: list[Executor], config: Config) -> None:
    """Warns if another model has a budget: budgets are the process's, and a plan counts the other
    model's parameters, but not its step."""
    if config.memory_budget_gb is None:
        return
    if _others_have_budgets():
        _log.warning(
            "wrap: another model of this process has a budget too; each plan counts the other's parameters, but not "
            "what it saves for backward nor its gradients: leave room for these in both budgets"
        )
    _with_budgets.update(executors)


def _others_have_budgets() -> bool:
    """Whether another live model has a budget. A model without references may live on in a cycle, so it is
    collected first."""
    if not any(other.is_attached for other in _with_budgets):
        return False
    gc.collect()
    return any(other.is_attached for other in _with_budgets)


def _check_optimizer(optimizer: Any) -> None:
    import torch

    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer or None, not {type(optimizer).__qualname__}")


def unwrap_module(model: torch.nn.Module) -> None:
    """Detaches the executor of a module; warns if it has none."""
    executor = executor_of(model)
    if executor is None:
        warn_nothing_to_undo(model)
    else:
        executor.detach()


def _unwrap_submodules(model: torch.nn.Module) -> None:
    """Detaches wraps inside `model`: saved-tensor hooks do not stack, so only the outermost wrap can act."""
    for name, module in model.named_modules():
        inner = executor_of(module)
        if inner is not None:
            outer = type(model).__name__
            _log.warning("wrap: %s inside this %s was already wrapped; that wrap is removed", name, outer)
            inner.detach()


def _contains_itself(module: torch.nn.Module, around: tuple[int, ...], done: set[int]) -> str | None:
    """The class of the first module at or below `module` that is one of its own submodules; None if there is none."""
    if id(module) in around:
        return type(module).__name__
    if id(module) in done:
        return None
    done.add(id(module))
    within = (*around, id(module))
    return next((found for child in module.children() if (found := _contains_itself(child, within, done))), None)


def _will_change_its_class(module: torch.nn.Module) -> bool:
    """Whether it is a lazy module before its first forward. Such a module may have no lazy parameter."""
    import torch

    is_lazy = isinstance(module, torch.nn.modules.lazy.LazyModuleMixin)
    return is_lazy and isinstance(module.__dict__.get("_initialize_hook"), torch.utils.hooks.RemovableHandle)


def _refuse_what_cannot_be_hooked(model: torch.nn.Module) -> None:
    import torch

    if isinstance(model, torch.jit.ScriptModule):
        raise IntegrationError(
            f"wrap: {type(model).__name__} is a TorchScript module, whose forward hooks do not see "
            "saved tensors; wrap the module it was scripted from"
        )
    inside = _contains_itself(model, (), set())
    if inside is not None:
        raise IntegrationError(
            f"wrap: {inside} contains itself among its submodules; torch's train(), to() and state_dict() fail on such "
            "a model: keep the reference in a list, or make it a weakref"
        )
    named = [*model.named_parameters(), *model.named_buffers()]
    lazy = [name for name, value in named if torch.nn.parameter.is_lazy(value)]
    lazy += [name or type(model).__name__ for name, module in model.named_modules() if _will_change_its_class(module)]
    if lazy:
        raise IntegrationError(f"wrap: {lazy[0]!r} has no shape before the first forward; run one forward, then wrap")
    parameters = list(model.parameters())
    if not parameters:
        _log.warning(
            "wrap: %s has no parameters; there is nothing to train, and memory is only planned for "
            "what its forward saves",
            type(model).__name__,
        )
