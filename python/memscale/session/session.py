"""The session of one wrapped model: what is known, and the plan that follows from it.

A session holds the three documents that planning reads (graph, hardware, config) and
hands them through the stages: the profiler makes the graph, C makes the plan, and what a
finished step showed goes back to C, which says whether to plan again. The executor asks
for plans and reports steps. Nothing here decides.
"""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from .. import _core
from ..device import kind_of, training_device
from ..errors import BudgetInfeasibleError, MemScaleError, ProfileError
from ..observability.logs import drain_core_log, log_detail
from ..planning.execution_plan import ExecutionPlan
from ..policy.decision import log_decision, plan_by_policy
from ..tracing.misfit import Misfit, misfit_of
from ..tracing.profiler import MemoryProfiler, load_tracer
from .host_memory import HostMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    import torch

    from ..config import Config
    from ..observability.watch import RunWatch
    from ..techniques.loss_scaling import LossScaling

_log = logging.getLogger("memscale")

# The step whose comparison of predicted with measured everyone is told. Others are details.
_TOLD_STEP = 2

# Graphs of input shapes that no other covers; the oldest is traced again if it comes back.
_GRAPHS_MOST = 64

# Profiled steps in a row that could not be followed, after which no more are profiled.
_REFUSED_STEPS = 3

# What the derivatives of torch.func say where they meet saved-tensor hooks.
_NO_HOOKS = "don't yet support saved tensor hooks"


class Session:
    """Plans for one model, from `wrap()` to `detach()`.

    Args:
        model: the wrapped root module.
        config: the caller's configuration; read once, never changed.
        optimizer: traced with the step when known; otherwise its state is reserved for and
            corrected at the first step that it makes.
        applies: False to plan only: the process's memory is then not touched.

    Used by the thread that runs the model's forward.
    """

    # Whether a plan made at `wrap()` is put in force there, or at the first forward.
    applies_at_once = True

    def __init__(
        self,
        model: torch.nn.Module,
        config: Config,
        optimizer: torch.optim.Optimizer | None = None,
        applies: bool = True,
    ) -> None:
        self.config = config
        self.config_json = config.to_json()
        self._planned_for = self.config_json  # what stage 1 made of it
        self.decision: dict[str, Any] | None = None
        self._optimizer = optimizer
        self._profiler = MemoryProfiler(config)
        self._has_sample = False
        self._graphs: dict[str, str] = {}
        self._plans: dict[str, ExecutionPlan] = {}
        self._plans_made: dict[str, int] = {}
        self._current: str | None = None
        self._first: str | None = None  # the shape that training began with
        self._beyond: set[str] = set()  # shapes that run under their smallest plan, over the budget
        self._was_beyond = False
        self._told_beyond = self._told_evaluation = False
        self._serves_smaller = False  # whether the forward has smaller inputs than its plan was made for
        self._profiled_steps = 0
        self._refused_steps = 0
        self._is_untraceable = False
        self._takes_no_hooks = False
        self._replan_refused: str | None = None  # the step whose plan goes on for want of another
        self._idle_numbers = ""  # signatures with '#' for numbers among the arguments that change nothing
        self._held: list[str] = []  # layers that can't be recomputed
        self._traced: dict[str, tuple[str, str]] = {}  # by signature without numbers: the last, and its graph
        self._precision: str | None = None  # dtype that forwards run under autocast to, or ""; None: not decided
        self._loss_scaling: LossScaling | None = None  # where that is FP16, or may be
        if applies and config.use_mixed_precision:
            self._scale_losses(model)
        self.run_watch: RunWatch | None = None
        self.host_memory = HostMemory()
        self._machine = probe_machine(config)
        self._applies = applies
        self._device = training_device(model)
        if applies and kind_of(self._device).is_host:
            self.host_memory.install()
        load_tracer()
        self.hardware_json = _with_process(self._machine, self._device)

    # -- planning ---------------------------------------------------------------------

    def plan_for(
        self,
        model: torch.nn.Module,
        signature: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wait_until_alone: Callable[[], bool] = lambda: True,
    ) -> ExecutionPlan:
        """The plan for a forward with these arguments; traced if they are new.

        Args:
            signature: as `input_signature()` gives it: equal for forwards that a plan can't
                tell apart. A plan for inputs that are alike and nowhere smaller serves too.
            wait_until_alone: called before the model is traced, which nothing else may use
            meanwhile; False where something does.

        Where the step can't be traced, the plan of the warm-up steps.

        Raises:
            BudgetInfeasibleError: the budget fits no plan.
            ProfileError: the step can't be traced and the empirical fallback is off.
        """
        self._follow(training_device(model))
        is_traced = self.config.use_static_profiling and not self._is_untraceable
        signature = _core.signature_without_numbers(signature, self._idle_numbers if is_traced else None)
        self._current = self._known(signature)
        self._serves_smaller = self._current not in (None, signature)
        if self._current is None:
            self._current = signature
            graph = self._trace(model, args, kwargs, wait_until_alone)
            if graph is None:
                self._current = _core.signature_without_numbers(signature)
                technique = "keep" if self._takes_no_hooks else None
                text = _core.plan_uniform(None, self.hardware_json, self.config_json, technique)
                return ExecutionPlan(text, self.hardware_json)
            self._remember(signature, graph)
            self._compare_with_last(signature, graph)
        return self._plan(self._current)

    @property
    def awaits_parameters(self) -> bool:
        """Whether the model was wrapped on the meta device and has no bytes yet."""
        return self._device.type == "meta"

    def _follow(self, device: torch.device) -> None:
        """Describes the process anew, and forgets plans, if the model has moved to `device`."""
        if device == self._device:
            return
        _log.info("the model moved from %s to %s: it is planned for anew", self._device, device)
        self._device = device
        if not kind_of(device).is_host:
            self.host_memory.uninstall()
        elif self._applies:
            self.host_memory.install()
        self.hardware_json = _with_process(self._machine, device)
        self._graphs.clear()
        self._plans.clear()
        self._traced.clear()

    def _compare_with_last(self, signature: str, graph: str) -> None:
        """A step that was traced twice, for other numbers among the arguments (a weight that is
        annealed, the number of the step), and was the same: from now on these do not count."""
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
        """`plan_for()` for arguments that no forward will be made with.

        Raises:
            ProfileError: also where the forward does not take their shapes or types, which a forward
                would tell by itself.
        """
        self._has_sample = True
        try:
            return self.plan_for(model, signature, args, kwargs)
        finally:
            self._has_sample = False

    def plan_traced(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The plan for these arguments from a static trace, as JSON; nothing else will do.

        Raises:
            ProfileError: the step can't be traced without running it.
            BudgetInfeasibleError: the budget fits no plan.
        """
        with self.precision(model, args, kwargs):
            graph = self._profiler.trace(model, args, kwargs, optimizer=self._optimizer)
        return self._make_plan(graph)

    def agree(self, plan: ExecutionPlan | None) -> ExecutionPlan | None:
        """Asked at every training forward, after `plan_for()` where that was needed: the plan to
        follow. Several ranks agree on one; see `ranks.py`."""
        return plan

    def precision(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wait_until_alone: Callable[[], bool] = lambda: True,
    ) -> AbstractContextManager[Any]:
        """What a training forward with these arguments runs under: autocast to BF16 or FP16 where
        `use_mixed_precision` is set and C has decided for it, at the first forward; else nothing."""
        import torch

        device = training_device(model).type
        if not self.config.use_mixed_precision:
            return nullcontext()
        if torch.is_autocast_enabled(device):
            if self._precision is None:
                _log.info("use_mixed_precision: the forward runs under your own autocast, which is left as it is")
                self._precision = ""
                self._leave_losses()
            return nullcontext()
        if self._precision is None:
            self._precision = self._decide_precision(model, device, args, kwargs, wait_until_alone)
            if self._precision != "float16":
                self._leave_losses()
        if self._precision == "float16":
            return self._scale_losses(model).autocast(device)
        return torch.autocast(device, getattr(torch, self._precision)) if self._precision else nullcontext()

    def _scale_losses(self, model: torch.nn.Module) -> LossScaling:
        if self._loss_scaling is None:
            from ..techniques.loss_scaling import LossScaling

            self._loss_scaling = LossScaling(model)
        return self._loss_scaling

    def _leave_losses(self) -> None:
        if self._loss_scaling is not None:
            self._loss_scaling.close()
            self._loss_scaling = None

    def _decide_precision(
        self,
        model: torch.nn.Module,
        device: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wait_until_alone: Callable[[], bool],
    ) -> str:
        import torch

        graphs: list[str | None] = [None, None]
        try:
            for which in (0, 1) if self.config.use_static_profiling and wait_until_alone() else ():
                with torch.autocast(device, torch.bfloat16, enabled=which == 1):
                    graphs[which] = self._profiler.trace(model, args, kwargs, optimizer=self._optimizer)
        except ProfileError as error:
            _log.debug("%s", error)
        is_fp16 = any(p.dtype is torch.float16 for p in model.parameters())
        chosen, line, self.hardware_json = _core.plan_precision(graphs[0], graphs[1], self.hardware_json, is_fp16)
        _log.info("%s", line)
        return chosen

    def _make_plan(self, graph: str) -> str:
        """The plan as JSON: stage 2 alone, or both stages with `auto_policy`."""
        if not self.config.auto_policy:
            return _core.plan_make(graph, self.hardware_json, self.config_json)
        plan, decision, self._planned_for = plan_by_policy(graph, self.hardware_json, self.config_json)
        told = decision.to_dict()
        if told != self.decision:
            self.decision = told
            log_decision(decision)
        return plan

    @property
    def disk(self) -> Mapping[str, Any]:
        """The disk tier of this machine, as in its description."""
        disk: Mapping[str, Any] = json.loads(self.hardware_json)["disk"]
        return disk

    @property
    def documents(self) -> tuple[str | None, str]:
        """Graph, where there is one, and hardware of the plan in force, as JSON."""
        graph = None if self._current is None else self._graphs.get(self._current)
        return graph, self.hardware_json

    def _known(self, signature: str) -> str | None:
        return _core.signature_find(list(self._graphs), signature)

    def _remember(self, signature: str, graph: str) -> None:
        """Keeps a graph, of which the loop may be known from other shapes."""
        known = next(reversed(self._graphs.values()), None)
        if known is not None:
            graph = _core.graph_adopt_loop(graph, known)
        graph = _core.graph_hold(graph, self._held)
        while len(self._graphs) >= _GRAPHS_MOST:
            oldest = next(iter(self._graphs))
            del self._graphs[oldest]
            self._plans.pop(oldest, None)
        self._graphs[signature] = graph

    def _plan(self, signature: str) -> ExecutionPlan:
        plan = self._plans.get(signature)
        if plan is None:
            text = self._make_plan_or_smallest(signature)
            plan = self._plans[signature] = ExecutionPlan(text, self.hardware_json)
            self._plans_made[signature] = self._plans_made.get(signature, 0) + 1
            if self.run_watch is not None:
                self.run_watch.plan_made(plan)
        is_tight = self._serves_smaller and self.config.memory_budget_gb is not None
        ceiling = plan.ceiling_bytes
        self.host_memory.set_ceiling(_core.hostmem_ceiling_of_smaller(ceiling) if is_tight else ceiling)
        return plan

    def _make_plan_or_smallest(self, signature: str) -> str:
        """The plan as JSON. A shape that comes in training and fits none gets its smallest, with one warning."""
        graph = self._graphs[signature]
        try:
            plan = self._make_plan(graph)
        except BudgetInfeasibleError:
            is_first = self._first in (None, signature) or self._first not in self._graphs
            if self.config.strict_budget or self._has_sample or is_first:
                raise
            plan, line = _core.plan_beyond(graph, self._graphs[self._first], self.hardware_json, self._planned_for)
            if self._told_beyond:
                log_detail(line)
            else:
                _log.warning("%s", line)
            self._told_beyond = True
            self._beyond.add(signature)
            return plan
        self._first = self._first or signature
        return plan

    def evaluation_ended(self, before_bytes: int, peak_bytes: int, rows: int) -> None:
        """Warns once of an evaluation that takes more than the budget, in C's words."""
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
        if self._is_untraceable:
            return None  # a forward that looks at values does so at every shape: it was tried, and said
        is_alone = False
        try:
            is_alone = wait_until_alone()
            if not is_alone:
                raise ProfileError("the model can't be traced: other threads keep running its forward")
            return self._profiler.trace(model, args, kwargs, optimizer=self._optimizer)
        except ProfileError as error:
            misfit = misfit_of(error, model, args, kwargs) if self._has_sample else None
            if misfit is not None:
                raise ProfileError(f"sample_input does not fit {type(model).__name__}: {misfit}") from error
            if isinstance(error.__cause__, Misfit):  # the forward is about to say so itself
                _log.debug("%s", error)
                return None
            self._is_untraceable = is_alone
            if self.refuses_hooks(error.__cause__):
                return None
            if not self.config.use_empirical_fallback:
                raise
            _log.warning("%s; %d real steps are profiled instead", error, self.config.warmup_steps)
            return None

    def refuses_hooks(self, error: BaseException | None) -> bool:
        """Whether a forward failed because it allows no saved-tensor hooks around it: the plan is
        to leave it alone, from the next forward on."""
        if _NO_HOOKS not in str(error) and not _forbids_hooks(error):
            return False
        self._takes_no_hooks = self._is_untraceable = True
        self._graphs.clear()
        self._plans.clear()
        _log.warning(
            "the forward allows no saved-tensor hooks around it (derivatives by torch.func, or "
            "disable_saved_tensors_hooks): the model is left alone, and a budget is not kept; torch.autograd.grad in a "
            "forward can be planned for"
        )
        return True

    def tighten(self, attempt: int) -> ExecutionPlan:
        """The plan to make a step again under, after an allocation failed in it for the
        `attempt`-th time (from 0). What it lowers stays lowered.

        Raises:
            BudgetInfeasibleError: there is none.
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
        """How to run `plan` beside a step that keeps everything, on these arguments; `args` None
        stands for those that it was made for. Whether that fits what the plan may use, the class
        of exactness that it promises, and the plan to run; None where the step can't be traced."""
        graph = self._graphs.get(self._current or "")
        if args is not None and graph is not None:
            try:
                graph = self._profiler.trace(model, args, kwargs)
            except ProfileError as error:
                _log.debug("%s", error)
                return None
        return None if graph is None else _core.plan_rehearse(graph, self.hardware_json, plan.to_json())

    # -- warm-up steps of the empirical profiler ----------------------------------------

    @property
    def wants_live_trace(self) -> bool:
        """Whether the forward about to run has to be profiled as it runs."""
        return (
            self._current is not None
            and self._current not in self._graphs
            and not self._takes_no_hooks
            and self._refused_steps < _REFUSED_STEPS
        )

    def live_trace_finished(self, graph: str | None, refused: MemScaleError | None) -> ExecutionPlan | None:
        """Takes the graph of a profiled step, or why there is none; gives the plan once enough
        steps were seen."""
        if graph is None:
            self._refused_steps += 1
            if self._refused_steps == _REFUSED_STEPS:
                _log.warning("real steps can't be followed either (%s); the plan of the warm-up stays", refused)
            return None
        self._refused_steps = 0
        self._profiled_steps += 1
        if self._profiled_steps < self.config.warmup_steps or self._current is None:
            return None
        self._profiled_steps = 0
        self._graphs[self._current] = _core.graph_hold(graph, self._held)
        return self._plan(self._current)

    # -- after a step -------------------------------------------------------------------

    def step_finished(self, observation: dict[str, Any]) -> ExecutionPlan | None:
        """Compares a step with its plan; returns the new plan when C says to plan again."""
        drain_core_log()
        signature = self._current
        # What a step over the budget leaves in the cache counts in the next one too.
        was_beyond, self._was_beyond = self._was_beyond, signature in self._beyond
        if signature is None or signature not in self._plans or was_beyond or self._was_beyond:
            return None
        drift, line, graph, hardware = _core.plan_observe(
            self._graphs[signature],
            self.hardware_json,
            self._planned_for,
            self._plans[signature].to_json(),
            {
                **observation,
                "smaller_inputs": self._serves_smaller,
                "plans": self._plans_made.get(signature, 0),
                "replan_refused": signature == self._replan_refused,
            },
        )
        if observation["step"] == _TOLD_STEP:
            _log.info("%s", line)
        else:
            log_detail(line)
        if drift == "none":
            return None
        self._graphs[signature] = graph
        self.hardware_json = hardware
        return self._plan_again(signature)

    def layers_held(self, names: list[str]) -> ExecutionPlan | None:
        """All layers that turned out not to be recomputable: plans count with it from now on. The new plan for
        the step under way, if it has one."""
        self._held = names
        self._graphs = {key: _core.graph_hold(graph, names) for key, graph in self._graphs.items()}
        signature = self._current
        if signature is None or signature not in self._plans:
            self._plans.clear()
            return None
        return self._plan_again(signature)

    def _plan_again(self, signature: str) -> ExecutionPlan | None:
        old = self._plans.pop(signature)
        # Plans for other shapes were made from the old description: made anew when asked for.
        self._plans.clear()
        self._replan_refused = None
        try:
            return self._plan(signature)
        except BudgetInfeasibleError as error:
            self._plans[signature] = old
            self._replan_refused = signature
            _log.warning("%s; the run goes on with the plan it has", error)
            return None

    def plan_applied(self, plan: ExecutionPlan | None) -> None:
        """Has memscale's own optimizer do what the plan chose for the step as a whole."""
        arrange = getattr(self._optimizer, "_arrange", None)
        if arrange is None:
            return
        text = None if plan is None else plan.to_json()
        wanted = _core.plan_for_optimizer(text, self.config_json)
        arrange(*wanted, directory=self.config.disk_offload_dir, cap_gb=self.config.max_disk_offload_gb)

    def close(self) -> None:
        """Gives the process's memory back and forgets graphs and plans."""
        self.plan_applied(None)
        self._leave_losses()
        self.host_memory.uninstall()
        self._graphs.clear()
        self._plans.clear()
        drain_core_log()


def probe_machine(config: Config) -> str:
    """The description of this machine as JSON, without a process.

    Raises:
        ConfigError: the directory that the configuration names for offloading won't do.
    """
    # A directory that will not be used need not be fit for use.
    named = config.disk_offload_dir if config.enable_offloading else None
    directory = None if named is None else str(named)
    if directory is not None:
        _core.disk_probe(directory)  # the user named it, so it must do: raises ConfigError
    try:
        return _core.hardware_probe(directory)
    except MemScaleError as error:
        _log.warning("%s; measured rates are replaced by defaults", error)
        return _core.hardware_probe(directory, no_measure=True)


def _with_process(hardware: str, device: torch.device) -> str:
    kind = kind_of(device)
    sight = kind.sight(device)
    return _core.hardware_set_process(
        hardware,
        kind.name,
        device.index or 0,
        sight.name,
        sight.total_bytes,
        sight.available_bytes,
        kind.allocated_bytes(device),
    )


def _forbids_hooks(error: BaseException | None) -> bool:
    """Whether it was raised by `torch.autograd.graph.disable_saved_tensors_hooks()`."""
    place = error.__traceback__ if error is not None else None
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and place.tb_frame.f_code.co_name == "disable_saved_tensors_hooks"
