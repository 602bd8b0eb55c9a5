"""AdamW on the CPU, one pass over memory per step, with fp32 or 8-bit moments.

The classes keep torch's bookkeeping (groups, hooks, state dicts) and hand addresses
to `_core.adamw_step`. Parameters that C does not take (other devices and dtypes,
tensor subclasses) go through torch's own AdamW in the same step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.adamw import adamw

from .. import _core
from ..errors import ConfigError, IntegrationError, OffloadError
from . import state as _state
from .disk import DiskState
from .release import GradientRelease

__all__ = ["AdamW", "AdamW8bit"]

_log = logging.getLogger("memscale")


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` with the update in C for fp32 and bf16 parameters on the CPU.

    The arguments up to `fused` are torch's, with torch's meaning and checks; `foreach` and
    `fused` change nothing for parameters that C updates, except that with ``fused=True`` a
    `GradScaler` leaves unscaling to the step. `state_dict()` has torch's layout for fp32
    parameters: it can be loaded into `torch.optim.AdamW` and back.

    With fp32 parameters `exp_avg`, `exp_avg_sq` and `max_exp_avg_sq` have the bits of torch's
    default AdamW (on x86-64 with AVX2 or AVX-512); a parameter differs after a step by at
    most one unit in its last place plus five of what the step adds. The result does not depend
    on the instruction set or the number of threads (`torch.get_num_threads()`).

    Args:
        params: parameters or groups. A group may set its own `state_bits` and `bf16`.
        lr, betas, eps, weight_decay, amsgrad, maximize, foreach, capturable,
            differentiable, fused: as `torch.optim.AdamW`.
        state_bits: 32, or 8 for moments in 8 bits: 256-element blocks, the dynamic map of
            bitsandbytes, about 2.03 bytes per parameter. Tensors of fewer than 4096 elements
            keep fp32 moments. Not with `amsgrad`.
        bf16: how a bf16 parameter keeps what bf16 cannot hold. ``"split"``: 16 more bits per
            element (state `low`); together they are an fp32 value. ``"master"``: an fp32 copy
            (state `master`). Moments are fp32 (or 8 bits) either way.
        state: ``"memory"``, or ``"disk"``: moments, masters and low bits live in a file without
            a name and pass through 32 MiB of buffers during the step, bit-identical to memory.
            Tensors of fewer than 16384 elements stay in memory. `state[p]` then holds `step`
            alone; `state_dict()` has everything.
        disk_offload_dir: where that file is; None for a cache directory on a real disk.
        max_disk_offload_gb: most space it may take; None for half of what is free.
        release_gradients: update each parameter inside backward, as soon as its gradient is
            final, and free the gradient. `step()` then ends the step; `p.grad` is None. With
            the bits of a run without. See `accumulate()`; clipping and GradScaler are refused.

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
        bf16: str = "split",
        state: str = "memory",
        disk_offload_dir: str | None = None,
        max_disk_offload_gb: float | None = None,
        release_gradients: bool = False,
    ) -> None:
        self._state_bits = state_bits
        self._bf16 = bf16
        self._disk_options = _disk_options(state, disk_offload_dir, max_disk_offload_gb)
        self._disk: DiskState | None = None
        self._interrupted: str | None = None
        self._planned_disk = self._planned_release = False
        self._release: GradientRelease | None = None
        self._release_order: list[torch.Tensor] = []
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
            self._begin_release()

    # ---- groups and settings -------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch; checks `state_bits` and `bf16`, the optimizer's and the group's own."""
        super().add_param_group(param_group)
        try:
            self._check_settings(self.param_groups[-1])
        except ConfigError:
            self.param_groups.pop()
            raise
        release: GradientRelease | None = getattr(self, "_release", None)
        if release is not None:
            release.attach()

    def _settings(self, group: dict[str, Any]) -> tuple[int, str]:
        return group.get("state_bits", self._state_bits), group.get("bf16", self._bf16)

    def _check_settings(self, group: dict[str, Any]) -> None:
        state_bits, bf16 = self._settings(group)
        if state_bits not in (8, 32):
            raise ConfigError(f"state_bits: {state_bits!r} is not allowed; allowed are 8 and 32")
        if bf16 not in ("split", "master"):
            raise ConfigError(f"bf16: {bf16!r} is not allowed; allowed are 'split' and 'master'")
        if state_bits == 8 and group["amsgrad"]:
            raise ConfigError(
                "state_bits: 8 is not allowed with amsgrad=True, which has no 8-bit form; "
                "use state_bits=32 or amsgrad=False"
            )

    # ---- the step --------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; gradients are read as they are.

        Args:
            closure: computes the loss again, with gradients enabled; its value is returned.

        Raises:
            IntegrationError: a gradient is sparse, or of another dtype or device than its
                parameter (nothing has been updated); or an earlier step was interrupted.
            OffloadError: state on disk could not be read or written. Some parameters are updated
                then and others are not, each with its state: `finish_step()`, or load a
                checkpoint.
        """
        self._refuse_interrupted()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._release is not None:
            self._release.step_begins()
        found_inf = getattr(self, "found_inf", None)
        if found_inf is None or float(found_inf) == 0.0:
            self._step_all()
        return loss

    @torch.no_grad()
    def finish_step(self) -> None:
        """Does what is left of a step that ended with an `OffloadError`, with the same gradients.

        What was updated is not updated again. Does nothing if no step was interrupted.

        Raises:
            OffloadError: it failed again, and can be finished later.
            IntegrationError: it failed inside backward (`release_gradients`), so that gradients
                are missing: load a checkpoint.
        """
        if self._release is not None and self._release.failed_in_backward:
            self._refuse_interrupted()
        if self._interrupted is not None:
            self._step_all()

    def _refuse_interrupted(self) -> None:
        if self._interrupted is not None:
            raise IntegrationError(
                "AdamW: a step was interrupted: some parameters are updated and others not. Call "
                "finish_step() with the gradients of that step, or load model and optimizer from a "
                f"checkpoint. The cause: {self._interrupted}"
            )

    def _step_all(self) -> None:
        chosen = [self._choose(index, group) for index, group in enumerate(self.param_groups)]
        self._step_disk(chosen)
        for group, (theirs, ours, _) in zip(self.param_groups, chosen, strict=True):
            if theirs:
                self._step_torch({**group, "params": theirs})
            if ours:
                self._make_states(group, ours)
                if not _state.is_traced(ours[0]):
                    self._step_c(group, ours)
        if self._release is not None:
            self._release_order = self._release.step_ended()

    def _choose(self, index: int, group: dict[str, Any]) -> tuple[list[torch.Tensor], ...]:
        """The parameters with gradients: torch's, C's in memory, C's on disk."""
        theirs: list[torch.Tensor] = []
        ours: list[torch.Tensor] = []
        streamed: list[torch.Tensor] = []
        for position, p in enumerate(group["params"]):
            if p.grad is not None:
                _check_gradient(p, f"parameter {position} of group {index}")
                if not _state.is_ours(p, group):
                    theirs.append(p)
                else:
                    self._check_layout(p, group, f"parameter {position} of group {index}")
                    (streamed if self._is_streamed(p, group) else ours).append(p)
        return theirs, ours, streamed

    def _check_layout(self, p: torch.Tensor, group: dict[str, Any], name: str) -> None:
        """The state must fit the parameter as it is now; one that only lies otherwise is moved."""
        if not self.state.get(p) or _state.is_traced(p):
            return
        on_disk = self._disk is not None and p in self._disk
        shape, stride = (
            self._disk.layout_of(p) if on_disk and self._disk is not None else _state.layout_of(self.state[p])
        )
        if shape != tuple(p.shape):
            raise IntegrationError(
                f"AdamW: {name} has shape {tuple(p.shape)}, its state {shape}: the parameter was changed after a "
                "step. Make a new optimizer for it, or drop its state with optimizer.state.pop(parameter)"
            )
        if not _state.same_place(shape, stride, tuple(p.stride())):
            self._adopt(p, self._take_state(p), group)

    def _make_states(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p].update(_state.fresh(p, group["amsgrad"], *self._settings(group)))

    # ---- state on disk -----------------------------------------------------------------

    def _is_streamed(self, p: torch.Tensor, group: dict[str, Any]) -> bool:
        """Whether an update goes through the disk: where the state is, or else would be made."""
        if _state.is_traced(p):
            # A trace shows the step before any plan.
            return not self._planned_disk and self._belongs_on_disk(p, group)
        if self.state.get(p):
            return self._disk is not None and p in self._disk
        return self._belongs_on_disk(p, group)

    def _belongs_on_disk(self, p: torch.Tensor, group: dict[str, Any]) -> bool:
        return (
            self._disk_options is not None
            and _state.is_ours(p, group)
            and _core.optimizer_stream_takes(p.numel())
        )

    def _disk_state(self) -> DiskState:
        if self._disk is None:
            self._disk = DiskState(*(self._disk_options or (None, None)))
        return self._disk

    def _step_disk(self, chosen: list[tuple[list[torch.Tensor], ...]]) -> None:
        work = [(g, p) for g, c in zip(self.param_groups, chosen, strict=True) for p in c[2]]
        for group, p in work:
            self._make_disk_state(group, p)
        in_round = self._disk is not None and self._disk.in_round
        if self._disk is None or not (work or in_round or self._interrupted is not None):
            return
        if work and _state.is_traced(work[0][1]):
            return
        try:
            if not in_round:
                self._disk.begin(p for _, p in work)
            for group, p in work:
                self._update_disk(self._disk, group, p)
            updated = self._disk.end()
        except BaseException as error:
            self._disk.rest()
            self._interrupt(error)
            raise
        self._interrupted = None
        for p in updated:
            self.state[p]["step"] += 1
        torch.autograd.graph.increment_version(updated)

    def _make_disk_state(self, group: dict[str, Any], p: torch.Tensor) -> None:
        if not self.state[p]:
            self.state[p]["step"] = torch.tensor(0.0)
            if not _state.is_traced(p):
                self._disk_state().add(p, group["amsgrad"], *self._settings(group))

    def _update_disk(self, disk: DiskState, group: dict[str, Any], p: torch.Tensor) -> None:
        gradient = _state.laid_out_as(p, _gradient_of(p))
        hyperparameters = self._hyperparameters(group)
        disk.update(p, gradient, int(self.state[p]["step"]) + 1, hyperparameters)
        if self._grad_scale() != 1.0 and gradient is not p.grad:
            _gradient_of(p).copy_(gradient)

    def _interrupt(self, error: BaseException, can_be_finished: bool = True) -> None:
        self._interrupted = str(error) or type(error).__name__
        way_out = (
            "Once the cause is gone, optimizer.finish_step() does the rest with the same gradients; or load "
            if can_be_finished
            else "Backward did not end, so gradients are missing: load "
        )
        error.add_note(
            "The step was interrupted: some parameters are updated and others not, each with its own "
            f"state. {way_out}model and optimizer from a checkpoint."
        )

    # ---- what a plan chooses ---------------------------------------------------------------

    def _streamable_tensors(self) -> list[torch.Tensor]:
        """Of the state, what could lie on disk and does not at its owner's wish."""
        if self._disk_options is not None and not self._planned_disk:
            return []
        return [
            value
            for group in self.param_groups
            for p in group["params"]
            if _state.is_ours(p, group) and _core.optimizer_stream_takes(p.numel())
            for name, value in self.state.get(p, {}).items()
            if name != "step"
        ]

    def _planned_disk_bytes(self) -> int:
        on_disk = self._planned_disk and self._disk is not None
        return self._disk.stats()["disk_bytes"] if on_disk and self._disk is not None else 0

    def _arrange(
        self, on_disk: bool, releases: bool, directory: Any = None, cap_gb: float | None = None
    ) -> None:
        """Moves state and begins or ends gradient release as a plan wants; what the optimizer was
        made with stays as it is. Between steps."""
        if on_disk != self._planned_disk and (self._planned_disk or self._disk_options is None):
            self._planned_disk = on_disk
            self._disk_options = _disk_options("disk", directory, cap_gb) if on_disk else None
            self._move_states()
        if releases and self._release is None:
            self._planned_release = True
            self._begin_release()
        elif self._planned_release and not releases and self._release is not None:
            self._planned_release = False
            self._release.detach()
            self._release = None
            self._step_supports_amp_scaling = bool(self.defaults["fused"])

    def _move_states(self) -> None:
        """Each state to where it belongs now."""
        try:
            for group in self.param_groups:
                for p in group["params"]:
                    is_on_disk = self._disk is not None and p in self._disk
                    if self.state.get(p) and is_on_disk != self._belongs_on_disk(p, group):
                        kept = self.state[p] if not is_on_disk else self._take_state(p)
                        self._adopt(p, kept, group)
        except OffloadError as error:
            # The state that could not be written is still in memory, and is used there.
            _log.warning("optimizer state stays in memory: %s", error)
            self._planned_disk, self._disk_options = False, None
        if self._disk_options is None and self._disk is not None and not self._disk:
            self._disk = None

    # ---- gradient release ----------------------------------------------------------------

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Gradients of backwards in this block are added up, as without `release_gradients`.

        Run all micro-steps but the last in it; the last backward updates and frees.

        Example:
            >>> with optimizer.accumulate():
            ...     model(first).loss.backward()
            >>> model(last).loss.backward()
            >>> optimizer.step()
        """
        if self._release is None:
            yield
            return
        self._release.accumulating += 1
        try:
            yield
        finally:
            self._release.accumulating -= 1

    def _begin_release(self) -> None:
        # A GradScaler then leaves the gradients to step(), which refuses by name.
        self._step_supports_amp_scaling = True
        self._release = GradientRelease(self)
        self._release.attach()

    def _group_index(self, p: torch.Tensor) -> int:
        for index, group in enumerate(self.param_groups):
            if any(p is q for q in group["params"]):
                return index
        raise IntegrationError("release_gradients: the parameter was taken out of its group")

    def _name_of(self, p: torch.Tensor) -> str:
        index = self._group_index(p)
        group = self.param_groups[index]
        position = next(i for i, q in enumerate(group["params"]) if p is q)
        return f"parameter {position} of group {index}"

    def _update_one(self, index: int, p: torch.Tensor) -> None:
        """Updates a parameter whose gradient has just become final."""
        group = self.param_groups[index]
        _check_gradient(p, self._name_of(p))
        if _state.is_ours(p, group):
            self._check_layout(p, group, self._name_of(p))
        if not _state.is_ours(p, group):
            self._step_torch({**group, "params": [p]})
        elif not self._is_streamed(p, group):
            self._make_states(group, [p])
            self._step_c(group, [p])
        else:
            self._make_disk_state(group, p)
            disk = self._disk_state()
            if not disk.in_round:
                disk.begin(self._release_order)
            try:
                self._update_disk(disk, group, p)
            except BaseException:
                disk.rest()
                raise
            torch.autograd.graph.increment_version([p])

    @contextmanager
    def _states_in_view(self) -> Iterator[None]:
        """`state` with what is on disk as tensors, for the length of a block."""
        if self._disk is None:
            yield
            return
        self._refuse_interrupted()
        if self._disk.in_round:
            raise IntegrationError(
                "release_gradients: backward has updated parameters; call step() before the state is read"
            )
        shown = self._disk.export(self.state)
        kept = self.state
        self.state = _state.new_state({p: {**v, **shown.get(p, {})} for p, v in kept.items()})
        try:
            yield
        finally:
            self.state = kept

    def _adopt(self, p: torch.Tensor, given: dict[str, Any], group: dict[str, Any]) -> None:
        """Takes over a state of any form; one tensor's at a time is in memory."""
        settings = self._settings(group)
        if given and self._belongs_on_disk(p, group):
            values = _state.adapt(p, given, group, *settings, copies=False)
            self._disk_state().put(p, values, *settings)
            arrays = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "low", "master", *_state.QUANTIZED}
            self.state[p] = {name: value for name, value in values.items() if name not in arrays}
        else:
            if self._disk is not None:
                self._disk.remove(p)
            self.state[p] = _state.adapt(p, given, group, *settings)

    def _take_state(self, p: torch.Tensor) -> dict[str, Any]:
        """The parameter's state, which this optimizer has no longer."""
        values = self.state.pop(p)
        if self._disk is not None and p in self._disk:
            values = {**values, **self._disk.export([p])[p]}
            self._disk.remove(p)
        return values

    # ---- updates in memory ---------------------------------------------------------------

    def _step_torch(self, group: dict[str, Any]) -> None:
        """torch's own update of what C does not take."""
        lists: list[list[torch.Tensor]] = [[] for _ in range(6)]
        has_complex = self._init_group(group, *lists)
        params, gradients, averages, squares, largest_squares, steps = lists
        beta1, beta2 = group["betas"]
        adamw(
            params,
            gradients,
            averages,
            squares,
            largest_squares,
            steps,
            foreach=group["foreach"],
            capturable=group["capturable"],
            differentiable=group["differentiable"],
            fused=group["fused"],
            grad_scale=getattr(self, "grad_scale", None),
            found_inf=getattr(self, "found_inf", None),
            has_complex=has_complex,
            amsgrad=group["amsgrad"],
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )

    def _grad_scale(self) -> float:
        scale = getattr(self, "grad_scale", None)
        return 1.0 if scale is None else float(scale)

    def _hyperparameters(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """As `_core.adamw_step` takes them between tensors and threads."""
        beta1, beta2 = group["betas"]
        numbers = (group["lr"], beta1, beta2, group["eps"], group["weight_decay"], self._grad_scale())
        return (*map(float, numbers), bool(group["maximize"]))

    def _step_c(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        hyperparameters = self._hyperparameters(group)
        tensors = []
        kept = []  # gradients in the parameters' own layout live until C has read them
        for p in params:
            gradient = _state.laid_out_as(p, _gradient_of(p))
            kept.append(gradient)
            tensors.append(_state.addresses(p, gradient, self.state[p]))
        _core.adamw_step(tensors, *hyperparameters, torch.get_num_threads())
        is_scaled = self._grad_scale() != 1.0
        for p, gradient in zip(params, kept, strict=True):
            self.state[p]["step"] += 1
            if is_scaled and gradient is not p.grad:
                _gradient_of(p).copy_(gradient)
        # Autograd learns of writes that it has not seen.
        torch.autograd.graph.increment_version(params)

    # ---- state dicts -------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state in torch's layout.

        With ``state="disk"`` its tensors lie in a file without a name that they map: memory is
        used for what is read of them.

        Raises:
            IntegrationError: a step was interrupted.
            OffloadError: state on disk can't be read back.
        """
        with self._states_in_view():
            return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a state of `torch.optim.AdamW`, of this class or of its 8-bit form.

        Moments are converted to what this optimizer keeps, one parameter after the other: with
        ``state="disk"`` and a dict of ``torch.load(path, mmap=True)`` no more than one is in
        memory. The caller's dict is not changed. Forgets a step that was interrupted.

        Raises:
            IntegrationError: the state is another optimizer's, or a shape differs from the
                parameter's. Nothing has been changed.
            OffloadError: the state could not be written to disk. Load again before a step.
            ValueError: as torch, where groups do not match.
        """
        _state.check_dict(state_dict, self.param_groups)
        # The base class casts what it can see to the parameter's dtype, codes and moments of
        # bf16 parameters too. Registered last: the caller's own hooks see the plain dict.
        handle = self.register_load_state_dict_pre_hook(_state.hide)
        before = self._interrupted
        if self._disk is not None:
            self._disk.forget_round()
        if self._release is not None:
            self._release.forget()
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        if self._interrupted is before:
            self._interrupted = None

    def __getstate__(self) -> dict[str, Any]:
        with self._states_in_view():
            return {
                **super().__getstate__(),
                "_state_bits": self._state_bits,
                "_bf16": self._bf16,
                # A copy has no plan: what it does is what its original was made to do.
                "_disk_options": None if self._planned_disk else self._disk_options,
                "_releases": self._release is not None and not self._planned_release,
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in ("_disk", "_interrupted", "_release"):
            self.__dict__.setdefault(name, None)
        self.__dict__.setdefault("_release_order", [])
        self.__dict__.setdefault("_planned_disk", False)
        self.__dict__.setdefault("_planned_release", False)
        state = dict(state)
        releases = state.pop("_releases", False)
        given = state.get("state", {})
        shown = {p: value for p, value in given.items() if not isinstance(value, _state.Hidden)}
        super().__setstate__({**state, "state": _state.new_state(shown)})
        for group in self.param_groups:
            for p in group["params"]:
                self._settle_state(p, given.get(p), group)
        if releases:
            self._begin_release()

    def _settle_state(self, p: torch.Tensor, value: Any, group: dict[str, Any]) -> None:
        """What `__setstate__` was given for a parameter takes its place."""
        is_hidden = isinstance(value, _state.Hidden)
        values = value.value if is_hidden else value
        try:
            if is_hidden or (values and self._belongs_on_disk(p, group)):
                self._adopt(p, values, group)
            elif self._disk is not None:
                self._disk.remove(p)
        except OffloadError as error:
            self._interrupted = f"its state was not loaded as a whole: {error}"
            raise

    def torch_state_dict(self) -> dict[str, Any]:
        """`state_dict()` in the layout of `torch.optim.AdamW`, 8-bit moments as fp32.

        A copy of the state in full precision: four bytes per element and moment.
        """
        given = self.state_dict()
        return {
            **given,
            "state": {index: _state.full_precision(values) for index, values in given["state"].items()},
        }


class AdamW8bit(AdamW):
    """`AdamW` with ``state_bits=8``: about 2 bytes of state per parameter instead of 8.

    Lossy: moments are rounded to 256 values per block of 256 elements. A second moment that
    is not zero never becomes zero, so no step divides by `eps` alone. The arguments are those
    of `AdamW`; a group may set ``state_bits=32`` for itself (embeddings, for example).
    """

    def __init__(self, params: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(params, *args, **{"state_bits": 8, **kwargs})


def _disk_options(
    state: str, directory: str | None, cap_gb: float | None
) -> tuple[str | None, float | None] | None:
    """What `DiskState` takes; None for state in memory."""
    if state == "disk":
        if directory is not None:
            _core.disk_probe(str(directory))  # raises ConfigError
        if cap_gb is not None and not cap_gb > 0:
            raise ConfigError(f"max_disk_offload_gb: {cap_gb!r} is not allowed; allowed are numbers above 0")
        return (None if directory is None else str(directory)), cap_gb
    if state != "memory":
        raise ConfigError(f"state: {state!r} is not allowed; allowed are 'memory' and 'disk'")
    if directory is not None or cap_gb is not None:
        raise ConfigError("disk_offload_dir and max_disk_offload_gb need state='disk'")
    return None


def _gradient_of(p: torch.Tensor) -> torch.Tensor:
    """The gradient of a parameter that was chosen because it has one."""
    if p.grad is None:
        raise ValueError("the parameter has no gradient")
    return p.grad


def _check_gradient(p: torch.Tensor, name: str) -> None:
    """Refuses what neither C nor torch's AdamW can use, by name."""
    gradient = _gradient_of(p)
    if gradient.layout is not torch.strided:
        raise IntegrationError(
            f"AdamW: the gradient of {name} is sparse ({gradient.layout}); use dense gradients "
            "(Embedding(sparse=False)) or torch.optim.SparseAdam for this parameter"
        )
    if gradient.dtype is not p.dtype or gradient.device != p.device:
        raise IntegrationError(
            f"AdamW: the gradient of {name} is {gradient.dtype} on {gradient.device}, the parameter "
            f"{p.dtype} on {p.device}; they must agree"
        )
