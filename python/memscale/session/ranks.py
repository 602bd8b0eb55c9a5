"""One plan on the ranks of a distributed training that train the same model.

If a process group is initialised when a model is wrapped, a `RankedSession` replaces the
`Session`. The ranks exchange their hardware and config documents at `wrap()`, and at the first forward if they meet in
its collectives. The first of the ranks that share a plan makes it, and each of its plans takes effect at the same
forward on all of them. Stages of a pipeline have other models, so each stage has a plan of its own. All messages go
through the process group's store. memscale adds no collectives to those of the training, so a rank that fails can't
leave others waiting in one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from .. import _core
from ..base.divided import has_several_processes
from ..device import kind_of
from ..errors import BudgetInfeasibleError, IntegrationError, ProfileError
from ..model.placement import planned_device
from ..model.shards import Sharding, computes_in_parts, has_shards, sharding_of
from ..planning.execution_plan import ExecutionPlan
from .partners import bucketed, describe, digest_of_names, is_pipeline_stage, partners_of
from .session import Session

if TYPE_CHECKING:
    import torch

    from ..config import Config
    from ..model.placement import Placement

__all__ = ["RankedSession", "session_for"]

_log = logging.getLogger("memscale")

# The store keeps the messages of this many forwards. No rank falls that far behind another.
_KEPT_MESSAGES = 64

_wraps = 0


def session_for(
    model: torch.nn.Module,
    config: Config,
    optimizer: torch.optim.Optimizer | None = None,
    placement: Placement | None = None,
) -> Session:
    """The session of a wrap: a `RankedSession` if there are several ranks, else a `Session`."""

    if has_several_processes():
        return RankedSession(model, config, optimizer, placement)
    return Session(model, config, optimizer, placement=placement)


class RankedSession(Session):
    """Plans for a model that ranks of the default process group train together.

    Every rank has to wrap its model, or its part. Ranks share a plan if torch tells that they meet in collectives
    of a forward, and if their parameters have the same names, because they may meet in others. A stage of torch's
    pipelines looks at the former alone. Ranks that share a plan have to run the same number of training forwards. If
    there are several wraps, every rank has to make them in the same order.

    Raises:
        IntegrationError: another rank could not wrap, sent a damaged plan or did not answer
            within the time that torch waits for a process group (30 minutes).
        as `Session`.
    """

    # The plan waits for the first forward: the model may be sharded before it, and all ranks
    # have to begin the plan together.
    applies_at_once = False

    def __init__(
        self,
        model: torch.nn.Module,
        config: Config,
        optimizer: torch.optim.Optimizer | None = None,
        placement: Placement | None = None,
    ) -> None:
        global _wraps
        _wraps += 1
        self._channel = _Channel(f"memscale/{_wraps}")
        try:
            super().__init__(model, config, optimizer, placement=placement)
        except BaseException as error:
            self._channel.refuse("wrap", error)
            raise
        self._own_disk = dict(super().disk)
        self._own_hardware, self._own_config = self.hardware_json, self.config_json
        self._members = list(range(self._channel.world))  # the ranks that share this rank's plan, in order
        self._in_parts = False  # whether layers are divided among ranks
        try:
            self._find_same_model(model)
        except BaseException:
            self.host_memory.uninstall()
            raise
        self._is_sharded = False
        self._gathered_bytes = 0  # by FSDP, which the description of the process counts
        self._is_measured = False  # at the first forward
        self._bucket_bytes = 0  # of the DDP around the model
        self._moves = 0  # of the model, from device to device
        self._forwards = 0
        self._wanted: ExecutionPlan | None = None
        self._in_force: ExecutionPlan | None = None

        self._tell_members()

    @property
    def _leads(self) -> bool:
        """Whether this rank makes the plans of those that share its plan."""
        return self._channel.rank == self._members[0]

    def _tell_members(self) -> None:
        rank, members = self._channel.rank, self._members
        if len(members) == 1:
            _log.info("rank %d of %d: a plan of its own", rank, self._channel.world)
        else:
            _log.info(
                "rank %d of %d: one plan for ranks %s, made on rank %d",
                rank, self._channel.world, describe(members), members[0],
            )  # fmt: skip

    def _find_same_model(self, model: torch.nn.Module) -> None:
        """At the wrap, on all ranks: exchanges documents. Ranks with the same model share a plan."""
        digest = digest_of_names(model)
        self._send_documents("documents", digest)
        said = {rank: self._channel.receive_json(f"documents/{rank}") for rank in self._members}
        self._agree_on(
            {rank: (hardware, config) for rank, (hardware, config, theirs) in said.items() if theirs == digest}
        )

    def _send_documents(self, key: str, more: Any) -> None:
        self._channel.send(f"{key}/{self._channel.rank}", json.dumps([self._own_hardware, self._own_config, more]))

    def _agree_on(self, documents: dict[int, tuple[str, str]]) -> None:
        """From now on the ranks that sent these documents share a plan."""
        self._gathered_bytes = 0
        self._members = sorted(documents)
        pairs = [documents[rank] for rank in self._members]
        self.hardware_json, config = _core.ranks_agree(pairs, self._channel.local_world)
        self.config_json = self._planned_for = _core.config_in_parts(config) if self._in_parts else config

    def _exchange_documents(self, key: str, partners: set[int]) -> dict[int, tuple[str, str]]:
        """With the ranks that begin the same forward, on each of them, and with these ranks' partners in turn."""
        self._send_documents(key, sorted(partners))
        found: dict[int, tuple[str, str]] = {}
        while missing := partners - found.keys():
            for rank in sorted(missing):
                hardware, config, theirs = self._channel.receive_json(f"{key}/{rank}")
                found[rank] = hardware, config
                partners = partners | set(theirs)
        return found

    def _meet(self, model: torch.nn.Module) -> None:
        """At the first training forward: finds out who shares the plan, and counts what this process holds by now.
        Trainers load libraries after the wrap, and DDP, made after it, holds a second copy of the gradients."""
        self._bucket_bytes = _core.storage_bytes(bucketed(model))
        allocated_bytes = kind_of(self._device).allocated_bytes(self._device)
        self._own_hardware = _core.hardware_grow_process(self._own_hardware, self._bucket_bytes, allocated_bytes)
        before, alike = self._members, set() if is_pipeline_stage() else set(self._members)
        found = self._exchange_documents("first_forward", {self._channel.rank} | alike | partners_of(model))
        self._in_parts = computes_in_parts(model)
        self._agree_on(found)
        self._plans.clear()
        if self._in_parts or self._is_sharded:
            self._forget_traces()  # a sample was traced before layers were divided, or counted what is gathered
        if self._members != before:
            self._tell_members()

    def _without_released(self, model: torch.nn.Module) -> str:
        """As it is: trainers hold more at the first forward than at the wrap, and `_meet()` counts it."""
        return self.hardware_json

    def _follow(self, model: torch.nn.Module) -> None:
        """As in `Session`. The ranks exchange their documents again, so every rank has to move its model before the
        same forward."""
        if planned_device(model, self._placement) == self._device:
            return
        super()._follow(model)
        self._own_hardware = self.hardware_json
        self._in_force = self._wanted = None
        if self._is_measured:  # else _meet() follows
            self._moves += 1
            self._agree_on(self._exchange_documents(f"moved/{self._moves}", set(self._members)))

    @property
    def disk(self) -> Mapping[str, Any]:
        """The disk tier of the ranks' common description, with this rank's own directory."""
        return {**super().disk, "dir": self._own_disk["dir"]}

    # -- the methods of a session, on the leading rank alone ----------------------------------------

    def plan_for(
        self,
        model: torch.nn.Module,
        signature: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wait_until_alone: Any = lambda: True,
    ) -> Any:
        """On the leading rank a plan as in `Session`, elsewhere the plan in force. `agree()` puts it in force."""
        self._follow(model)
        if not (self._is_measured or self._has_sample):
            self._is_measured = True
            self._meet(model)
        if not self._leads:
            return self._in_force
        try:
            self._narrow(model)
            self._wanted = super().plan_for(model, signature, args, kwargs, wait_until_alone)
        except BudgetInfeasibleError as error:
            if not self._is_sharded:
                self._channel.refuse(self._plan_key(), error)
                raise
            self._wanted = self._smallest(error)
        except BaseException as error:
            self._channel.refuse(self._plan_key(), error)
            raise
        return self._wanted

    def precision(self, *_: Any) -> AbstractContextManager[Any]:
        if self._mixed_precision is not None:
            reason = "not used on several ranks, which would have to agree; put the forward under "
            self._mixed_precision.leave(logging.WARNING, reason + "torch.autocast(...) yourself")
        return nullcontext()

    def step_finished(self, observation: dict[str, Any]) -> ExecutionPlan | None:
        """A new plan waits for the next `agree()`."""
        held_bytes = self._bucket_bytes + self._gathered_bytes + self._more_bytes
        seen = {**observation, "baseline_held_bytes": held_bytes, "keeps_reserve": True}
        self._wanted = super().step_finished(seen) or self._wanted
        return None

    def holds_more(self, more_bytes: int, waiting_forwards: int) -> ExecutionPlan | None:
        """A new plan waits for the next `agree()`."""
        self._wanted = super().holds_more(more_bytes, waiting_forwards) or self._wanted
        return None

    def _put_smallest(self, signature: str, waiting_forwards: int) -> ExecutionPlan | None:
        """None: the plan that the ranks agreed on stays in force."""
        return None

    def _go_on(self, signature: str) -> ExecutionPlan | None:
        """As in `Session`. Sharded parameters have the smallest plan already, see `_smallest()`."""
        if not self._is_sharded:
            return super()._go_on(signature)
        self._tell_refusal()
        return None

    def layers_held(self, names: list[str]) -> ExecutionPlan | None:
        """No new plan, because other ranks don't know of these layers. Their tensors stay on this rank."""
        return None

    def live_trace_finished(self, graph: str | None, refused: Any) -> ExecutionPlan | None:
        """A new plan waits for the next `agree()`."""
        self._wanted = super().live_trace_finished(graph, refused) or self._wanted
        return None

    def _make_plan_or_smallest(self, signature: str, has_other: bool) -> str:
        """As in `Session`. Sharded parameters have a smallest plan of their own, so the error is raised."""
        if self._is_sharded:
            return self._make_plan(self._graphs[signature])
        return super()._make_plan_or_smallest(signature, has_other)

    def _smallest(self, error: BudgetInfeasibleError) -> ExecutionPlan:
        """The smallest plan, for sharded parameters under a budget that no plan fits. Planning counts all that FSDP
        may gather, and a rank holds less, so the budget may be kept all the same."""
        signature = self._current or ""
        _log.warning(
            "%s, counting all that FSDP may gather at one moment; the smallest plan is taken, and measured peaks are "
            "compared with the budget",
            error,
        )
        text = _core.plan_least(self._graphs[signature], self.hardware_json, self._planned_for)
        plan = self._plans[signature] = ExecutionPlan(text, self.hardware_json)
        return plan

    def _narrow(self, model: torch.nn.Module) -> None:
        """Discards earlier plans if parameters were sharded since the wrap."""
        if self._is_sharded or not has_shards(model):
            return
        self._is_sharded = True
        self._may_trace_ahead = False  # only _trace() divides
        sharding = sharding_of(model)._replace(is_mixed=False)  # the sample's trace has the parameters' own types
        self._graphs = {key: self._shard(graph, sharding) for key, graph in self._graphs.items()}
        self._plans.clear()

    def _shard(self, graph: str, sharding: Sharding) -> str:
        """The graph of one rank, of that of a whole step."""
        ranks, is_mixed, stays_gathered, is_one_group = sharding
        reduces_once = is_one_group or (stays_gathered and is_pipeline_stage())
        graph, self.hardware_json, self._gathered_bytes = _core.graph_shard(
            graph, self.hardware_json, ranks, (is_mixed, stays_gathered, reduces_once), self._gathered_bytes
        )
        return graph

    def _trace(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], wait_until_alone: Any
    ) -> str | None:
        if self.follows_parts or not self._is_sharded:
            return super()._trace(model, args, kwargs, wait_until_alone)
        # A trace has whole parameters, whose state is divided afterwards. That of others than memscale's is estimated.
        own = self._optimizer if hasattr(self._optimizer, "_facts_for_plan") else None
        try:
            if self.config.use_static_profiling:
                return self._shard(self._profiler.trace(model, args, kwargs, optimizer=own), sharding_of(model))
            reason = "use_static_profiling is off"
        except ProfileError as error:
            reason = str(error)
        _log.warning(
            "%s, and real steps of sharded parameters can't be profiled: every layer is recomputed, and the budget "
            "is not checked",
            reason,
        )
        return None

    def _measure_trace(self) -> None:
        """Nothing: only the leading rank's trace could be measured, and the plan is for others too."""

    @property
    def wants_live_trace(self) -> bool:
        """As in `Session`, but never if parameters are sharded."""
        return not self._is_sharded and super().wants_live_trace

    def tighten(self, attempt: int) -> ExecutionPlan:
        """Always refuses, because the other ranks are in the middle of the same step."""
        raise BudgetInfeasibleError("a step of several ranks can't be run again on one of them")

    def rehearsal(self, model: torch.nn.Module, *args: Any) -> tuple[bool, str, str] | None:
        """As in `Session`, on the leading rank alone. None if parameters are sharded: a forward needs all ranks."""
        return super().rehearsal(model, *args) if self._leads and not has_shards(model) else None

    # -- agreement ---------------------------------------------------------------------------

    def _plan_key(self, before: int = 0) -> str:
        """The key of the message about the next forward, or about the one that many forwards `before` it."""
        return f"plan/{self._members[0]}/{self._forwards - before}"

    def agree(self, plan: Any) -> Any:
        """The plan of the training forward that begins now, the same on the ranks that share it."""
        key = self._plan_key()
        if self._leads:
            wanted = self._wanted or plan
            if len(self._members) > 1:
                text = "" if wanted is self._in_force else wanted.to_json()
                self._channel.send(key, _digest(text) + text)
                if self._forwards >= _KEPT_MESSAGES:
                    self._channel.forget(self._plan_key(_KEPT_MESSAGES))
            self._forwards += 1
            self._in_force = wanted
            return wanted
        self._forwards += 1
        message = self._channel.receive(key)
        digest, text = message[:64], message[64:]
        if digest != _digest(text):
            raise IntegrationError("the plan from another rank was damaged on its way: its hash differs")
        if text:
            self._in_force = ExecutionPlan(text, self.hardware_json)
            self.host_memory.follow(self._in_force)
            _log.info("rank %d: %r of rank %d", self._channel.rank, self._in_force, self._members[0])
        return self._in_force


class _Channel:
    """Messages between ranks. Each is written once and read by other ranks."""

    def __init__(self, prefix: str) -> None:
        import torch.distributed as distributed
        from torch.distributed import distributed_c10d

        self._store = distributed_c10d.PrefixStore(prefix, distributed_c10d._get_default_store())
        self._timeout = distributed_c10d.default_pg_timeout
        self.rank = distributed.get_rank()
        self.world = distributed.get_world_size()
        self.local_world = int(os.environ.get("LOCAL_WORLD_SIZE", self.world))

    def send(self, key: str, text: str) -> None:
        self._store.set(key, "+" + text)

    def refuse(self, key: str, error: BaseException) -> None:
        """Makes the ranks that wait for `key` raise as well."""
        text = f"-rank {self.rank} failed with {type(error).__name__}: {error}"
        if key == "wrap":
            key = f"documents/{self.rank}"
        self._store.set(key, text)

    def receive(self, key: str) -> str:
        """Waits for a message.

        Raises:
            IntegrationError: its sender failed, or no message came in time.
        """
        try:
            self._store.wait([key], self._timeout)
            message = self._store.get(key).decode()
        except RuntimeError as error:
            raise IntegrationError(
                f"rank {self.rank}: no answer from another rank ({key}); every rank has to wrap the model and to make "
                f"the same forwards: {error}"
            ) from error
        if message.startswith("-"):
            raise IntegrationError(f"rank {self.rank}: {message[1:]}")
        return message[1:]

    def receive_json(self, key: str) -> Any:
        return json.loads(self.receive(key))

    def forget(self, key: str) -> None:
        self._store.delete_key(key)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
