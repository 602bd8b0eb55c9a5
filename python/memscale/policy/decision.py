"""The input and the decision of the policy as values, and the call that makes both.

The session uses it if ``Config(auto_policy=True)``.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import PolicyFallbackNeeded
from .artifact import TrainedPolicy, find_policy, rules_are_asked_for

if TYPE_CHECKING:
    from ..config import Config, OptimizationMode

__all__ = ["StrategyContext", "StrategyDecision", "decision_as_configured", "plan_by_policy"]

_log = logging.getLogger("memscale")
_told: set[str] = set()


@dataclass(frozen=True)
class StrategyContext:
    """The numbers that a policy reads. They are in bytes, flops per second or permille; 0 if unknown.

    Attributes:
        need_bytes: predicted peak with everything kept.
        allowed_bytes: the budget, or the target share of the device.
        pressure_permille: 1000 x need / allowed.
        budget_given: 1 if the caller gave a budget.
        on_gpu: 1 if training runs on a GPU.
        parameter_bytes, state_bytes: sizes of the parameters and of the optimizer's state.
        saved_bytes, largest_saved_bytes: bytes held between forward and backward if everything is
            kept, in total and by the layer that saves most.
        layer_count: number of calls of layers in a step.
        matmul_flops_per_s: speed of the training device.
        disk_room_bytes, disk_write_bytes_per_s, disk_read_bytes_per_s: room and speed of the disk tier.
        host_room_bytes, to_host_bytes_per_s: room and speed of the host tier.
        loop_observed: 1 if steps of the training loop were seen.
        event_count: events of a replayed step, which say what a replay costs.
        fixed_permille: 1000 x bytes that are there at any time / allowed.
        selective_peak_permille, selective_step_permille: 1000 x peak / allowed, and 1000 x step time / the
            unmodified one, if operators recompute the largest set of saved tensors of each layer.
        recompute_peak_permille, recompute_step_permille: the same if each layer is recomputed.
        offload_peak_permille, offload_step_permille: the same if each layer's saved tensors move.
        moved_peak_permille, moved_step_permille: the same if each layer is recomputed and its arguments move.
        glance_peak_permille, glance_step_permille: the same of the plan that a short search finds; 0 if it finds none.
    """

    need_bytes: int
    allowed_bytes: int
    pressure_permille: int
    budget_given: int
    on_gpu: int
    parameter_bytes: int
    state_bytes: int
    saved_bytes: int
    largest_saved_bytes: int
    layer_count: int
    matmul_flops_per_s: int
    disk_room_bytes: int
    disk_write_bytes_per_s: int
    disk_read_bytes_per_s: int
    host_room_bytes: int
    to_host_bytes_per_s: int
    loop_observed: int
    event_count: int
    fixed_permille: int
    selective_peak_permille: int
    selective_step_permille: int
    recompute_peak_permille: int
    recompute_step_permille: int
    offload_peak_permille: int
    offload_step_permille: int
    moved_peak_permille: int
    moved_step_permille: int
    glance_peak_permille: int
    glance_step_permille: int


@dataclass(frozen=True, eq=False)
class StrategyDecision(Mapping[str, Any]):
    """The decision: the policy's, or the caller's configuration if no policy decided.

    It also reads as a mapping of plain values: ``decision["mode"]``, ``dict(decision)``.

    Attributes:
        decision_source: "user_config" (no policy decided), "ml", "rule_fallback" or "rule".
        mode: the mode for planning.
        enable_checkpointing, enable_offloading: whether the technique is eligible. A technique that
            the caller switched off stays off.
        search_permille: the share of the planner's search that is used; 1000 is all of it.
        reason: one line.
        context: the input of the decision; all zeros before the step is known.
    """

    decision_source: str
    mode: OptimizationMode
    enable_checkpointing: bool
    enable_offloading: bool
    search_permille: int
    reason: str
    context: StrategyContext

    @classmethod
    def from_json(cls, text: str) -> StrategyDecision:
        """Reads the JSON that C wrote."""
        from ..config import OptimizationMode

        fields = json.loads(text)
        fields["mode"] = OptimizationMode(fields["mode"])
        fields["context"] = StrategyContext(**fields["context"])
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for logs."""
        return dataclasses.asdict(self) | {"mode": self.mode.value}

    @property
    def techniques(self) -> tuple[str, ...]:
        """Names of the eligible techniques, "recompute" and "offload", or of none."""
        names = (("recompute", self.enable_checkpointing), ("offload", self.enable_offloading))
        return tuple(name for name, may in names if may)

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())

    def __eq__(self, other: object) -> bool:
        return dict(self) == dict(other) if isinstance(other, Mapping) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.decision_source, self.mode, self.techniques, self.reason, self.context))

    def effective_config(self, config: Config) -> Config:
        """A copy of `config` under this decision; `config` itself is not changed."""
        return dataclasses.replace(
            config,
            mode=self.mode,
            enable_checkpointing=config.enable_checkpointing and self.enable_checkpointing,
            enable_offloading=config.enable_offloading and self.enable_offloading,
        )


def plan_by_policy(
    graph_json: str, hardware_json: str, config_json: str, policy: TrainedPolicy | None = None
) -> tuple[str, StrategyDecision, str]:
    """Runs the policy, then makes the plan.

    Args:
        policy: a trained policy. If it is None, the one that ``MEMSCALE_POLICY`` names or that is
            built in decides; the rules if that one can't be used.

    Returns:
        The plan as JSON, the decision, and the configuration of the plan as JSON.

    Raises:
        TypeError: `policy` is not a `TrainedPolicy`, or a document not a str.
        BudgetInfeasibleError: no plan fits the byte budget under any strategy.
        MemScaleError: a document is malformed; the text names the place.
    """
    if policy is not None and not isinstance(policy, TrainedPolicy):
        raise TypeError(f"policy must be a TrainedPolicy or None, not {type(policy).__qualname__}")
    rules_only = policy is None and rules_are_asked_for()
    missing: PolicyFallbackNeeded | None = None
    if policy is None and not rules_only:
        try:
            policy = find_policy()
        except PolicyFallbackNeeded as needed:
            missing = needed
    handle = None if policy is None else policy.handle
    plan, text, effective = _core.plan_by_policy(graph_json, hardware_json, config_json, handle, rules_only)
    decision = StrategyDecision.from_json(text)
    # Without pressure nobody decides, so a missing policy is not missed.
    if missing is not None and decision.decision_source == "rule_fallback" and str(missing) not in _told:
        _told.add(str(missing))
        _log.warning("auto_policy: %s; the rules decide", missing)
    return plan, decision, effective


def decision_as_configured(
    config_json: str, graph_json: str | None = None, hardware_json: str | None = None
) -> StrategyDecision:
    """The decision if no policy runs: the configuration as it is. Its context is known if graph and hardware
    are.

    Raises:
        MemScaleError: a document is malformed.
    """
    return StrategyDecision.from_json(_core.policy_as_configured(config_json, graph_json, hardware_json))


def log_decision(decision: StrategyDecision) -> None:
    """Logs one line. The log file gets the whole decision."""
    fields: Mapping[str, Any] = {"event": "decision", "decision": decision.to_dict()}
    _log.info(
        "policy (%s): mode %s, %s; %s",
        decision.decision_source,
        decision.mode.value,
        " and ".join(decision.techniques) or "nothing",
        decision.reason,
        extra={"memscale": fields},
    )
