"""Turns a model and its arguments into a graph of a training step, without running the step.

`MemoryProfiler.trace()` runs the model's forward and backward once under fake tensors (no memory, no
arithmetic) and reports the events to the C tracer, which makes the graph. The model is restored, and
the trace's tensors are removed from the caller's containers. Other effects of the forward and of its
hooks (counting, printing) happen one extra time. If a step can't be traced, `trace()` raises
`ProfileError`, and the executor profiles real steps with `LiveTracer` instead.

One step is enough. The second step starts with the gradients, the optimizer state and the outputs of
the first. The graph names them (`loop`), and the planner adds them. Within the second step storages
are born and die as in the first: caches that a module makes in its first forward are either small
(rotary tables) or are never freed.
"""

from __future__ import annotations

import functools
import gc
import json
import logging
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from ..base.aside import is_tracing, standing_aside
from ..base.compiler import running_eagerly
from ..config import check_config
from ..device import kind_of
from ..errors import IntegrationError, MemScaleError, ProfileError
from ..model.caches import without_cache
from ..model.placement import name_on, planned_device
from .misfit import Misfit, reads_values
from .static_step import StaticStep, Stepping, first_line

if TYPE_CHECKING:
    import torch

    from ..config import Config
    from ..model.isolation import Snapshot
    from ..model.placement import Placement
    from .compiled_calls import CompiledCalls
    from .fakes import Twins
    from .tracer import LiveTracer

__all__ = ["MemoryProfiler", "load_tracer"]

_log = logging.getLogger("memscale")


class _Way(NamedTuple):
    """How a trace treats values: whether transformers may branch on some (`libraries_branch_on_values`), and whether
    those of the sample's integer tensors are known."""

    branches: bool
    knows_integers: bool


_WAYS = _Way(True, False), _Way(True, True), _Way(False, False)


class MemoryProfiler:
    """Describes the machine and traces training steps.

    Args:
        config: its `disk_offload_dir`, `enable_tiling` and `use_8bit_optimizer` are read; may be None.
        placement: the device whose bytes the graphs count, if models lie on several.

    Raises:
        TypeError: `config` is not a `Config`.
    """

    def __init__(self, config: Config | None = None, placement: Placement | None = None) -> None:
        self._config = None if config is None else check_config(config)
        self._placement = placement

    def hardware(self) -> dict[str, Any]:
        """Describes the machine: CPUs, memory and its limits, disks, GPUs; see hardware.schema.json."""
        named = self._config.disk_offload_dir if self._config is not None else None
        found: dict[str, Any] = json.loads(_core.hardware_probe(None if named is None else str(named)))
        return found

    def trace(
        self,
        model: torch.nn.Module,
        sample_args: tuple[Any, ...] = (),
        sample_kwargs: Mapping[str, Any] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        calls: CompiledCalls | None = None,
    ) -> str:
        """Traces one training step under fake tensors.

        Args:
            model: the root module. It is traced in training mode and not changed.
            sample_args, sample_kwargs: arguments of a training forward. Only shapes, dtypes and plain
                values matter. Tensors are not read, except masks, and integers if the forward reads one, in host
                memory.
            optimizer: the optimizer that will step; None: those that live and update the model's parameters. A
                copy is stepped on fake gradients. If there is none, or that fails, or it is somebody else's that was
                not given, an AdamW's state is assumed.
            calls: records how layers are called.

        The first attempt lets transformers branch on values (`libraries_branch_on_values`). If it fails because the
        forward reads a value that is not known (a loss takes the lengths of labels; transformers looks for padding
        among tokens), the second takes the integers of the sample. The last traces without those branches.

        With `enable_tiling` the step is traced a second time, with position-wise modules in tiles, unless the model
        lies on several devices: a plan for one of them can't divide the others' modules.

        Returns:
            The graph as JSON (docs/formats/graph.schema.json).

        Raises:
            ProfileError: the step can't be traced: its control flow depends on values,
                an operator has no fake kernel, or a module still holds a fake tensor.
        """
        from ..base.torch_names import check_torch

        check_torch()
        import torch

        from ..model.optimizers import optimizers_of

        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model: expected an nn.Module, got {type(model).__name__}")
        kwargs = without_cache(model, sample_args, dict(sample_kwargs or {}))
        stepping = Stepping(optimizers_of(model), False) if optimizer is None else Stepping([optimizer], True)
        graph, way = self._trace_somehow(model, sample_args, kwargs, stepping, calls)
        if self._config is None or not self._config.enable_tiling or self._placement is not None:
            return graph
        try:
            tiled = self._trace(model, sample_args, kwargs, stepping, way, in_tiles=True)
        except ProfileError as error:
            _log.debug("in tiles: %s", str(error))
            return graph
        return _core.graph_add_tiled(graph, tiled)

    def _trace_somehow(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        stepping: Stepping,
        calls: CompiledCalls | None,
    ) -> tuple[str, _Way]:
        """The graph, and the first of _WAYS that gives one."""
        from ..model.shards import computes_in_parts

        failed: ProfileError | None = None
        for way in _WAYS:
            if way.knows_integers and not reads_values(failed):
                continue
            try:
                if computes_in_parts(model):  # at their first calls, torch tries operators on whole tensors
                    self._trace(model, args, kwargs, stepping, way)
                return self._trace(model, args, kwargs, stepping, way, calls), way
            except ProfileError as error:
                _log.debug("%s; it was traced with %s", str(error), way)
                failed = error
        assert failed is not None
        try:
            raise failed
        finally:
            del failed  # its traceback has this frame and the caller's, whose variables would wait for the collector

    def _expects_8bit(self, model: torch.nn.Module) -> bool:
        """Whether the model's AdamW will get 8-bit state of memscale's; on a GPU that takes another package."""
        asked = self._config is not None and self._config.use_8bit_optimizer
        return asked and kind_of(planned_device(model, self._placement)).is_host

    def _trace(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        stepping: Stepping,
        way: _Way,
        calls: CompiledCalls | None = None,
        in_tiles: bool = False,
    ) -> str:
        from ..base.divided import has_several_processes
        from ..base.signature import describe_arguments
        from ..model.isolation import isolated
        from ..model.optimizers import have_8bit_moments, made_state_bytes, to_trace
        from ..model.reach import Reach
        from ..model.shards import gathered_parameters
        from ..techniques.tiles import Tiles
        from .fakes import Twins
        from .static_tracer import StaticTracer, libraries_branch_on_values

        name = name_on(model, self._placement)
        obstacle = Reach(list(model.modules())).obstacle
        if obstacle is not None:
            raise ProfileError(f"{name} can't be traced without running it: {obstacle}, and a trace would do that too")
        placement = self._placement
        elsewhere = frozenset[str]() if placement is None else placement.elsewhere(model)
        tracer = StaticTracer(name, describe_arguments(args, kwargs), placement, elsewhere)
        twins = Twins(gathered_parameters(model))
        if has_several_processes() or any(map(_needs_gradients, stepping.optimizers)):
            tracer.gradients_needed()
        tracer.made_state(made_state_bytes(stepping.optimizers, planned_device(model, self._placement)))
        asks_8bit = not stepping.is_given and self._expects_8bit(model)
        expects_8bit = have_8bit_moments(stepping.optimizers) or asks_8bit
        if expects_8bit:
            stepping = stepping._replace(optimizers=[])
        elif not stepping.is_given:
            stepping = stepping._replace(optimizers=to_trace(stepping.optimizers, model))
        step = StaticStep(model, tracer, twins, expects_8bit, way.knows_integers, calls)
        try:

            def run(snapshot: Snapshot) -> None:
                if in_tiles:
                    Tiles(model, is_tracing, traced=True).set(True)  # the snapshot removes them
                with libraries_branch_on_values() if way.branches else nullcontext():
                    step.run(snapshot, args, kwargs, stepping)

            _core.guarded(
                _holding_signals,
                lambda: standing_aside(lambda: running_eagerly(lambda: isolated(model, run), tracer.compiled_code)),
            )
            graph = tracer.finish()
            if calls is not None:
                calls.has_compiled = tracer.has_compiled
        except BaseException as error:
            _take_back_after(error, twins)
            if not isinstance(error, Exception):
                raise
            if isinstance(error, Misfit):
                raise ProfileError(f"the input does not fit {name}: {error}") from error
            kind = "" if isinstance(error, MemScaleError) else f"{type(error).__name__}: "
            raise ProfileError(f"{name} can't be traced without running it: {kind}{first_line(error)}") from error
        finally:
            twins.forget()
        _refuse_leftovers(name, tracer, twins)
        return graph


def _holding_signals(undo: _core.Undo, function: Callable[[], None]) -> None:
    """Calls `function` while signals wait: what their handlers raise could end the process inside of fake tensors.
    Layers' hooks and gradients' let them in."""
    undo.signals()
    function()


@functools.cache
def load_tracer() -> None:
    """Traces a step of two weights, once per process. torch's first trace loads code that stays resident, about
    80 MB, so it has to run before a baseline is measured."""
    import torch

    model = torch.nn.LayerNorm(1, device="cpu")  # draws no random numbers
    with suppress(ProfileError):
        MemoryProfiler().trace(model, (torch.zeros(1, 1, device="cpu"),))


def _needs_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer of memscale's knows that its loop needs all gradients at once."""
    asked = getattr(optimizer, "_needed_gradients", None)
    return asked is not None and asked()


def _take_back_after(error: BaseException, twins: Twins) -> None:
    """Removes a failed trace's tensors from the caller's containers."""
    from .leftovers import take_back

    traceback.clear_frames(error.__traceback__)
    twins.forget()
    take_back(twins.mode)


def _refuse_leftovers(name: str, tracer: LiveTracer, twins: Twins) -> None:
    """Raises if anything still holds a tensor of the trace, after removing it from there.

    Raises:
        IntegrationError: a tensor can't be removed, so the real step would use it.
        ProfileError: the tensors were removed, or only a graph holds them; the model can't be traced.
    """
    from .leftovers import take_back

    if not (tracer.alive() and gc.collect() >= 0 and tracer.alive()):
        return
    holders = take_back(twins.mode)
    if tracer.alive() and gc.collect() >= 0 and tracer.alive():
        if not holders:  # a graph that holds itself (register_multi_grad_hook() makes one); no code can reach it
            raise ProfileError(
                f"{name} can't be traced without running it: its forward makes an autograd graph that is never freed"
            )
        held_by = ", ".join(sorted(set(holders)))
        raise IntegrationError(
            f"{name} was traced under fake tensors, and its forward keeps some in {held_by}, from which memscale can't "
            "remove them; keep them in a list, a dict or an attribute, or not at all"
        )
    raise ProfileError(f"{name} can't be traced without running it: its forward keeps tensors outside its modules")
