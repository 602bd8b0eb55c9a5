"""The tracer of a step under fake tensors, which knows the values of small tensors that follow from constants.

Models branch on values that do not depend on data, such as positions that they count themselves and
masks of ones. `StaticTracer` computes the real values of small tensors beside their fake twins, if they
follow from constants alone (or from inputs whose values the profiler gives), those of floats in forward
only. The trace then takes such a branch as the real run does. All other values are unknown, and a branch
on one ends the trace.

Only the profiler uses this module.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor

from .. import _core
from ..base.walk import tensors_of
from ..device import kind_of
from ..errors import ProfileError
from ..model.placement import Placement
from .operand_types import OperandTypes
from .tracer import LiveTracer

__all__ = ["StaticTracer", "know", "libraries_branch_on_values"]

_log = logging.getLogger("memscale")

# A user who waits longer than this for a trace is told so. The clock is read once in so many operators.
_SILENT_S = 5.0
_LOOK_EVERY = 512

_MOST_ELEMENTS = 1 << 20
_MOST_FLOATS = 1 << 18
_VALUE = "_memscale_value"
_DEVICE = torch.ops.prim.device.default
_LITERAL = torch.ops.aten.lift_fresh.default
_RECURRENT = torch.ops.aten.mkldnn_rnn_layer.default
_DRAWS = frozenset({torch.ops.aten.rand.default, torch.ops.aten.rand.generator})
"""Operators of whose numbers models leave a layer out if one is small. A trace draws the largest: every layer runs."""
_CHECK = torch.ops.aten._is_all_true.default
"""With it torch.distributions checks arguments that depend on data. A trace takes them to be right."""
_GROUPED = torch.ops.aten._grouped_mm.default if hasattr(torch.ops.aten, "_grouped_mm") else None  # torch 2.6 has none
_OTHER_TYPES = frozenset({torch.ops.aten._local_scalar_dense.default, _GROUPED, _RECURRENT})
"""Operators whose fake kernels take other types, or give other results, than the real ones."""


def know(twin: torch.Tensor, value: torch.Tensor) -> None:
    """Records the values of a fake tensor. `value` must not change afterwards."""
    setattr(twin, _VALUE, value)


class StaticTracer(LiveTracer):
    """A `LiveTracer` for fake tensors.

    Attributes:
        runs_code_as_written: that of compiled modules too, so the tracer stays on in them; see `running_eagerly()`.
    """

    runs_code_as_written = True

    def __init__(
        self,
        model: str,
        signature: str,
        placement: Placement | None = None,
        elsewhere: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(model, signature, "static", _kernels(), placement, elsewhere)
        self._types = OperandTypes()
        self._model_name = model
        self._began_at = time.monotonic()
        self._reported = 0

    def add_input(self, name: str, tensor: torch.Tensor) -> None:
        """Records the caller's argument that a fake tensor stands for."""
        self._types.add_input(name, tensor)

    def assume_numbers(self) -> None:
        """From now on an unknown number that is read has any value: an optimizer reads its counts of steps, on which
        no size depends."""
        read = torch.ops.aten._local_scalar_dense.default
        self._kernels = {**self._kernels, read: _scalar_or_any}
        self._operators.pop(read, None)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the inherited method does

    def _report(self, *operator: Any) -> None:
        super()._report(*operator)
        self._reported += 1
        if self._reported % _LOOK_EVERY == 0 and time.monotonic() - self._began_at > _SILENT_S:
            self._began_at = float("inf")  # once is enough
            _log.info(
                "tracing %s: %d operators so far; the step is traced once, and again for an input of another shape",
                self._model_name,
                self._reported,
            )

    # C tells devices: the operator runs thousands of times a step, also where torch's C++ lets no interrupt out.
    @partial(_core.device_first, _DEVICE, FakeTensor)
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if isinstance(func, HigherOrderOperator):
            return self._higher_order(func, types, args, kwargs)
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError):
            if self.is_forward and func not in _OTHER_TYPES:
                self._types.check(func, args, kwargs or {}, ())
            raise
        if result is NotImplemented:
            return result
        if self.is_forward and func not in _OTHER_TYPES:
            self._types.check(func, args, kwargs or {}, tensors_of(result))
        if func is _RECURRENT and not self._paused:
            self._trace.untouched(result[3].untyped_storage()._cdata, _workspace(args)[1])
        if type(result) is FakeTensor and (self.is_forward or not result.dtype.is_floating_point):
            _follow(func, args, kwargs or {}, result)
        elif func._schema.is_mutable:
            _forget(*args, *(kwargs or {}).values())
        return result

    def _higher_order(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """An operator that runs functions, whose memory no trace sees. That of a compiled layer is measured later."""
        if self.is_forward and not self.is_in_compiled_layer:
            raise ProfileError(f"it calls {func}, inside of which a trace sees nothing, in code that is not compiled")
        return super().__torch_dispatch__(func, types, args, kwargs)


# ---- values -------------------------------------------------------------------------------


def _follow(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: FakeTensor) -> None:
    """Computes the result's value if all operands' are known, else forgets it."""
    if func is _CHECK and _known(args[0]) is None:
        with torch._C._DisableTorchDispatch():
            know(result, torch.ones((), dtype=torch.bool, device="cpu"))
        return
    if func in _DRAWS and result.numel() == 1:
        with torch._C._DisableTorchDispatch():
            know(result, torch.full(result.shape, 1 - torch.finfo(result.dtype).eps, dtype=result.dtype, device="cpu"))
        return
    most = _MOST_FLOATS if result.dtype.is_floating_point else _MOST_ELEMENTS
    try:
        if result.is_complex() or result.numel() > most or torch.Tag.nondeterministic_seeded in func.tags:
            raise _Unknown
        # The operand of `torch.tensor(...)` is real.
        real_args = (
            args if func is _LITERAL and type(args[0]) is torch.Tensor else tuple(_real(value) for value in args)
        )
        real_kwargs = {key: _real(value) for key, value in kwargs.items()}
        with torch._C._DisableTorchDispatch():
            value = func(*real_args, **real_kwargs)
            value = value.clone() if func is _LITERAL else value
        if value.shape != result.shape:
            raise _Unknown
        setattr(result, _VALUE, value)
    except Exception:
        if func._schema.is_mutable:
            _forget(*args, *kwargs.values())
        if hasattr(result, _VALUE):
            delattr(result, _VALUE)


def _forget(*operands: Any) -> None:
    """An operator wrote to some of `operands`: makes the values unknown of every tensor that shares a storage with one.
    To reach all of these, the storage of the known values is emptied."""
    for tensor in tensors_of(operands):
        known = getattr(tensor, _VALUE, None)
        if known is not None:
            known.untyped_storage().resize_(0)


class _Unknown(Exception):
    """An operand's value is not known."""


def _known(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor's value; None if it is not, or no longer, known."""
    value: torch.Tensor | None = getattr(tensor, _VALUE, None)
    if value is None or (value.numel() > 0 and value.untyped_storage().nbytes() == 0):
        return None
    return value


def _real(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        known = _known(value)
        if known is None:
            raise _Unknown
        return known
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(map(_real, value))
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _scalar_of(tensor: torch.Tensor) -> Any:
    """`tensor.item()`, for a tensor whose value is known."""
    known = _known(tensor)
    if known is None:
        return torch.ops.aten._local_scalar_dense.default(tensor)
    with torch._C._DisableTorchDispatch():
        return known.item()


def _scalar_or_any(tensor: torch.Tensor) -> Any:
    if _known(tensor) is not None:
        return _scalar_of(tensor)
    return 0.5 if tensor.dtype.is_floating_point else 1  # formulas divide by 1 - x


@contextmanager
def libraries_branch_on_values() -> Iterator[None]:
    """Lets transformers branch on values although the tensors are fake.

    transformers takes a fake tensor for a sign of compilation. It then builds attention masks that a
    real run does not need, of 4 bytes per pair of positions and layer.
    """
    library: Any = sys.modules.get("transformers.utils.import_utils")
    original = getattr(library, "is_fake_tensor", None)
    if original is None:
        yield
        return
    library.is_fake_tensor = _never
    try:
        yield
    finally:
        library.is_fake_tensor = original


def _never(value: Any) -> bool:
    return False


# ---- kernels ------------------------------------------------------------------------------


def _kernels() -> dict[Any, Callable[..., Any]]:
    """Replacements for operators that torch's fake mode would run wrongly.

    Results whose sizes depend on values take them from known ones. The fake kernel of grouped products refuses
    types that the CPU's real kernel takes. The fake kernel of the recurrent layer leaves out the workspace that
    is saved for backward. Some fake kernels lay their results out otherwise than the CPU's real ones, so the
    trace would miss copies that follow, or have too many; that of batch norm makes a gradient that is not
    wanted.
    """
    aten = torch.ops.aten
    contiguous = (
        aten.glu_backward.default,
        aten.huber_loss_backward.default,
        aten.log_sigmoid_forward.default,
        aten.mse_loss_backward.default,
        aten.rrelu_with_noise.default,
        aten.smooth_l1_loss_backward.default,
    )
    as_given = {
        aten.channel_shuffle.default: 0,
        aten.native_batch_norm.default: 0,
        aten.reflection_pad2d_backward.default: 1,
        aten.replication_pad2d_backward.default: 1,
        aten.roll.default: 0,
    }
    return {
        aten._local_scalar_dense.default: _scalar_of,
        **({_GROUPED: _grouped_product} if _GROUPED is not None else {}),
        _RECURRENT: _recurrent_layer,
        aten.masked_select.default: _sized_by(1, torch.count_nonzero, aten.masked_select.default, _selected),
        aten.nonzero.default: _sized_by(0, torch.count_nonzero, aten.nonzero.default, _places),
        aten._ctc_loss.Tensor: _sized_by(3, torch.max, aten._ctc_loss.Tensor, _ctc_losses),
        **{kernel: _laid_out_as_on_host(kernel) for kernel in contiguous},
        **{kernel: _laid_out_as_on_host(kernel, place) for kernel, place in as_given.items()},
        aten.native_batch_norm_backward.default: _laid_out_as_on_host(_batch_norm_backward, 1),
    }


def _sized_by(place: int, size_of: Callable[[torch.Tensor], torch.Tensor], kernel: Any, made: Any) -> Any:
    """`kernel`, whose results have sizes that depend on values: if the value of argument `place` is known, the results
    are `made(size_of(value), arguments)`."""

    def run(*args: Any) -> Any:
        known = _known(args[place])
        if known is None:
            return kernel(*args)
        with torch._C._DisableTorchDispatch():
            size = int(size_of(known))
        return made(size, args)

    return run


def _selected(count: int, args: tuple[Any, ...]) -> torch.Tensor:
    data, mask = args
    repeats = torch.broadcast_shapes(data.shape, mask.shape).numel() // max(mask.numel(), 1)
    selected: torch.Tensor = data.new_empty(count * repeats)
    return selected


def _places(count: int, args: tuple[Any, ...]) -> torch.Tensor:
    places: torch.Tensor = args[0].new_empty(count, args[0].dim(), dtype=torch.int64)
    return places


def _ctc_losses(longest: int, args: tuple[Any, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses, and for backward a table of times x places in the longest target and between them."""
    log_probs: torch.Tensor = args[0]
    steps, batch = log_probs.shape[:2]
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, 2 * longest + 1)


def _grouped_product(left: torch.Tensor, right: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    kernel: Any = _GROUPED
    if left.dtype is torch.bfloat16:
        made: torch.Tensor = kernel(left, right, *args, **kwargs)
        return made
    wide: torch.Tensor = kernel(left.bfloat16(), right.bfloat16(), *args, **kwargs)
    return wide.to(left.dtype)


def _laid_out_as_on_host(kernel: Any, place: int | None = None) -> Callable[..., Any]:
    """`kernel` with results in the layout of the CPU's real kernel, whatever the operands' strides: contiguous, or in
    channels_last if argument `place` is."""

    def run(*args: Any, **kwargs: Any) -> Any:
        made = kernel(*args, **kwargs)
        data = args[place or 0]
        if not kind_of(data.device).is_host:
            return made
        layout = torch.contiguous_format if place is None else suggest_memory_format(data)
        if isinstance(made, torch.Tensor):
            return _in_layout(made, data, layout)
        return tuple(_in_layout(result, data, layout) for result in made)

    return run


def _batch_norm_backward(*args: Any) -> tuple[torch.Tensor | None, ...]:
    made, *others = torch.ops.aten.native_batch_norm_backward.default(*args)
    is_wanted = args[-1][0]
    return (made if is_wanted else None), *others


def _in_layout(made: torch.Tensor | None, data: torch.Tensor, layout: torch.memory_format) -> torch.Tensor | None:
    if made is None or made.dim() != data.dim() or made.is_contiguous(memory_format=layout):
        return made
    return torch.empty_like(made, memory_format=layout)


def _recurrent_layer(*args: Any) -> tuple[torch.Tensor, ...]:
    output, hidden, cell, workspace = _RECURRENT(*args)
    return output, hidden, cell, workspace.new_empty(_workspace(args)[0])


_workspaces: dict[tuple[Any, ...], tuple[int, int]] = {}


def _workspace(args: tuple[Any, ...]) -> tuple[int, int]:
    """The bytes of oneDNN's workspace, and how many of them it never touches. Only the library knows them, so
    they are measured in a run on zeros, once per shape."""
    tensors = tuple((tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else None for value in args)
    key = (tensors, tuple(str(value) for value in args if not isinstance(value, torch.Tensor)))
    if key not in _workspaces:
        with torch._C._DisableTorchDispatch():
            real = [
                torch.zeros(value.shape, dtype=value.dtype, device="cpu") if isinstance(value, torch.Tensor) else value
                for value in args
            ]
            workspace = _RECURRENT(*real)[3]
            untouched = _core.hostmem_untouched(workspace.data_ptr(), workspace.nbytes)
            _workspaces[key] = (workspace.nbytes, untouched)
    return _workspaces[key]
