"""AdamW on the CPU, one pass over memory per step, with fp32 or 8-bit moments.

The classes keep torch's bookkeeping (groups, hooks, state dicts) and pass addresses to
`_core.adamw_step`. Of parameters that are divided among ranks (`DTensor`), each rank updates its part.
Parameters that C does not support (other devices and dtypes, other tensor subclasses) are updated by
torch's own AdamW in the same step. `AdamW` is composed of parts that own their fields:
the form of states (`StateForm`), their place (`StatePlace`) and the release of gradients
(`ReleaseSwitch`). This file has the step and the state dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from enum import Enum, auto
from typing import Any

import torch

from ..errors import ConfigError
from . import state as _state
from .disk_update import StatePlace, disk_options
from .memory_update import StateForm, check_gradient, make_states, update_by_c, update_by_torch
from .release import name_of
from .release_update import ReleaseSwitch
from .widened import find_room
from .widened import update as update_widened

__all__ = ["AdamW", "AdamW8bit"]


class _Way(Enum):
    """Who updates a parameter, and where its state is."""

    TORCH = auto()  # torch, in the parameter's dtype; the state is beside it
    WIDENED = auto()  # torch in fp32; the state is beside it
    C = auto()  # C; the state is beside it
    DISK = auto()  # the state is on disk
    HOST = auto()  # the parameter is on a GPU, the state in host memory


_BESIDE = (_Way.TORCH, _Way.WIDENED, _Way.C)


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` with the update in C for fp32 and bf16 parameters on the CPU.

    The arguments up to `fused` are torch's, with torch's meaning and checks. `foreach` and `fused`
    change nothing for parameters that C updates, except that with ``fused=True`` a `GradScaler`
    leaves unscaling to the step. For fp32 parameters `state_dict()` has torch's layout: it can be
    loaded into `torch.optim.AdamW` and back.

    For fp32 parameters `exp_avg`, `exp_avg_sq` and `max_exp_avg_sq` have the bits of torch's default
    AdamW (on x86-64 with AVX2 or AVX-512). After a step a parameter differs from torch's by at most
    one unit in its last place plus five units in the last place of the update. The result does not
    depend on the instruction set or the number of threads (`torch.get_num_threads()`).

    Args:
        params: parameters or groups. A group may set its own `state_bits` and `bf16`.
        lr, betas, eps, weight_decay, amsgrad: as `torch.optim.AdamW`.
        maximize, foreach, capturable, differentiable, fused: as `torch.optim.AdamW`.
        state_bits: 32, or 8 for moments in 8 bits, in blocks of 256 elements with the dynamic map
            of bitsandbytes: about 2.03 bytes per parameter. Tensors of fewer than 4096 elements
            keep fp32 moments, and parameters on a GPU moments of full size. 8 is not allowed with
            `amsgrad`.
        bf16: how a bf16 parameter keeps the bits that bf16 cannot hold. ``"split"``: 16 more bits per
            element (state `low`); together they are an fp32 value. ``"master"``: an fp32 copy
            (state `master`). Moments are fp32 (or 8 bits, on the CPU) either way. None: split on the
            CPU; on a GPU bf16 moments and no more bits, as `torch.optim.AdamW` has them, and always
            so with `capturable`, `fused` or `differentiable`.
        state: ``"memory"``, or ``"disk"``: moments, masters and low bits live in a file without
            a name and pass through 32 MiB of buffers during the step, bit-identical to memory; those of
            parameters on a GPU go to the card and back in parts, as with ``"host"``.
            Or ``"host"``, for parameters on a GPU: states live in host memory and pass through
            48 MiB of the card's during the step, with the bits of torch's AdamW on the card (on fp32
            copies if `bf16` is named); not with `capturable` or `fused`.
            Tensors of fewer than 16384 elements stay in memory. `state[p]` then holds only
            `step`; `state_dict()` has everything.
        disk_offload_dir: directory of that file; None for a cache directory on a real disk.
        max_disk_offload_gb: the largest size of that file; None for half of the free space.
        release_gradients: update each parameter inside backward, as soon as its gradient is
            final, and free the gradient. `step()` then ends the step; `p.grad` is None. Results
            have the same bits as without release. Clipping raises; under a GradScaler gradients
            are kept until `step()`. For several backwards a step see `accumulate()`.

    Raises:
        ConfigError: one of memscale's own arguments is not allowed, or 8 bits with `amsgrad`.
        ValueError, RuntimeError: as torch, for the other arguments.

    Example:
        >>> optimizer = memscale.optim.AdamW(model.parameters(), lr=3e-4)
        >>> loss.backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        state_bits: int = 32,
        bf16: str | None = None,
        state: str = "memory",
        disk_offload_dir: str | None = None,
        max_disk_offload_gb: float | None = None,
        release_gradients: bool = False,
    ) -> None:
        options = disk_options(state, disk_offload_dir, max_disk_offload_gb)
        self._place = StatePlace(StateForm(state_bits, bf16), options, on_host=state == "host")
        self._releasing = ReleaseSwitch()
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )
        if release_gradients:
            self._releasing.begin(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch, with a check of the group's `state_bits` and `bf16`."""
        super().add_param_group(param_group)
        try:
            self._place.form.check(self.param_groups[-1])
        except ConfigError:
            self.param_groups.pop()
            raise
        if self._releasing.release is not None:
            self._releasing.release.attach()

    def accumulate(self) -> AbstractContextManager[None]:
        """A block in which gradients are kept and added up, as without `release_gradients`.

        Run all micro-steps but the last in the block; the last backward updates and frees.

        Example:
            >>> with optimizer.accumulate():
            ...     model(first).loss.backward()
            >>> model(last).loss.backward()
            >>> optimizer.step()
        """
        return self._releasing.accumulating()

    # ---- the step --------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates each parameter that has a gradient.

        Args:
            closure: computes the loss again, with gradients enabled; its value is returned.

        Raises:
            IntegrationError: a gradient is sparse, of another dtype or device than its parameter, or
                divided among ranks where the parameter is not (nothing has been updated); an earlier
                step was interrupted; or the process was forked from one that keeps this optimizer's
                state on disk.
            OffloadError: state on disk could not be read or written. Some parameters are then
                updated and others are not, each with its state: call `finish_step()`, or load a
                checkpoint.
        """
        self._refuse_interrupted()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._releasing.release is not None:
            self._releasing.release.step_begins()
        found_inf = getattr(self, "found_inf", None)
        if found_inf is None or float(found_inf) == 0.0:
            self._step_all()
        return loss

    @torch.no_grad()
    def finish_step(self) -> None:
        """Finishes a step that ended with an `OffloadError`, with the same gradients.

        No parameter is updated twice. Does nothing if no step was interrupted.

        Raises:
            OffloadError: the step failed again; it can be finished later.
            IntegrationError: the step failed inside backward (`release_gradients`), so that gradients
                are missing, or in torch's update of parameters on a GPU. Load a checkpoint.
        """
        self._place.refuse_inherited()
        release = self._releasing.release
        if not self._place.can_be_finished or (release is not None and release.failed_in_backward):
            self._refuse_interrupted()
        if self._place.interrupted is not None:
            self._step_all()

    def _refuse_interrupted(self) -> None:
        self._place.refuse_interrupted()

    def _step_all(self) -> None:
        work = [(group, self._by_way(index, group)) for index, group in enumerate(self.param_groups)]
        find_room([p for _, ways in work for p in ways[_Way.WIDENED]])
        self._place.step(self, [(group, p) for group, ways in work for p in ways[_Way.DISK]])
        self._update_hosted([(group, ways[_Way.HOST]) for group, ways in work])
        try:
            for group, ways in work:
                for way in _BESIDE:
                    self._update_beside(group, way, ways[way])
        except BaseException as error:
            if any(ways[way] for _, ways in work for way in (_Way.WIDENED, _Way.DISK, _Way.HOST)):
                self._place.interrupt(error, can_be_finished=False)
            raise
        if not self._is_traced():
            self._releasing.step_ended()
            self._place.step_ended(self)

    def _update_beside(self, group: dict[str, Any], way: _Way, params: list[torch.Tensor]) -> None:
        """Updates parameters of a group whose states are beside them."""
        if not params:
            return
        if way is _Way.TORCH:
            update_by_torch(self, {**group, "params": params})
            return
        make_states(self.state, group, params, self._place.form)
        if way is _Way.WIDENED:
            update_widened(self, group, params)
        elif not _state.is_traced(params[0]):
            update_by_c(self, group, params)

    def _update_hosted(self, work: list[tuple[dict[str, Any], list[torch.Tensor]]]) -> None:
        for index, (group, params) in enumerate(work, 1):
            self._place.update_hosted(self, group, params, is_last=index == len(work))

    def _is_traced(self) -> bool:
        """Whether this optimizer is the copy that the profiler steps. The copy shares its original's parts."""
        first = next((p for group in self.param_groups for p in group["params"]), None)
        return first is not None and _state.is_traced(first)

    def _by_way(self, index: int, group: dict[str, Any]) -> dict[_Way, list[torch.Tensor]]:
        """The parameters with gradients."""
        ways: dict[_Way, list[torch.Tensor]] = {way: [] for way in _Way}
        for position, p in enumerate(group["params"]):
            if p.grad is not None:
                ways[self._way_of(p, group, f"parameter {position} of group {index}")].append(p)
        return ways

    def _way_of(self, p: torch.Tensor, group: dict[str, Any], name: str) -> _Way:
        """How `p` is updated. Raises if its gradient or its state does not fit."""
        place = self._place
        check_gradient(p, name)
        if place.is_hosted(self.state, p, group):
            way = _Way.HOST
        elif place.is_streamed(self.state, p, group):
            way = _Way.DISK
        elif _state.is_ours(p, group):
            way = _Way.C
        elif place.is_widened(p, group):
            way = _Way.WIDENED
        else:
            return _Way.TORCH
        place.check_layout(self.state, p, group, name)
        return way

    # ---- inside backward -----------------------------------------------------------------

    def _update_in_backward(self, index: int, p: torch.Tensor) -> None:
        """Updates a parameter whose gradient has just become final."""
        group = self.param_groups[index]
        way = self._way_of(p, group, name_of(self.param_groups, p))
        if way is _Way.HOST:
            self._place.update_hosted(self, group, [p])
        elif way is _Way.DISK:
            self._place.update_in_backward(self, group, p, self._releasing.order)
        else:
            self._update_beside(group, way, [p])

    def _backward_failed(self, error: BaseException) -> None:
        self._place.interrupt(error, can_be_finished=False)

    # ---- options that a plan chooses --------------------------------------------------------

    def _facts_for_plan(self) -> tuple[list[torch.Tensor], bool, bool]:
        """The tensors that a plan may put on disk or into host memory, whether the user chose gradient release, and
        whether the user moved the state there."""
        place = self._place
        is_moved = place.is_owners_wish or place.is_owners_host
        return place.streamable_tensors(self), self._releasing.is_owners_wish, is_moved

    def _releases_now(self) -> bool:
        return self._releasing.release is not None

    def _releases_by_itself(self) -> bool:
        return self._releasing.is_owners_wish

    def _needed_gradients(self) -> bool:
        return self._releasing.needed_gradients()

    def _planned_bytes(self) -> int:
        return self._place.planned_bytes()

    def _arrange(
        self,
        on_disk: bool,
        releases: bool,
        may_release: bool = False,
        on_host: bool = False,
        buffer_bytes: int = 0,
        moved_bytes: int = 0,
        directory: Any = None,
        cap_gb: float | None = None,
    ) -> None:
        """Moves state, at least `moved_bytes` of it (0: all that may move), and begins or ends gradient release, as a
        plan says. Called between steps."""
        self._place.set_buffers(buffer_bytes)
        self._place.arrange(self, on_disk, on_host, moved_bytes, directory, cap_gb)
        self._releasing.arrange(self, releases, may_release)

    # ---- state dicts -------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state in torch's layout.

        With ``state="disk"`` its tensors map a file without a name, so only the parts that are read use
        memory. If any lie on disk or in host memory, all tensors of the dict do.

        Raises:
            IntegrationError: a step was interrupted.
            OffloadError: state on disk can't be read back.
        """
        with self._place.in_view(self, to_save=True):
            return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state of `torch.optim.AdamW`, of this class or of its 8-bit form.

        Moments are converted to this optimizer's form, one parameter at a time. With ``state="disk"``
        and a dict of ``torch.load(path, mmap=True)`` only one parameter's state is in memory. The
        caller's dict is not changed. An interrupted step is forgotten.

        Raises:
            IntegrationError: the state is another optimizer's, or its shape or division among ranks
                differs from the parameter's. The optimizer has not changed.
            OffloadError: the state could not be written to disk. Load again before a step.
            ValueError: as torch, if groups do not match.
        """
        _state.check_dict(state_dict, self.param_groups)
        # The base class casts every tensor that it sees to the parameter's dtype, even codes and
        # moments of bf16 parameters, so states are hidden from it. The hook that hides them is
        # registered last, so that the caller's own hooks see the plain dict.
        handle = self.register_load_state_dict_pre_hook(_state.hide)
        place, release = self._place, self._releasing.release
        before = place.interrupted
        if place.disk is not None:
            place.disk.forget_round()
        if place.host is not None:
            place.host.end()
        if release is not None:
            release.forget()
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        if place.interrupted is before:
            place.interrupted = None
        place.step_ended(self)

    def __getstate__(self) -> dict[str, Any]:
        place = self._place
        with place.in_view(self):
            return {
                **super().__getstate__(),
                "_state_bits": place.form.state_bits,
                "_bf16": place.form.bf16,
                # A copy follows no plan, so it gets the options of its original's constructor.
                "_disk_options": place.options if place.is_owners_wish else None,
                "_on_host": place.is_owners_host,
                "_releases": self._releasing.is_owners_wish,
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        if "_state_bits" in state:  # a copy, or unpickled: it has no parts yet
            form = StateForm(state.pop("_state_bits"), state.pop("_bf16"))
            self._place = StatePlace(form, state.pop("_disk_options"), state.pop("_on_host", False))
            self._releasing = ReleaseSwitch()
        releases = state.pop("_releases", False)
        place = self._place
        if place.disk is not None and place.disk.is_inherited:
            place.disk = None  # the loaded state replaces it
        given = state.get("state", {})
        shown = {p: value for p, value in given.items() if not isinstance(value, _state.Hidden)}
        super().__setstate__({**state, "state": _state.new_state(shown)})  # type: ignore[no-untyped-call]
        for group in self.param_groups:
            for p in group["params"]:
                place.settle(self.state, p, given.get(p), group)
        if releases:
            self._releasing.begin(self)

    def torch_state_dict(self) -> dict[str, Any]:
        """`state_dict()` in the layout of `torch.optim.AdamW`, with 8-bit moments as fp32.

        8-bit moments are copied in full precision, which takes four bytes per element and moment.
        """
        given = self.state_dict()
        return {
            **given,
            "state": {index: _state.full_precision(values) for index, values in given["state"].items()},
        }


class AdamW8bit(AdamW):
    """`AdamW` with ``state_bits=8``: about 2 bytes of state per parameter instead of 8.

    Moments lose precision: they are rounded to 256 values per block of 256 elements. A second moment
    that is not zero never becomes zero, so no step divides by `eps` alone. The arguments are those
    of `AdamW`; a group may set ``state_bits=32`` for itself (embeddings, for example).
    """

    def __init__(self, params: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(params, *args, **{"state_bits": 8, **kwargs})
