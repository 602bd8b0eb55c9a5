"""The session of one wrapped model: what is known, and the plan that follows from it.

A session holds the three documents that planning reads (graph, hardware, config)
and hands them through the stages: the profiler makes the graph, C makes the plan,
and what a finished step showed goes back to C, which says whether to plan again.
The executor asks for plans; it never sees the documents. Nothing here decides.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import BudgetInfeasibleError, MemScaleError, ProfileError
from .execution_plan import ExecutionPlan
from .profiler import MemoryProfiler

if TYPE_CHECKING:
    import torch

    from ..config import Config
    from .executor import Executor

_log = logging.getLogger("memscale")


class Session:
    """Plans for one model, from `wrap()` to `detach()`.

    Args:
        model: the wrapped root module.
        config: the caller's configuration; read once, never changed.
        optimizer: traced with the step when known; otherwise its state is reserved
            for and corrected at the first step that it makes.

    One thread at a time uses a session: the one that runs the model's forward.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        config: Config,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.config = config
        self.config_json = config.to_json()
        self.optimizer = optimizer
        self.hardware_json = self._describe_machine(model)
        self.decision: dict[str, Any] = {"decision_source": "user_config", "mode": config.mode.value}
        self._profiler = MemoryProfiler(config)
        self._graphs: dict[str, str] = {}
        self._plans: dict[str, ExecutionPlan] = {}
        self._current: str | None = None
        self._warmup: Any = None
        self._steps_seen = 0

    # -- planning ---------------------------------------------------------------

    def plan_for(
        self,
        model: torch.nn.Module,
        signature: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> ExecutionPlan | None:
        """The plan for a forward with these arguments, traced if they are new.

        Returns None while the model has to be profiled by real steps and no plan
        can be given (never for a traced model).

        Raises:
            BudgetInfeasibleError: the budget fits no plan.
            ProfileError: the step can't be traced and the empirical fallback is off.
        """
        self._current = signature
        if signature in self._plans:
            return self._plans[signature]
        graph = self._graphs.get(signature)
        if graph is None:
            graph = self._trace(model, signature, args, kwargs)
        if graph is None:
            return self._warmup_plan()
        return self._plan(signature, graph)

    def _trace(
        self, model: torch.nn.Module, signature: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        if self.config.use_static_profiling:
            try:
                graph = self._profiler.trace(model, args, kwargs, optimizer=self.optimizer)
                self._graphs[signature] = graph
                return graph
            except ProfileError as error:
                if not self.config.use_empirical_fallback:
                    raise
                _log.warning("%s; profiling %d real steps instead", error, self.config.warmup_steps)
        elif not self.config.use_empirical_fallback:
            raise ProfileError(
                "use_static_profiling and use_empirical_fallback are both off: "
                "there is no way left to profile the model"
            )
        return None

    def _warmup_plan(self) -> ExecutionPlan:
        text = _core.plan_uniform(None, self.hardware_json, self.config_json, None)
        return ExecutionPlan(text, self.hardware_json)

    def _plan(self, signature: str, graph: str) -> ExecutionPlan:
        text = _core.plan_make(graph, self.hardware_json, self.config_json)
        plan = ExecutionPlan(text, self.hardware_json)
        self._plans[signature] = plan
        _log.info("%s", plan)
        if plan.over_target:
            _log.warning(
                "the target share of the device can't be met; the smallest plan is used (%.2f GB)",
                plan.predicted_peak_bytes / 1e9,
            )
        return plan

    # -- warm-up steps of the empirical profiler -----------------------------------

    @property
    def wants_live_trace(self) -> bool:
        """Whether the forward about to run has to be profiled as it runs."""
        return self._current is not None and self._current not in self._graphs

    def live_trace_finished(self, graph: str) -> ExecutionPlan | None:
        """Takes the graph of a profiled step; gives the plan when enough were seen."""
        self._steps_seen += 1
        if self._steps_seen < self.config.warmup_steps or self._current is None:
            return None
        self._graphs[self._current] = graph
        return self._plan(self._current, graph)

    # -- after a step ---------------------------------------------------------------

    def step_finished(self, observation: dict[str, Any]) -> ExecutionPlan | None:
        """Compares a step with its plan; returns the new plan when C says to replan."""
        signature = self._current
        if signature is None or signature not in self._graphs:
            return None
        plan = self._plans[signature]
        drift, line, graph, hardware = _core.plan_observe(
            self._graphs[signature], self.hardware_json, self.config_json, plan.to_json(), observation
        )
        if line:
            _log.log(logging.INFO if drift != "none" or observation["step"] <= 3 else logging.DEBUG, "%s", line)
        if drift == "none":
            return None
        self._graphs[signature] = graph
        self.hardware_json = hardware
        # Plans for other shapes were made from the old description: they are made again when asked for.
        self._plans = {signature: plan}
        try:
            return self._plan(signature, graph)
        except BudgetInfeasibleError as error:
            _log.warning("%s; the run goes on with the plan it has", error)
            return None

    # -- the machine ------------------------------------------------------------------

    def _describe_machine(self, model: torch.nn.Module) -> str:
        text = self._probe()
        if _device_type(model) == "cuda":
            import torch

            device = next(model.parameters()).device
            return _core.hardware_set_process(
                text, device.index or 0, torch.cuda.memory_allocated(device)
            )
        return _core.hardware_set_process(text, -1, None)

    def _probe(self) -> str:
        directory = self.config.disk_offload_dir
        if directory is not None and self.config.enable_offloading:
            _core.disk_probe(directory)  # raises ConfigError: the user named it, so it must do
        try:
            return _core.hardware_probe(directory)
        except MemScaleError as error:
            _log.warning("%s; measured rates are replaced by defaults", error)
            return _core.hardware_probe(directory, no_measure=True)

    def describe(self) -> dict[str, Any]:
        """The documents as dictionaries, for reports."""
        graph = self._graphs.get(self._current or "")
        return {
            "hardware": json.loads(self.hardware_json),
            "config": json.loads(self.config_json),
            "graph": json.loads(graph) if graph else None,
        }

    def close(self) -> None:
        """Forgets graphs and plans."""
        self._graphs.clear()
        self._plans.clear()


def _device_type(model: torch.nn.Module) -> str:
    for parameter in model.parameters():
        return parameter.device.type
    return "cpu"


def executor_of(model: torch.nn.Module) -> Executor | None:
    """The executor that `wrap()` left on a module, if any."""
    return model.__dict__.get("_memscale_executor")
