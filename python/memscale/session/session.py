"""The session of one wrapped model: its documents and its plans.

A session holds the three documents that planning reads (graph, hardware, config) and
passes them through the stages: the profiler makes the graph, and C makes the plan. After each
step C gets the measurements and says whether to plan again. The executor asks for plans and
reports steps. The session itself decides nothing.
"""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from .. import _core
from ..base.after_backward import in_backward
from ..base.aside import is_tracing
from ..device import kind_of
from ..errors import BudgetInfeasibleError, MemScaleError, ProfileError
from ..model.placement import planned_device
from ..model.shards import has_shards
from ..model.streamed import StreamedLayers
from ..observability.logs import drain_core_log, log_detail
from ..planning.execution_plan import ExecutionPlan
from ..policy.decision import StrategyDecision, decision_as_configured, log_decision, plan_by_policy
from ..tracing.misfit import Misfit, misfit_of
from ..tracing.profiler import MemoryProfiler, load_tracer
from .host_memory import HostMemory
from .machine import keep_scratch, probe_machine, with_kept_scratch, with_process
from .precision import MixedPrecision, decide_precision
from .warm_up import WarmUp

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    import torch

    from ..config import Config
    from ..model.placement import Placement
    from ..observability.watch import RunWatch
    from ..optim.in_place import EightBitInPlace
    from ..tracing.compiled_calls import CompiledCalls, MeasuredCalls

_log = logging.getLogger("memscale")

# The log compares predicted with measured values at this step. Other steps are logged as details.
_TOLD_STEP = 2
_FAR_OVER = 2  # by more than 1%; see ms_overrun

# Number of graphs that are kept, one for each input shape that no other covers. A shape whose
# graph was dropped as the oldest is traced again.
_GRAPHS_MOST = 64


class Session:
    """Plans for one model, from `wrap()` to `detach()`.

    Args:
        model: the wrapped root module.
        config: the caller's configuration; read once, never changed.
        optimizer: traced with the step if given. Otherwise memory for its state is reserved, and
            the number of bytes is corrected at its first step.
        applies: False to plan only; the allocator of the process is then left alone.
        placement: the device to plan for, if the model lies on several.

    Only the thread that runs the model's forward uses it.
    """

    # Whether a plan made at `wrap()` takes effect there; if not, at the first forward.
    applies_at_once = True

    def __init__(
        self,
        model: torch.nn.Module,
        config: Config,
        optimizer: torch.optim.Optimizer | None = None,
        applies: bool = True,
        placement: Placement | None = None,
    ) -> None:
        self.config = config
        self._placement = placement
        self.config_json = config.to_json()
        self._planned_for = self.config_json  # the config after the policy stage
        self._decision: StrategyDecision | None = None  # of the policy stage, if it ran
        self._optimizer = optimizer
        self._profiler = MemoryProfiler(config, placement)
        self._has_sample = False
        self._graphs: dict[str, str] = {}
        self._plans: dict[str, ExecutionPlan] = {}
        self._plans_made: dict[str, int] = {}
        self._current: str | None = None
        self._first: str | None = None  # the shape that training began with
        self._pending = 0, 0  # bytes that earlier forwards of the step under way hold, and their number
        self._is_ahead = False  # whether the step under way, which no plan fits, has the plan of later steps
        self._more_bytes = 0  # of tensors that the script came to hold during training; the baseline includes them
        # Whether a step ended: from then on a shape for which no plan fits does not end the training.
        self._has_run = False
        self._beyond: set[str] = set()  # shapes that run under their smallest plan, over the budget
        self._was_beyond = False
        self._told_beyond = self._told_over = self._told_evaluation = False
        self._serves_smaller = False  # whether the forward has smaller inputs than its plan was made for
        self._warm_up = WarmUp(config.warmup_steps)
        self.follows_parts = False
        self._may_trace_ahead = config.use_static_profiling
        self._replan_refused: str | None = None  # the step that keeps its old plan, because no new one fits
        self._refusal = ""  # the reason, until the user has heard it
        self._idle_numbers = ""  # signatures with '#' for those numbers among the arguments that don't matter
        self._compiled: MeasuredCalls | None = None  # from the first compiled layer on
        self._held: list[str] = []  # layers that can't be recomputed
        self._traced: dict[str, tuple[str, str]] = {}  # by signature without numbers: last signature, its graph
        self._mixed_precision = MixedPrecision() if config.use_mixed_precision else None
        if applies and self._mixed_precision is not None:
            self._mixed_precision.scale_losses(model)
        self._eight_bit: EightBitInPlace | None = None
        if applies and config.use_8bit_optimizer:
            from ..optim.in_place import EightBitInPlace

            self._eight_bit = EightBitInPlace(model, is_tracing)
        self.run_watch: RunWatch | None = None
        self.host_memory = HostMemory()
        self._applies = applies
        self._device = planned_device(model, self._placement)
        self._machine = probe_machine(config, self._device)
        if placement is not None and placement.count > 1:
            self._machine, _ = _core.ranks_agree([(self._machine, self.config_json)], placement.count)
        if applies and kind_of(self._device).is_host:
            self.host_memory.install(model)
        load_tracer()
        self._streamed = StreamedLayers.of(model) if kind_of(self._device).is_host else None
        self._told_window = ""
        self.window_disk_ns = 0  # a step's, for streamed parameters
        if self._streamed is not None:
            _core.streamed_drop()  # the window is planned beside the baseline
        self.hardware_json = with_process(self._machine, self._device, model)

    # -- planning ---------------------------------------------------------------------

    def plan_for(
        self,
        model: torch.nn.Module,
        signature: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wait_until_alone: Callable[[], bool] = lambda: True,
    ) -> ExecutionPlan:
        """The plan for a forward with these arguments. New arguments are traced first.

        If the step can't be traced, the result is the plan of the warm-up steps.

        Args:
            signature: the result of `input_signature()`; equal for forwards that share a plan. A
                plan for similar inputs serves too, if none of them is smaller than these.
            wait_until_alone: called before the model is traced, because nothing else may use the
                model meanwhile; returns False if something else still does.

        Raises:
            BudgetInfeasibleError: no plan fits the budget.
            ProfileError: the step can't be traced and the empirical fallback is off.
        """
        self._follow(model)
        self._warm_up.forward_begins()
        self.hardware_json = self._without_released(model)
        is_traced = self.config.use_static_profiling and not (self._warm_up.is_untraceable or self.follows_parts)
        signature = _core.signature_without_numbers(signature, self._idle_numbers if is_traced else None)
        self._current = self._known(signature)
        self._serves_smaller = self._current not in (None, signature)
        if self._current is None and self._trace_ahead(model, signature, args, kwargs, wait_until_alone):
            self._serves_smaller = True
        if self._current is None:
            self._current = signature
            graph = self._trace(model, args, kwargs, wait_until_alone)
            if graph is None:
                self._current = _core.signature_without_numbers(signature)
                technique = "keep" if self._warm_up.takes_no_hooks else None
                text = _core.plan_uniform(None, self.hardware_json, self.config_json, technique)
                return ExecutionPlan(text, self.hardware_json)
            self._remember(signature, graph)
            self._compare_with_last(signature, graph)
        return self._plan(self._current)

    def _without_released(self, model: torch.nn.Module) -> str:
        """The description of the machine at a forward: at the first one, without what was freed since the wrap."""
        return self.host_memory.begin(self.hardware_json, model)

    def _trace_ahead(
        self,
        model: torch.nn.Module,
        signature: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wait_until_alone: Callable[[], bool],
    ) -> bool:
        """If inputs keep growing, traces larger ones than these: their plan serves all up to them. False if these
        inputs have to be traced. If larger ones can't be traced, or no plan fits them, it stays False."""
        from ..base.signature import resized_arguments

        may_trace = self._may_trace_ahead and not self.follows_parts
        ahead = _core.signature_ahead(list(self._graphs), signature) if may_trace else None
        larger = None if ahead is None else resized_arguments(args, kwargs, ahead)
        if ahead is None or larger is None or not wait_until_alone():
            return False
        try:
            graph = self._profiler.trace(model, *larger, optimizer=self._optimizer)
            self.host_memory.trace_ended()
            self._make_plan(graph)
        except (ProfileError, BudgetInfeasibleError) as error:
            _log.debug("%s", str(error))
            self._may_trace_ahead = False
            return False
        self._current = ahead
        self._remember(ahead, graph)
        return True

    @property
    def device(self) -> torch.device:
        """The device whose memory is planned."""
        return self._device

    @property
    def awaits_parameters(self) -> bool:
        """Whether the model was wrapped on the meta device and has no bytes yet."""
        return self._device.type == "meta"

    def _follow(self, model: torch.nn.Module) -> None:
        """Describes the process again and discards all plans, if the model has moved to another device."""
        device = planned_device(model, self._placement)
        if device == self._device:
            return
        _log.info("the model moved from %s to %s: its plans are made again", self._device, device)
        self._device = device
        if not kind_of(device).is_host:
            self.host_memory.uninstall()
        elif self._applies:
            self.host_memory.install(model)
        self._machine = probe_machine(self.config, device)
        self.hardware_json = with_process(self._machine, device, model)
        self._forget_traces()

    def _compare_with_last(self, signature: str, graph: str) -> None:
        """Learns which numbers among the arguments don't matter (an annealed weight, the step's number).

        If the step was traced before with other numbers and gave the same graph, signatures leave
        these numbers out from now on.
        """
        shape = _core.signature_without_numbers(signature)
        if shape == signature:
            return
        last = self._traced.pop(shape, None)
        learnt = None if last is None else _core.signature_learn(signature, graph, *last)
        if learnt is None:
            while len(self._traced) >= _GRAPHS_MOST:
                del self._traced[next(iter(self._traced))]
            self._traced[shape] = signature, graph
            return
        self._current = learnt
        self._idle_numbers += f",{self._current}"
        self._graphs = {
            _core.signature_without_numbers(key, self._idle_numbers): known for key, known in self._graphs.items()
        }
        self._traced = {shape: (self._current, graph)}
        self._plans.clear()

    def plan_sample(
        self, model: torch.nn.Module, signature: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ExecutionPlan:
        """`plan_for()` for sample arguments, with which no forward is about to run.

        Raises:
            ProfileError: also if the sample's shapes or types do not fit the forward. `plan_for()` leaves
                that error to the forward itself.
        """
        self._has_sample = True
        try:
            return self.plan_for(model, signature, args, kwargs)
        finally:
            self._has_sample = False

    def plan_traced(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The plan for these arguments from a static trace, as JSON. There is no fallback.

        Raises:
            ProfileError: the step can't be traced without running it.
            BudgetInfeasibleError: no plan fits the budget.
        """
        with self.precision(model, args, kwargs):
            graph = self._profiler.trace(model, args, kwargs, optimizer=self._optimizer)
        self._measure_trace()
        return self._make_plan(graph)

    def agree(self, plan: ExecutionPlan | None) -> ExecutionPlan | None:
        """The plan to carry out. Called at every training forward, after `plan_for()` if that was
        needed. Several ranks agree on one plan here; see `ranks.py`."""
        return plan

    def precision(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wait_until_alone: Callable[[], bool] = lambda: True,
    ) -> AbstractContextManager[Any]:
        """The context in which a training forward with these arguments runs: autocast to BF16 or FP16 if
        `use_mixed_precision` is set and C, at the first forward, has decided for it; else one that does nothing."""
        if self._mixed_precision is None:
            return nullcontext()

        def trace() -> str:
            return self._profiler.trace(model, args, kwargs, optimizer=self._optimizer)

        def decide(device: str) -> str:
            tracing = trace if self.config.use_static_profiling and wait_until_alone() else None
            chosen, self.hardware_json = decide_precision(tracing, model, device, self.hardware_json)
            return chosen

        return self._mixed_precision.around(model, planned_device(model, self._placement).type, decide)

    def _make_plan(self, graph: str) -> str:
        """The plan as JSON. With `auto_policy` the policy stage runs first."""
        self._choose_window(graph)
        try:
            if not self.config.auto_policy:
                return _core.plan_make(graph, self.hardware_json, self.config_json)
            plan, decision, self._planned_for = plan_by_policy(graph, self.hardware_json, self.config_json)
        except BudgetInfeasibleError as error:
            if self._placement is not None:
                error.args = (f"{self._device}: {error}",)
            raise
        if self._decision is None or _chosen(decision) != _chosen(self._decision):
            log_decision(decision)
        self._decision = decision
        return plan

    def _choose_window(self, graph: str) -> None:
        """Has C choose how many bytes of streamed parameters stay in memory, if any stream."""
        if self._streamed is None:
            return
        line, self.hardware_json, window_bytes, self.window_disk_ns = _core.plan_window(
            graph, self.hardware_json, self.config_json, self._streamed.sums
        )
        if self._applies:
            _core.streamed_set_window(window_bytes)
        if line != self._told_window:
            self._told_window = line
            _log.info("%s", line)

    @property
    def decision(self) -> StrategyDecision:
        """The policy's decision, or the configuration as it is if no policy runs or has run yet."""
        if self._decision is not None:
            return self._decision
        graph, hardware = self.documents
        return decision_as_configured(self.config_json, graph, hardware)

    @property
    def disk(self) -> Mapping[str, Any]:
        """The disk tier of this machine, as in its description."""
        disk: Mapping[str, Any] = json.loads(self.hardware_json)["disk"]
        return disk

    @property
    def documents(self) -> tuple[str | None, str]:
        """The graph, if any, and the hardware of the plan in force, as JSON."""
        graph = None if self._current is None else self._graphs.get(self._current)
        return graph, self.hardware_json

    def _known(self, signature: str) -> str | None:
        return _core.signature_find(list(self._graphs), signature)

    def _remember(self, signature: str, graph: str) -> None:
        """Keeps a graph. It adopts the facts about the training loop that other shapes have shown."""
        known = next(reversed(self._graphs.values()), None)
        if known is not None:
            graph = _core.graph_adopt_loop(graph, known)
        graph = _core.graph_hold(graph, self._held)
        self.hardware_json = with_kept_scratch(graph, self.hardware_json, self.config_json)
        while len(self._graphs) >= _GRAPHS_MOST:
            oldest = next(iter(self._graphs))
            del self._graphs[oldest]
            self._plans.pop(oldest, None)
        self._graphs[signature] = graph

    def _plan(self, signature: str, has_other: bool = False) -> ExecutionPlan:
        plan = self._plans.get(signature)
        if plan is None:
            return self._put_plan(signature, self._make_plan_or_smallest(signature, has_other))
        self.host_memory.follow(plan, self._serves_smaller)
        return plan

    def _put_plan(self, signature: str, text: str) -> ExecutionPlan:
        """From now on the shape has the plan `text`."""
        plan = self._plans[signature] = ExecutionPlan(text, self.hardware_json)
        self._plans_made[signature] = self._plans_made.get(signature, 0) + 1
        if self.run_watch is not None:
            self.run_watch.plan_made(plan, self._graphs[signature])
        self.host_memory.follow(plan, self._serves_smaller)
        return plan

    def _make_plan_or_smallest(self, signature: str, has_other: bool) -> str:
        """The plan as JSON. A later shape gets its smallest plan if none fits. So does the first shape, once it has
        trained and has no other plan. One warning per run says so."""
        graph = self._graphs[signature]
        try:
            plan = self._make_plan(graph)
        except BudgetInfeasibleError:
            first = self._graphs.get(self._first or "", graph if self._has_run else None)
            is_first = self._first == signature and (has_other or not self._has_run)
            if self.config.strict_budget or self._has_sample or first is None or is_first:
                raise
            self._beyond.add(signature)
            return self._smallest_plan(graph, first)
        self._first = self._first or signature
        return plan

    def _smallest_plan(self, graph: str, first: str, waiting_forwards: int = 0, in_force: str | None = None) -> str:
        """The smallest plan as JSON, for a step that no plan fits, with one warning per run; `in_force`, if that makes
        the same choices. `first`: the graph of the shape that training began with."""
        held_bytes = self._pending[0] if waiting_forwards else self._more_bytes
        plan, line = _core.plan_beyond(
            graph, first, self.hardware_json, self._planned_for, held_bytes, waiting_forwards, in_force
        )
        if self._told_beyond:
            log_detail(line)
        else:
            _log.warning("%s", line)
        self._told_beyond = True
        return plan

    def evaluation_ended(self, before_bytes: int, peak_bytes: int, rows: int) -> None:
        """Warns once of an evaluation that exceeds the budget, with C's text. Says nothing if training exceeds the
        budget too: the user has been warned, and training's maps are still in the cache."""
        if self._current in self._beyond:
            return
        line = _core.plan_evaluation(self.config_json, before_bytes, peak_bytes, rows)
        if line is not None and not self._told_evaluation:
            self._told_evaluation = True
            _log.warning("%s", line)

    def _trace(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wait_until_alone: Callable[[], bool],
    ) -> str | None:
        if not self.config.use_static_profiling:
            if not self.config.use_empirical_fallback:
                raise ProfileError(
                    "use_static_profiling and use_empirical_fallback are both off: "
                    "there is no way left to profile the model"
                )
            return None
        if self.follows_parts or self._warm_up.is_untraceable:
            return None  # a forward that reads values does so at every shape; the log has said so already
        is_alone = False
        try:
            is_alone = wait_until_alone()
            if not is_alone:
                raise ProfileError("the model can't be traced: other threads keep running its forward")
            from ..tracing.compiled_calls import CompiledCalls

            calls = CompiledCalls()
            graph = self._profiler.trace(model, args, kwargs, optimizer=self._optimizer, calls=calls)
            self.host_memory.trace_ended()
            self._measure_trace()
            return self._measured(model, graph, calls)
        except ProfileError as error:
            misfit = misfit_of(error, model, args, kwargs) if self._has_sample else None
            if misfit is not None:
                raise ProfileError(f"sample_input does not fit {type(model).__name__}: {misfit}") from error
            if isinstance(error.__cause__, Misfit):  # the forward is about to raise by itself
                _log.debug("%s", str(error))
                return None
            if self.refuses_hooks(error.__cause__):
                return None
            if not self.config.use_empirical_fallback:
                raise
            self._warm_up.trace_failed(error, is_alone, self._has_sample)
            return None

    def _measure_trace(self) -> None:
        """The first trace has loaded what the model's code needs: it belongs to the baseline from now on."""
        if self._streamed is None and (self.host_memory.is_exact or not self._applies):
            self.hardware_json = _core.hardware_traced(self.hardware_json)

    def _measured(self, model: torch.nn.Module, graph: str, calls: CompiledCalls) -> str:
        """The graph with what compiled layers really do. What their compiler leaves resident joins the baseline."""
        is_counted = self.host_memory.is_exact or not kind_of(self._device).is_host
        if not (calls.has_compiled and is_counted) or self._streamed is not None or has_shards(model):
            return graph
        from ..base.walk import is_training
        from ..tracing.compiled_calls import MeasuredCalls

        self._compiled = self._compiled or MeasuredCalls()
        before_bytes = _core.memory_beside_tensors()
        try:
            graph = self._compiled.put_into(graph, calls, self._device, is_training(model))
        except ProfileError as error:
            _log.debug("%s", str(error))
        self.hardware_json = _core.hardware_grow_by(self.hardware_json, before_bytes, _core.memory_beside_tensors())
        return graph

    def refuses_hooks(self, error: BaseException | None) -> bool:
        """Whether a forward that raised `error` has to run without a plan from now on; see `WarmUp.refuses_hooks()`."""
        refuses = self._warm_up.refuses_hooks(error)
        if refuses:
            self._graphs.clear()
            self._plans.clear()
        return refuses

    def forward_ended(self) -> None:
        """A training forward has ended without an error."""
        self._warm_up.forward_ended()

    def tighten(self, attempt: int) -> ExecutionPlan:
        """The plan under which a step is repeated after an allocation failed in it. `attempt` counts
        the earlier failures of the step. Later plans keep the lowered limits.

        Raises:
            BudgetInfeasibleError: there is no tighter plan.
        """
        signature = self._current
        if signature is None or signature not in self._plans:
            raise BudgetInfeasibleError("there is no plan of a traced step to tighten")
        text, config, line = _core.plan_tighten(
            self._graphs[signature], self.hardware_json, self._planned_for, self._plans[signature].to_json(), attempt
        )
        self.config_json = self._planned_for = config
        self._plans = {signature: ExecutionPlan(text, self.hardware_json)}
        _log.warning("%s", line)
        return self._plan(signature)

    def rehearsal(
        self, model: torch.nn.Module, plan: Any, args: tuple[Any, ...] | None, kwargs: dict[str, Any]
    ) -> tuple[bool, str, str] | None:
        """Prepares to compare `plan` with a step that keeps everything, on these arguments. If `args` is
        None, they are the arguments that the plan was made for.

        Returns:
            whether the step that keeps everything fits the memory of the plan, the class of exactness that
            the plan promises, and the plan to run; None if the step can't be traced.
        """
        graph = self._graphs.get(self._current or "")
        if args is not None and graph is not None:
            try:
                graph = self._profiler.trace(model, args, kwargs)
            except ProfileError as error:
                _log.debug("%s", str(error))
                return None
        return None if graph is None else _core.plan_rehearse(graph, self.hardware_json, plan.to_json())

    # -- warm-up steps of the empirical profiler ----------------------------------------

    @property
    def wants_live_trace(self) -> bool:
        """Whether the forward that is about to run has to be profiled while it runs."""
        return (
            self._current is not None
            and self._current not in self._graphs
            and self._warm_up.wants_profile
            and not in_backward()  # at its end, torch puts back the modes that were on at its begin
        )

    def live_trace_finished(self, graph: str | None, refused: MemScaleError | None) -> ExecutionPlan | None:
        """Takes the graph of a profiled step, or the reason why there is none. Returns the plan once enough
        steps are profiled."""
        if graph is None:
            self._warm_up.step_refused(refused)
            return None
        self._has_run = True
        if not self._warm_up.step_profiled() or self._current is None:
            return None
        self._graphs[self._current] = _core.graph_hold(graph, self._held)
        return self._plan(self._current)

    # -- after a step -------------------------------------------------------------------

    def step_finished(self, observation: dict[str, Any]) -> ExecutionPlan | None:
        """Compares a step with its plan. Returns a new plan if C says to plan again."""
        drain_core_log()
        self._has_run |= observation["step"] > 0
        self.host_memory.step_ended(observation)
        signature = self._current
        # A step over the budget leaves memory in the cache, so the step after it can't be compared either.
        was_beyond, self._was_beyond = self._was_beyond, signature in self._beyond
        if signature is None or signature not in self._plans or was_beyond or self._was_beyond:
            self._tell_unplanned(observation.get("peak_bytes"))
            return None
        was_pending = self._know_pending()
        drift, line, graph, hardware, overrun = _core.plan_observe(
            self._graphs[signature],
            self.hardware_json,
            self._planned_for,
            self._plans[signature].to_json(),
            {
                "baseline_held_bytes": self._more_bytes,
                **observation,
                "peak_bytes": None if self._is_ahead else observation.get("peak_bytes"),
                "smaller_inputs": self._serves_smaller,
                "plans": self._plans_made.get(signature, 0),
                "replan_refused": signature == self._replan_refused,
            },
        )
        is_told = overrun == _FAR_OVER and not (self._told_beyond or self._told_over)
        if observation["step"] == _TOLD_STEP and not is_told:
            _log.info("%s", line)
        else:
            log_detail(line)
        before, self.hardware_json = self.hardware_json, hardware  # also without drift: it learns the machine's pace
        plan = None
        self._is_ahead &= observation["step"] == 0
        if drift != "none" or was_pending:
            keep_scratch(graph, before, hardware)
            self._graphs[signature] = graph
            plan = self._plan_again(signature)
        if overrun and self._refusal:
            plan = self._go_on(signature)
        elif is_told:
            self._told_over = True
            _log.warning("%s", line)
        if plan is not None:
            self.host_memory.step_begins()
        return plan

    def _tell_unplanned(self, peak_bytes: int | None) -> None:
        """Warns once of a step over the budget that has no plan and gets none, because real steps can't be followed."""
        budget_gb = self.config.memory_budget_gb
        if peak_bytes is None or not isinstance(budget_gb, float | int) or not self._warm_up.has_given_up:
            return
        if peak_bytes > 1.01e9 * budget_gb and not self._told_over:
            self._told_over = True
            _log.warning(
                "a step took %.2f GB, and the budget is %.2f GB: its steps can't be followed, so no plan can keep the "
                "budget; make the batch smaller, or the budget larger",
                peak_bytes / 1e9,
                budget_gb,
            )

    def holds_more(self, more_bytes: int, waiting_forwards: int) -> ExecutionPlan | None:
        """From now on plans leave room for `more_bytes` that the script came to hold; in this step only, if earlier
        forwards hold them, which later plans count. Returns a plan for this step, if the one in force has to change."""
        signature = self._current
        if self.config.memory_budget_gb is None or signature is None or signature not in self._plans:
            return None
        self._more_bytes += more_bytes
        if waiting_forwards > 0:
            self._pending = self._pending[0] + more_bytes, waiting_forwards
        self.host_memory.baseline_bytes = self._more_bytes
        self.hardware_json = _core.hardware_grow_by(self.hardware_json, 0, more_bytes)
        if self._is_ahead or (signature == self._replan_refused and not self._refusal):
            return None  # the best that there is for a step that no plan fits
        same = self._refreshed(signature, self._plans[signature])
        if same is None:
            return self._plan_again(signature) or self._put_smallest(signature, waiting_forwards)
        self._plans[signature] = same
        return self._plan(signature)

    def _know_pending(self) -> bool:
        """After a step in which forwards waited for their backward: from now on plans compute what waiting forwards
        hold, instead of using the bytes measured in this step. Returns whether it was such a step."""
        pending_bytes, forwards = self._pending
        if forwards == 0:
            return False
        self._pending = 0, 0
        self._more_bytes -= pending_bytes
        self.host_memory.baseline_bytes = self._more_bytes
        self.hardware_json = _core.hardware_shrink_by(self.hardware_json, pending_bytes)
        self._graphs = {key: _core.graph_pend(graph, forwards) for key, graph in self._graphs.items()}
        return True

    def _put_smallest(self, signature: str, waiting_forwards: int) -> ExecutionPlan | None:
        """A plan in place of one that the step under way can't have: the smallest, or the plan for later steps if only
        this one doesn't fit, because its forwards so far ran under a plan that didn't count the others."""
        if waiting_forwards == 0:
            return self._go_on(signature)
        smallest = self._smallest_plan(self._graphs[signature], self._graphs[signature], waiting_forwards)
        self._know_pending()
        self._replan_refused, self._refusal, self._is_ahead = None, "", True
        del self._plans[signature]
        try:
            return self._plan(signature, has_other=True)
        except BudgetInfeasibleError:
            return self._put_plan(signature, smallest)

    def _go_on(self, signature: str) -> ExecutionPlan | None:
        """No plan fits any more: the run goes on under the smallest."""
        self._refusal = ""
        graph, old = self._graphs[signature], self._plans[signature].to_json()
        text = self._smallest_plan(graph, graph, in_force=old)
        return None if text == old else self._put_plan(signature, text)

    def layers_held(self, names: list[str]) -> ExecutionPlan | None:
        """From now on plans don't recompute the layers `names`, all that turned out not to be recomputable.
        Returns a new plan for the step under way, if it has one."""
        self._held = names
        self._graphs = {key: _core.graph_hold(graph, names) for key, graph in self._graphs.items()}
        signature = self._current
        if signature is None or signature not in self._plans:
            self._plans.clear()
            return None
        plan = self._plan_again(signature)
        self._tell_refusal()
        return plan

    def layers_changed(self) -> None:
        """Layers were compiled or replaced: traces of the model as it was are void."""
        self._forget_traces()

    def _forget_traces(self) -> None:
        self._compiled = None
        self._graphs.clear()
        self._plans.clear()
        self._traced.clear()

    def _plan_again(self, signature: str) -> ExecutionPlan | None:
        """Plans for corrected documents. Plans of other shapes came from the old ones: they get new figures, or are
        made again on request."""
        old = self._plans.pop(signature)
        for other in [key for key in self._plans if key in self._graphs]:
            self._graphs[other] = _core.graph_adopt_loop(self._graphs[other], self._graphs[signature])
        plans = {**self._plans, signature: old}
        self._plans = {key: new for key, plan in plans.items() if (new := self._refreshed(key, plan)) is not None}
        self._replan_refused, self._refusal = None, ""
        try:
            return self._plan(signature, has_other=True)
        except BudgetInfeasibleError as error:
            self._plans[signature] = old
            self._replan_refused = signature
            self._refusal = f"{error}; the run goes on with the plan it has"
            log_detail(self._refusal)
            return None

    def _refreshed(self, signature: str, plan: ExecutionPlan) -> ExecutionPlan | None:
        """The same choices for the documents of now; None if another plan is due."""
        graph = self._graphs.get(signature)
        if graph is None or self._streamed is not None:
            return None
        text = _core.plan_again(graph, self.hardware_json, self._planned_for, plan.to_json())
        return None if text is None else ExecutionPlan(text, self.hardware_json)

    def _tell_refusal(self) -> None:
        """Warns that no other plan fits, unless that was said. While steps keep the budget, it is no matter for the
        user."""
        if self._refusal:
            _log.warning("%s", self._refusal)
            self._refusal = ""

    def plan_applied(self, plan: ExecutionPlan | None) -> None:
        """Passes the plan's step options to the optimizer, if it is memscale's own."""
        arrange = getattr(self._optimizer, "_arrange", None)
        if arrange is None or self._placement is not None:
            return
        text = None if plan is None else plan.to_json()
        *wanted, moved_bytes = _core.plan_for_optimizer(text, self.config_json)
        if moved_bytes > 0:  # what another shape's plan moves stays away, or each change of shape would move it
            others = [other.moved_state_bytes for other in self._plans.values()]
            moved_bytes = 0 if 0 in others else max([moved_bytes, *(other or 0 for other in others)])
        arrange(*wanted, moved_bytes, directory=self.config.disk_offload_dir, cap_gb=self.config.max_disk_offload_gb)

    def close(self) -> None:
        """Releases the share in the allocator and discards graphs and plans."""
        self.plan_applied(None)
        if self._mixed_precision is not None:
            self._mixed_precision.close()
        if self._eight_bit is not None:
            self._eight_bit.close()
        self.host_memory.uninstall()
        self._graphs.clear()
        self._plans.clear()
        drain_core_log()


def _chosen(decision: StrategyDecision) -> tuple[Any, ...]:
    """What a decision chose, without the numbers behind it."""
    return decision.decision_source, decision.mode, decision.techniques
