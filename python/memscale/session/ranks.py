"""One plan on every rank of a distributed training.

If a process group is initialised when a model is wrapped, a `RankedSession` replaces the
`Session`. The ranks exchange their hardware and config documents once, at `wrap()`. From
then on rank 0 plans, and each of its plans takes effect at the same forward on every rank. All
messages go through the process group's store. memscale adds no collectives to those of the
training, so a rank that fails can't leave others waiting in one.
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
from ..device import kind_of, training_device
from ..errors import BudgetInfeasibleError, IntegrationError, ProfileError
from ..model.shards import has_shards
from ..planning.execution_plan import ExecutionPlan
from .session import Session

if TYPE_CHECKING:
    import torch

    from ..config import Config

__all__ = ["RankedSession", "session_for"]

_log = logging.getLogger("memscale")

# The store keeps the messages of this many forwards. No rank falls that far behind another.
_KEPT_MESSAGES = 64

_wraps = 0


def session_for(model: torch.nn.Module, config: Config, optimizer: torch.optim.Optimizer | None = None) -> Session:
    """The session of a wrap: a `RankedSession` if there are several ranks, else a `Session`."""
    import torch.distributed as distributed

    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        return RankedSession(model, config, optimizer)
    return Session(model, config, optimizer)


class RankedSession(Session):
    """Plans for one model that every rank of the default process group has wrapped.

    Every rank has to wrap the model and run the same number of training forwards. If there are
    several wraps, every rank has to make them in the same order.

    Raises:
        IntegrationError: another rank could not wrap, sent a damaged plan or did not answer
            within the time that torch waits for a process group (30 minutes).
        as `Session`.
    """

    # The plan waits for the first forward: the model may be sharded before it, and all ranks
    # have to begin the plan together.
    applies_at_once = False

    def __init__(self, model: torch.nn.Module, config: Config, optimizer: torch.optim.Optimizer | None = None) -> None:
        global _wraps
        _wraps += 1
        self._channel = _Channel(f"memscale/{_wraps}")
        try:
            super().__init__(model, config, optimizer)
        except BaseException as error:
            self._channel.refuse("wrap", error)
            raise
        self._own_disk = dict(super().disk)
        self._own_hardware = self.hardware_json
        try:
            self._agree_on_documents("documents")
        except BaseException:
            self.host_memory.uninstall()
            raise
        self._is_sharded = False
        self._is_measured = False  # at the first forward
        self._bucket_bytes = 0  # of the DDP around the model
        self._moves = 0  # of the model, from device to device
        self._forwards = 0
        self._wanted: ExecutionPlan | None = None
        self._in_force: ExecutionPlan | None = None

        _log.info("rank %d of %d: one plan for all, made on rank 0", self._channel.rank, self._channel.world)

    def _agree_on_documents(self, key: str) -> None:
        channel = self._channel
        channel.send(f"{key}/{channel.rank}", json.dumps([self._own_hardware, self.config_json]))
        pairs = [tuple(json.loads(channel.receive(f"{key}/{rank}"))) for rank in range(channel.world)]
        self.hardware_json, self.config_json = _core.ranks_agree(pairs, channel.local_world)
        self._planned_for = self.config_json

    def _measure_again(self, model: torch.nn.Module) -> None:
        """At the first training forward, on every rank: trainers load libraries after the wrap, and DDP, made after it,
        holds a second copy of the gradients in its buckets."""
        self._bucket_bytes = _core.storage_bytes(_bucketed(model))
        allocated_bytes = kind_of(self._device).allocated_bytes(self._device)
        self._own_hardware = _core.hardware_grow_process(self._own_hardware, self._bucket_bytes, allocated_bytes)
        self._agree_on_documents("first_forward")
        self._plans.clear()

    def _without_released(self, model: torch.nn.Module) -> str:
        """As it is: trainers hold more at the first forward than at the wrap, and `_measure_again()` counts it."""
        return self.hardware_json

    def _follow(self, model: torch.nn.Module) -> None:
        """As in `Session`. The ranks exchange their documents again, so every rank has to move its model before the
        same forward."""
        if training_device(model) == self._device:
            return
        super()._follow(model)
        self._own_hardware = self.hardware_json
        self._in_force = self._wanted = None
        self._moves += 1
        self._agree_on_documents(f"moved/{self._moves}")

    @property
    def disk(self) -> Mapping[str, Any]:
        """The disk tier of the ranks' common description, with this rank's own directory."""
        return {**super().disk, "dir": self._own_disk["dir"]}

    # -- the methods of a session, on rank 0 alone ----------------------------------------

    def plan_for(
        self,
        model: torch.nn.Module,
        signature: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wait_until_alone: Any = lambda: True,
    ) -> Any:
        """On rank 0 a plan as in `Session`, elsewhere the plan in force. `agree()` puts it in force."""
        self._follow(model)
        if not (self._is_measured or self._has_sample):
            self._is_measured = True
            self._measure_again(model)
        if self._channel.rank != 0:
            return self._in_force
        self._narrow(model)
        try:
            self._wanted = super().plan_for(model, signature, args, kwargs, wait_until_alone)
        except BudgetInfeasibleError as error:
            if not self._is_sharded:
                self._channel.refuse(f"plan/{self._forwards}", error)
                raise
            self._wanted = self._smallest(error)
        except BaseException as error:
            self._channel.refuse(f"plan/{self._forwards}", error)
            raise
        return self._wanted

    def precision(self, *_: Any) -> AbstractContextManager[Any]:
        if self._mixed_precision is not None:
            reason = "not used on several ranks, which would have to agree; put the forward under "
            self._mixed_precision.leave(logging.WARNING, reason + "torch.autocast(...) yourself")
        return nullcontext()

    def step_finished(self, observation: dict[str, Any]) -> ExecutionPlan | None:
        """A new plan waits for the next `agree()`."""
        seen = {**observation, "baseline_held_bytes": self._bucket_bytes + self._more_bytes, "keeps_reserve": True}
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
        """The smallest plan, for sharded parameters under a budget that no plan fits. Planning counts
        parameters as a whole, and a rank holds less, so the budget may be kept all the same."""
        signature = self._current or ""
        _log.warning(
            "%s, counting parameters, gradients and optimizer state as a whole although they are sharded; "
            "the smallest plan is taken, and measured peaks are compared with the budget",
            error,
        )
        text = _core.plan_uniform(self._graphs[signature], self.hardware_json, self._planned_for, None)
        plan = self._plans[signature] = ExecutionPlan(text, self.hardware_json)
        return plan

    def _narrow(self, model: torch.nn.Module) -> None:
        """Discards earlier plans if parameters were sharded since the wrap."""
        if self._is_sharded or not has_shards(model):
            return
        self._is_sharded = True
        self.config_json = self._planned_for = _core.config_for_shards(self.config_json)
        self._plans.clear()
        _log.info("parameters are sharded: layers are recomputed or kept, and nothing is offloaded")

    def _trace(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], wait_until_alone: Any
    ) -> str | None:
        if self.follows_parts or not self._is_sharded:
            return super()._trace(model, args, kwargs, wait_until_alone)
        # The optimizer's groups hold shards, which do not match whole parameters, so its state is estimated.
        try:
            if self.config.use_static_profiling:
                return self._profiler.trace(model, args, kwargs)
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
        """Nothing: only rank 0's trace could be measured, and the plan is for all ranks."""

    @property
    def wants_live_trace(self) -> bool:
        """As in `Session`, but never if parameters are sharded."""
        return not self._is_sharded and super().wants_live_trace

    def tighten(self, attempt: int) -> ExecutionPlan:
        """Always refuses, because the other ranks are in the middle of the same step."""
        raise BudgetInfeasibleError("a step of several ranks can't be run again on one of them")

    def rehearsal(self, model: torch.nn.Module, *args: Any) -> tuple[bool, str, str] | None:
        """As in `Session`, on rank 0 alone. None if parameters are sharded, because a forward then needs all ranks."""
        return None if self._channel.rank != 0 or has_shards(model) else super().rehearsal(model, *args)

    # -- agreement ---------------------------------------------------------------------------

    def agree(self, plan: Any) -> Any:
        """The plan of the training forward that begins now, the same on every rank."""
        key = f"plan/{self._forwards}"
        self._forwards += 1
        if self._channel.rank == 0:
            wanted = self._wanted or plan
            text = "" if wanted is self._in_force else wanted.to_json()
            self._channel.send(key, _digest(text) + text)
            if self._forwards > _KEPT_MESSAGES:
                self._channel.forget(f"plan/{self._forwards - _KEPT_MESSAGES}")
            self._in_force = wanted
            return wanted
        message = self._channel.receive(key)
        digest, text = message[:64], message[64:]
        if digest != _digest(text):
            raise IntegrationError("the plan from rank 0 was damaged on its way: its hash differs")
        if text:
            self._in_force = ExecutionPlan(text, self.hardware_json)
            self.host_memory.follow(self._in_force)
            _log.info("rank %d: %r of rank 0", self._channel.rank, self._in_force)
        return self._in_force


def _bucketed(model: torch.nn.Module) -> list[torch.Tensor]:
    """The parameters whose gradients the DDP around this forward copies to buckets. With
    `gradient_as_bucket_view` the gradients are the buckets."""
    from torch.nn.parallel import DistributedDataParallel

    ddp = DistributedDataParallel._active_ddp_module
    if ddp is None or ddp.gradient_as_bucket_view or all(module is not model for module in ddp.modules()):
        return []
    return [p for name, p in ddp.module.named_parameters() if p.requires_grad and name not in ddp.parameters_to_ignore]


class _Channel:
    """Messages between ranks. Each is written once and read by every rank."""

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

    def forget(self, key: str) -> None:
        self._store.delete_key(key)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
