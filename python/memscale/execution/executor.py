"""The executor carries out a plan on a model by means of hooks.

It is a thin layer above the C room `execute`: it hooks the model, reports every call to C,
and does the work that needs Python (running a layer again, asking for plans). C decides
which tensor stays, moves or is recomputed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from .. import _core
from ..base.after_backward import after_backward
from ..base.arguments import plain_tensors
from ..base.aside import is_replaying, is_tracing
from ..base.modes import sweep
from ..base.settings import Switches
from ..base.signature import Signatures
from ..base.walk import parameters_of
from ..base.weak import weak_method
from ..config import Config
from ..device import kind_of, training_device
from ..errors import IntegrationError, MemScaleError, OffloadError, add_note
from ..model.placement import Placement, devices_of, planned_device, refuse_moved
from ..model.streamed import StreamedLayers
from ..planning.execution_plan import ExecutionPlan
from ..planning.planner import NullPlanner
from ..policy.decision import StrategyDecision, decision_as_configured
from ..techniques.loss_mode import chunked_head, exact_head
from ..techniques.tiles import Tiles
from ..tracing.live_profile import LiveProfile
from .around import FORWARD
from .compilation import refuse_compiled_autograd
from .evaluation import Evaluation
from .fast_paths import unhookable
from .forward_modes import ForwardModes
from .frames import is_around, watch
from .hooked_layers import HookedLayers
from .hooks import RootHooks
from .idle_cache import without_idle_cache
from .layer_calls import LayerCalls, OnThread
from .notices import Notices
from .observation import StepWatch
from .parts import Parts
from .replay import replay
from .siblings import Siblings
from .step_clock import StepClock
from .tier import open_tier
from .uncalled import Uncalled

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..observability.watch import RunWatch
    from ..planning.planner import Planner
    from .rescue import StepRescue

__all__ = ["Executor"]

_log = logging.getLogger("memscale")

Result = TypeVar("Result")

# Number of stack frames from Executor.before_root() up to the frame that calls the model's
# forward. The hook callables of hooks.py lie in between.
_ROOT_CALLER = 2

# The functions that compute the model's cross entropy, by step option.
_LOSS_HEADS = {"chunked_loss_head": chunked_head, "exact_loss_head": exact_head}


class Executor:
    """Applies plans to a model, from `attach()` to `detach()`.

    Args:
        model: the root module.
        config: the configuration that the model was wrapped with.
        planner: gives plans and learns of finished steps; `wrap()` passes its `Session`. If it is
            None, plans come from `apply()` only.
        disk_dir: directory of the disk tier, used when a plan moves anything there.
        placement: the device whose tensors and layers it acts on, if the model lies on several.
        siblings: shared with the executors of the other devices.

    Forwards and backwards may run on any thread.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        config: Config | None = None,
        planner: Planner | None = None,
        disk_dir: str | None = None,
        placement: Placement | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        self._model = weakref.ref(model)
        self._model_name = type(model).__name__
        self._config = config
        self._planner: Planner = NullPlanner() if planner is None else planner
        self._disk_dir = disk_dir
        self._placement = placement
        self._core = _core.Execution(replay, 0 if placement is None else placement.number)
        self._watch = StepWatch(self._core, None if placement is None else placement.device)
        self._signatures = Signatures(model)
        self._clock = StepClock()
        self._evaluation = Evaluation(self._core, self._planner.evaluation_ended)
        self._plan: ExecutionPlan | None = None
        self._signature: str | None = None
        self._device: torch.device | None = None
        self._root: RootHooks | None = None
        self._optimizer_hook: Any = None
        self._siblings = Siblings() if siblings is None else siblings
        self._replay_lock = self._siblings.replay_lock
        self._thread = OnThread()
        self._notices = Notices(self._model_name)
        self._uncalled = Uncalled(self._notices)
        self._tiles = Tiles(model, lambda thread=self._thread: thread.is_apart)  # type: ignore[misc]
        self._modes = ForwardModes(self._thread)
        self._layer_calls = LayerCalls(self._core, self._thread, self._notices, self._siblings, self._tiles)
        self._siblings.add(self, self._layer_calls)
        if planner is not None and placement is None and (config is None or config.use_empirical_fallback):
            begin = weak_method(self, "_part_begins")
            self._layer_calls.parts = Parts(self._core, self._thread, self._evaluation, begin)
        alone = weak_method(self, "_wait_to_unhook")
        self._hooked = HookedLayers(self._core, self._layer_calls, self._notices, alone, placement)
        # Planning swaps the model's tensors for a moment, so no other thread may be in a forward.
        self._planning, self._wait_until_alone = self._siblings.planning, self._siblings.wait_until_alone
        self._knows_backward = False  # whether a sibling has told that the backward under way began
        self._devices: dict[int, torch.device] = {}  # of the parameters when hooks were put on
        self.run_watch: RunWatch | None = None
        self._peak_bytes: int | None = None
        self._held: list[str] = []
        self._rescue: StepRescue | None = None
        self._unverified = planner is not None and bool(getattr(config, "verify_correctness", False))
        self._outside = Switches() if self._unverified else None  # of wrap()

    # -- queries -------------------------------------------------------------------

    @property
    def plan(self) -> ExecutionPlan | None:
        """The plan in force; None before the first training forward without `sample_input`."""
        return self._plan

    @property
    def plans(self) -> dict[str, ExecutionPlan | None]:
        """The plan in force by the name of its device. See `DeviceExecutors` for models on several."""
        return {str(planned_device(self._alive(), self._placement)): self._plan}

    @property
    def decision(self) -> StrategyDecision:
        """Mode and eligible techniques, and who decided on them (`memscale.policy.StrategyDecision`)."""
        found = self._planner.decision
        return decision_as_configured((self._config or Config()).to_json()) if found is None else found

    def counters(self) -> dict[str, int]:
        """Cumulative integers: `steps`, `recomputed_layers`, `offloaded_bytes`, ..."""
        return self._core.counters()

    def stats(self) -> dict[str, Any]:
        """Numbers of the moment: open frames, extents, bytes in flight."""
        self._core.poll()
        return self._core.stats()

    def take_peak_bytes(self) -> int | None:
        """The highest memory use of the training device in the steps that ended since the last call, in
        bytes (resident bytes on a CPU host); None if no step ended or it can't be measured."""
        peak, self._peak_bytes = self._peak_bytes, None
        return peak

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes the run so far as one self-contained HTML page. It shows predicted against measured
        values, memory over time by tier, layers, transfers and counters.

        Raises:
            OSError: `path` can't be written.
            TypeError: `path` is not a path.
        """
        from ..observability.report import write_report

        known, tier = self._planner.documents, self._core.tier()
        write_report(path, self._model_name, self._plan, known, self.run_watch, self.counters(), tier)

    def show_progress(self, stream: TextIO | None = None) -> None:
        """Shows the progress of the run on `stream`, or on standard error if it is None.

        On a terminal one line is rewritten at every step; elsewhere a line is written every few
        seconds.

        Raises:
            TypeError: `stream` has no `write()`.
        """
        if stream is not None and not callable(getattr(stream, "write", None)):
            raise TypeError(f"stream must be a text stream or None, not {type(stream).__qualname__}")
        if self.run_watch is not None:
            self.run_watch.show_progress(stream)

    # -- attach, apply, detach -------------------------------------------------------

    def attach(self, around: torch.nn.Module | None = None) -> None:
        """Puts the hooks of the root on the model; nothing changes before `apply()`. `around` is what `torch.compile()`
        returned for the model, if the caller wrapped that.

        Raises:
            IntegrationError: the model is compiled as a whole, and its layers can't be compiled instead.
        """
        model = self._alive()
        if self._root is not None:
            return
        self._root = RootHooks(model, self, FORWARD if id(model) in unhookable(model) else None)
        self._hooked.take_over_compiled(model, around)
        self._devices = devices_of(model)
        self._layer_calls.streamed = StreamedLayers.of(model)
        self._hook_layers(self._needs_layers())
        self._hooked.surround(model, True)
        self._core.set_began(weak_method(self, "_backward_began"))
        self._optimizer_hook = register_optimizer_step_post_hook(weak_method(self, "_optimizer_stepped"))

    def apply(self, plan: ExecutionPlan | str | None) -> None:
        """Puts `plan` in force from the next forward on. None keeps every tensor.

        Raises:
            OffloadError: the plan moves tensors and the tier can't be opened.
            TypeError: `plan` is neither a plan nor its JSON.
        """
        if plan is not None and not isinstance(plan, str) and not hasattr(plan, "to_json"):
            raise TypeError(f"plan must be an ExecutionPlan, its JSON or None, not {type(plan).__qualname__}")
        text = plan if isinstance(plan, str) or plan is None else plan.to_json()
        if text is not None and self._plan is not None:
            self._core.count_replan()
        self._clock.forget()
        self._core.set_plan(text)
        self._plan = ExecutionPlan(plan) if isinstance(plan, str) else plan
        self._planner.plan_applied(self._plan)
        document = json.loads(text) if text is not None else {}
        chosen = {option["name"] for option in document.get("step_options", ()) if option["chosen"]}
        self._modes.loss_head = next((head for name, head in _LOSS_HEADS.items() if name in chosen), None)
        self._tiles.set("tiled_mlp" in chosen)
        if document:
            self._open_tier(document["settings"])
        self._layer_calls.streamed = StreamedLayers.of(self._alive())
        self._hook_layers(self._needs_layers())

    def _needs_layers(self) -> bool:
        calls = self._layer_calls
        # If there are several devices, all layers have hooks: each executor must know of the others' calls.
        return (
            self._core.is_active()
            or calls.streamed is not None
            or calls.parts is not None
            or self._placement is not None
        )

    def verify(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compares a step under the plan in force with one that keeps everything, once per run and
        only if `verify_correctness` is set. Both steps use these arguments or their first rows.

        Raises:
            IntegrationError: the steps differ. The text names the first parameter whose gradient differs, or the
                layer whose replay differed.
        """
        if not self._unverified or self._plan is None or self._outside is None:
            return
        from .verification import verify_plan

        was_busy, self._thread.is_busy = self._thread.is_busy, True
        try:
            verify_plan(self._alive(), self._planner, self._plan, self._twin, self._outside, args, kwargs)
        finally:
            self._thread.is_busy = was_busy
            self._core.boundary(False)  # the comparison's time and memory count for no step
        self._unverified = False

    def run_step(self, step: Callable[[], Result]) -> Result:
        """Calls `step` and returns its result. If an allocation fails in it, the plan is tightened and
        `step` is called again, a bounded number of times; each repetition is logged.

        Args:
            step: runs a forward and a backward, and does not step the optimizer. Before it is
                repeated, random states and small buffers are restored and gradients are set to
                None. Earlier calls whose gradients had been accumulated are repeated first.

        Raises:
            TypeError: `step` can't be called.
            Exception: whatever `step` raises; the allocation failure if there is no tighter plan.

        Example:
            >>> loss = model._memscale_executor.run_step(lambda: backward_of(model(**batch).loss))
        """
        if not callable(step):
            raise TypeError(f"step must be a function without arguments, not {type(step).__qualname__}")
        if self._rescue is None:
            self.rescue_by(self.tighten)
        assert self._rescue is not None
        return self._rescue.run(step)

    def rescue_by(self, tighten: Callable[[int], None]) -> None:
        """Lets `run_step()` repeat steps under the plans that `tighten` puts in force; see `StepRescue`."""
        from .rescue import StepRescue

        self._rescue = StepRescue(tighten, self._alive())

    def tighten(self, attempt: int) -> None:
        """Puts the next tighter plan in force, for a step that is about to be repeated.

        Raises:
            BudgetInfeasibleError: there is no tighter plan.
        """
        self._core.hooks_in_the_way()
        self._core.poll()
        self._layer_calls.release()
        self.apply(self._planner.tighten(attempt))

    def _twin(self) -> Executor:
        """Another executor of the same model, without a planner."""
        return Executor(self._alive(), self._config, None, self._disk_directory())

    @property
    def is_attached(self) -> bool:
        """Whether `attach()` was called, and `detach()` not since."""
        return self._root is not None

    def training_ended(self, error: BaseException | None = None) -> None:
        """Tells that a trainer's loop is over, by `error` or as it should: its run on a server ends."""
        if self.run_watch is not None:
            self.run_watch.training_ended(error)

    def detach(self) -> None:
        """Removes every hook and attribute from the model. Graphs that still wait for their backward
        stay usable; their extents on the lower tier are released with them."""
        if self._optimizer_hook is not None:
            self._optimizer_hook.remove()
            self._optimizer_hook = None
        self._end_profile(False)
        if self._layer_calls.profile is not None:
            self._layer_calls.profile.discard()
            self._layer_calls.profile = None
        self._end_what_was_broken_off()
        self._modes.loss_head = None
        self._tiles.set(False)
        self._layer_calls.streamed = None
        self._hooked.remove(self._model())
        if self._root is not None:
            self._root.remove()
            self._root = None
        if self._core is not None:
            self._core.hooks_in_the_way()
            self._core.set_plan(None)
            self._core.set_began(None)
            self._core.set_residents([])
            self._core.poll()
        self._watch.forget()
        if self._notices.take_back("use_cache"):
            _log.info("%s decides on use_cache again", self._model_name)
        self._planner.close()
        if self.run_watch is not None:
            self.run_watch.close()

    def _alive(self) -> torch.nn.Module:
        model = self._model()
        if model is None:
            raise MemScaleError("the wrapped model does not exist any more")
        return model

    def _hook_layers(self, wanted: bool) -> None:
        model = self._model()
        if model is not None:
            self._hooked.put(model, wanted)

    def _follow_compilation(self) -> None:
        """Has the step traced again if layers were compiled or replaced."""
        if self._hooked.follow_compilation(self._alive()):
            self._planner.layers_changed()
            self._signature = None

    def root_compiled(self, around: torch.nn.Module | None) -> None:
        """The caller has compiled the wrapped model: in place, or by `around`, which is about to call it.

        Raises:
            IntegrationError: its layers can't be compiled instead.
        """
        self._hooked.take_over_compiled(self._alive(), around)

    def _open_tier(self, settings: dict[str, Any]) -> None:
        open_tier(
            self._core,
            planned_device(self._alive(), self._placement),
            self._config,
            settings,
            self._disk_directory,
            self._planner.disk,
            self._planner.documents[1],
        )

    def _disk_directory(self) -> str:
        if self._disk_dir is not None:
            return self._disk_dir
        if self._config is not None and self._config.disk_offload_dir:
            return str(self._config.disk_offload_dir)
        found = self._planner.disk.get("dir")
        if found is None:
            raise OffloadError("the plan moves tensors to disk, and no directory for them was named")
        return str(found)

    # -- the root's forward -------------------------------------------------------------

    def before_root(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._is_inside_own_forward():
            self._thread.nested_roots += 1
            return None
        if not self._thread.is_apart:
            sweep()
            self._leave_parts()
            self._uncalled.root_called(self._watch.has_seen_backward, torch.is_grad_enabled())
            self._end_what_was_broken_off()
        if self._thread.stands_aside:
            if self._is_evaluation():
                self._evaluation.forward_begins(args, kwargs)
            return None
        obstacle = self._core.hooks_in_the_way()
        if obstacle is None and self._thread.is_transformed:
            obstacle = "transformed"
        if obstacle is not None:
            self._notices.say_obstacle(obstacle)
            return None
        if training_device(module).type == "meta":
            return None  # shapes are computed; nothing is held
        changed = _core.guarded(self._plan_forward, module, args, kwargs)
        if self._core.is_active():
            self._core.set_residents([*parameters_of(module, with_buffers=True), *plain_tensors((args, kwargs))])
        if self._layer_calls.profile is None and self._planner.wants_live_trace:
            self._layer_calls.profile = LiveProfile(
                module, args, changed or kwargs, self._core.set_observer, self._placement
            )
        self._clock.begin(planned_device(module, self._placement))
        self._thread.caller = watch(sys._getframe(_ROOT_CALLER), weak_method(self, "_forward_is_gone"))
        self._core.enter_root(self._thread.caller)
        self._knows_backward = False  # one that failed has not said that it ended
        self._modes.begin_losses()
        return (args, changed) if changed is not None else None

    def after_root(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if is_replaying() or is_tracing():
            return
        if self._thread.nested_roots > 0:
            self._thread.nested_roots -= 1
            return
        if not self._core.in_root():
            if self._is_evaluation():
                self._evaluation.forward_ended(module)
            return
        self._siblings.forward_ended()
        self._modes.end()
        self._core.leave_root(output is None)
        self._thread.caller = None
        self._watch.forward_ended(output)
        if output is not None and not self._core.is_active():
            self._watch.expect_backward(module, output)
        if output is None:
            self._forward_failed(sys.exc_info()[1])
            self._end_profile(False)
            return
        self._planner.forward_ended()
        if (profile := self._layer_calls.own_profile()) is not None:
            profile.forward_ended(output)

    def _is_inside_own_forward(self) -> bool:
        """Whether the root calls itself: its calls inside the outermost one are a part of that forward."""
        thread = self._thread
        return thread.caller is not None and not thread.is_apart and is_around(thread.caller)

    def _is_evaluation(self) -> bool:
        """Whether a forward that stands aside is the caller's own, without gradients."""
        return not (self._thread.is_apart or torch.is_grad_enabled() or self._core.in_root())

    def _plan_forward(
        self, undo: _core.Undo, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Gets a plan for the forward that is about to begin. Returns other keyword arguments to pass, or None."""
        undo.hold(self._planning)
        undo.slot(self._thread.__dict__, "is_busy")
        self._thread.is_busy = True
        try:
            self._boundary(None)
            changed = without_idle_cache(self._notices, module, args, kwargs)
            with self._replay_lock:
                precision = self._planner.precision(module, args, changed or kwargs, self._wait_until_alone)
            self._modes.begin_precision(precision)
            self._ask_for_plan(module, args, changed or kwargs)
            self._watch_forward(module, args, changed or kwargs)
            self._siblings.forward_begins()
        except BaseException:
            self._modes.end_precision()
            raise
        return changed

    def _forward_failed(self, error: BaseException | None) -> None:
        """The root's forward has raised `error`, or has returned None if `error` is None."""
        if error is not None and self._planner.refuses_hooks(error):
            self._signature = None  # ask again
            add_note(
                error,
                "memscale: its saved-tensor hooks caused this error. From the next forward on it leaves this model "
                "alone",
            )

    def _forward_is_gone(self, caller: Any) -> None:
        """The frame that called a forward is gone. Ends the forward if a KeyboardInterrupt kept torch from doing so."""
        if self._thread.caller is not caller:
            return  # it has ended, or a later one has begun, or this is another thread
        self._siblings.forward_ended()
        self._end_what_was_broken_off()
        self._core.leave_root(True)
        self._thread.caller, self._thread.nested_roots = None, 0
        self._end_profile(False)

    def _end_what_was_broken_off(self) -> None:
        """Ends the tape and the modes of a forward that Ctrl-C interrupted on this thread."""
        self._layer_calls.end_tape()
        self._modes.end()

    def _ask_for_plan(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._refuse_capture(module)
        refuse_compiled_autograd(self._model_name)
        self._follow_compilation()
        self._follow_plan(module, self._signatures.of(module, args, kwargs), args, kwargs)
        self.verify(args, kwargs)

    def _follow_plan(self, model: torch.nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Puts the plan in force for the forward `name`, which is about to begin."""
        plan = self._plan
        if self._placement is not None or self._signature is None:
            refuse_moved(model, self._devices, self._placement)
        if self._has_moved(training_device(model)) or name != self._signature:
            with self._replay_lock:
                plan = self._planner.plan_for(model, name, args, kwargs, self._wait_until_alone)
        plan = self._planner.agree(plan)
        self._signature = name if plan is not None else None
        if plan is not self._plan:
            self.apply(plan)

    def _watch_forward(self, model: torch.nn.Module, *arguments: Any) -> None:
        """The plan must know now of gradients that backward may add to, and of what the script has come to hold."""
        if self._watch.forward_begins(model, plain_tensors(arguments)) and self._core.is_active():
            self._teach(self._watch.observation({"step": 0}))
        if self._watch.more_bytes:
            self._follow(self._planner.holds_more(self._watch.more_bytes, self._watch.waiting_forwards))

    def _refuse_capture(self, module: torch.nn.Module) -> None:
        """Raises IntegrationError while a device graph is captured: its launches would store and fetch nothing."""
        kind = kind_of(planned_device(module, self._placement))
        if kind.is_capturing():
            raise IntegrationError(
                f"{self._model_name} can't be captured as a {kind.api} graph while it is wrapped: the host starts "
                "transfers and recomputation, and a graph omits them; call memscale.detach(model) before the capture"
            )

    def _has_moved(self, device: torch.device) -> bool:
        """Whether the model has moved to another device since the last request for a plan.

        Raises:
            IntegrationError: the tier is already open for the old device.
        """
        before, self._device = self._device, device
        if before is None or before == device:
            return False
        if self._core.tier() is not None:
            raise IntegrationError(
                f"{self._model_name} moved from {before} to {device} after its saved tensors had begun to move to host "
                "memory or disk; call memscale.detach(model), then memscale.wrap(model, ...) again"
            )
        return True

    def _wait_to_unhook(self) -> bool:
        with self._planning:
            return self._wait_until_alone()

    # -- layers that the loop calls by itself -------------------------------------------------

    def _part_begins(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """A call of layer `name` outside of the root's forward begins a step. Returns whether it can be followed."""
        model = self._model()  # None if a layer outlives it
        obstacle = self._core.hooks_in_the_way()
        if obstacle is not None:
            self._notices.say_obstacle(obstacle)
        if model is None or obstacle is not None or training_device(model).type == "meta":
            return False
        _core.guarded(self._plan_part, f"{name} of {self._signatures.of(model, args, kwargs)}")
        self._core.set_residents([*parameters_of(model, with_buffers=True), *plain_tensors((args, kwargs))])
        if self._layer_calls.profile is None and self._planner.wants_live_trace:
            self._layer_calls.profile = LiveProfile(model, args, kwargs, self._core.set_observer, in_parts=True)
        self._clock.begin(training_device(model))
        self._core.enter_root(None)  # calls are counted anew
        self._core.leave_root(False)
        self._watch.forward_ended(None)
        return True

    def _plan_part(self, undo: _core.Undo, signature: str) -> None:
        undo.hold(self._planning)
        undo.slot(self._thread.__dict__, "is_busy")
        self._thread.is_busy = True
        self._boundary(None)
        self._follow_compilation()
        self._planner.follows_parts = True
        self._follow_plan(self._alive(), signature, (), {})
        self._watch_forward(self._alive())

    def _leave_parts(self) -> None:
        """The root's forward begins; if with gradients, plans are its own from now on."""
        parts = self._layer_calls.parts
        if parts is None or self._thread.stands_aside:
            return
        profile, self._layer_calls.profile = self._layer_calls.profile, None
        if profile is not None:
            profile.discard()
        self._layer_calls.parts = None
        self._planner.follows_parts = False
        self._signature = None
        self._follow_compilation()
        if not self._needs_layers():
            self._hook_layers(False)  # others may have taken their place since the wrap

    # -- backward and the boundaries of steps -------------------------------------------------

    def _backward_began(self) -> None:
        if self._knows_backward:
            return
        for sibling in self._siblings.executors_beside(self):
            sibling.hear_of_backward()
        self._begin_backward()

    def hear_of_backward(self) -> None:
        """A sibling has seen that a backward begins. It may reach none of the tensors that this executor has saved."""
        if self.is_attached and not self._knows_backward:
            self._knows_backward = True
            self._begin_backward()

    def _begin_backward(self) -> None:
        self._evaluation.end()
        self._parts_ended()
        model = self._model()
        if model is not None:
            self._watch.backward_begins(model)
        if self._layer_calls.profile is not None:
            self._layer_calls.profile.backward_began()
        # Outside a backward this raises: the caller only looks at a node's saved tensors.
        with contextlib.suppress(RuntimeError):
            after_backward(weak_method(self, "_backward_ended"))

    def _backward_ended(self) -> None:
        self._knows_backward = False
        if self._layer_calls.profile is not None:
            self._layer_calls.profile.backward_ended()
        self._watch.backward_ended(self._model())
        self._layer_calls.release()
        self._core.backward_ended()

    def _optimizer_stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if is_tracing():
            return  # the profiler steps a copy of the optimizer
        # An optimizer that steps inside backward, parameter by parameter, does not end the step.
        if torch._C._current_graph_task_id() != -1 or not self._watch.holds_ours(optimizer, self._model()):
            return
        parts = self._layer_calls.parts
        self._uncalled.optimizer_stepped(self._model(), parts is not None and parts.has_begun)
        self._boundary(optimizer)

    def _parts_ended(self) -> None:
        if self._layer_calls.parts is not None:
            self._layer_calls.parts.forwards_ended()

    def _end_profile(self, is_optimizer: bool) -> None:
        """Hands the profile of a finished step to the planner and applies the plan that it gives, if any."""
        profile = self._layer_calls.profile
        if profile is None or not (profile.is_mine or profile.is_orphan):
            return
        self._layer_calls.profile = None
        if not profile.is_mine:
            profile.discard()
            return
        graph = profile.finish(is_optimizer)
        if graph is None and profile.refused is None:
            return  # not a whole step
        self._follow(self._planner.live_trace_finished(graph, profile.refused))

    def _boundary(self, optimizer: torch.optim.Optimizer | None) -> None:
        """A forward is about to begin, or `optimizer` has stepped."""
        self._evaluation.end()
        self._parts_ended()
        with self._planning:
            self._end_profile(optimizer is not None)
            self._core.device_peak(self._device_peak())
            if optimizer is None:
                ended = self._core.boundary(False)
            else:
                ended = self._core.boundary(True, self._watch.is_another(optimizer))
                if self._rescue is not None:
                    self._rescue.update_ended()
            self._tell_held()
            if ended is not None:
                self._step_ended(ended, optimizer)
            elif self._watch.has_new_optimizer and optimizer is not None:
                # A second optimizer stepped after the same backward: its state belongs to the ended step.
                self._teach(self._watch.observation({"step": self._core.counters()["steps"]}))

    def _tell_held(self) -> None:
        """Tells the planner which layers turned out not to be recomputable."""
        held = self._core.held_layers()
        if held == self._held:
            return
        self._held = held
        self._follow(self._planner.layers_held(held))

    def _device_peak(self) -> int | None:
        """The peak of a GPU by torch's allocator. The counters are not reset, because they are the user's."""
        device = self._gpu()
        return None if device is None else kind_of(device).peak_bytes(device)

    def _gpu(self) -> torch.device | None:
        """The training device; None if it is the host."""
        model = self._model()
        device = None if model is None else planned_device(model, self._placement)
        return None if device is None or kind_of(device).is_host else device

    def _step_ended(self, ended: dict[str, int], optimizer: torch.optim.Optimizer | None) -> None:
        self._clock.end(ended["step"])
        if optimizer is not None:
            self._watch.step_ended_by(optimizer)
        if "peak_bytes" in ended:
            self._peak_bytes = max(ended["peak_bytes"], self._peak_bytes or 0)
        if self._plan is None:
            return
        seen = self._watch.observation(ended)
        if self.run_watch is not None:
            self.run_watch.step_finished(seen, self._core.stats()["tier_bytes"])
        self._teach(seen if self._gpu() is None else self._clock.correct(seen))

    def _teach(self, seen: dict[str, Any]) -> None:
        """Passes an observation to the planner and applies the plan that it gives, if any."""
        self._follow(None if self._plan is None else self._planner.step_finished(seen))

    def _follow(self, plan: ExecutionPlan | None) -> None:
        if plan is not None:
            self.apply(plan)

    def __reduce__(self) -> Any:
        raise TypeError("an executor belongs to one model in one process and can't be copied or pickled")
