"""The state of `AdamW`: its tensors, their addresses, and conversions between forms.

A state holds `step`, and for each moment either the tensor itself (`exp_avg`) or codes and scales
(`exp_avg_8bit`, `exp_avg_absmax`). The 8-bit names differ from torch's, so that torch refuses such
a dict instead of reading codes as values.

Of a parameter that is divided among ranks (`DTensor`), C updates this rank's part. An optimizer holds its state as
torch's does, in tensors divided as the parameter is; the scales of 8-bit blocks are divided evenly, padded to the
blocks of the largest part.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import torch

from .. import _core
from ..base.divided import (
    divided_as,
    divided_evenly,
    divisions_of,
    is_shard,
    largest_part_elements,
    part_of,
    parts_count,
)
from ..device import ACCELERATORS
from ..errors import IntegrationError

BLOCK = _core.ADAMW_BLOCK
MOMENTS = {"exp_avg": True, "exp_avg_sq": False}  # name -> signed
MOMENT_NAMES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
EXTRAS = {"low", "master"}  # the bits that a bf16 parameter cannot hold
ARRAYS = (*MOMENT_NAMES, "low", "master")
FULL = {"step", *MOMENT_NAMES}
QUANTIZED = {f"{name}_{part}" for name in MOMENTS for part in ("8bit", "absmax")}
DIVISION = "division_8bit"  # how a parameter was divided when the blocks of its 8-bit moments were made
KNOWN = FULL | QUANTIZED | EXTRAS | {DIVISION}

_PLAIN = (torch.Tensor, torch.nn.Parameter)

# Codes of ms_adamw_weights.
FP32, BF16_MASTER, BF16_SPLIT = _core.ADAMW_FP32, _core.ADAMW_BF16_MASTER, _core.ADAMW_BF16_SPLIT


class Hidden:
    """A wrapper around a state, which torch's `load_state_dict` passes on unchanged."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value


def hide(optimizer: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
    """A load hook: hides each parameter's state from the base class."""
    state = {key: Hidden(value) for key, value in state_dict["state"].items()}
    return {**state_dict, "state": state}


def new_state(values: dict[Any, Any]) -> defaultdict[Any, Any]:
    """A state dictionary as torch's optimizers hold it."""
    state: defaultdict[Any, Any] = defaultdict(dict)
    state.update(values)
    return state


# ---- parameters that C updates ---------------------------------------------------------


def is_ours(p: torch.Tensor, group: dict[str, Any]) -> bool:
    """Whether C updates this parameter: a plain dense fp32 or bf16 tensor in host memory, or such a part of one."""
    part = part_of(p)
    return (
        part.device.type == "cpu"
        and part.dtype in (torch.float32, torch.bfloat16)
        and is_plain(part)
        and not group["differentiable"]
        and is_dense(part)
    )


def may_leave_gpu(p: torch.Tensor, group: dict[str, Any]) -> bool:
    """Whether torch's usual operators can update a parameter, or this rank's part of one, on a GPU, a range of its
    elements at a time: a plain dense tensor of floats."""
    part = part_of(p)
    return (
        any(part.device.type == kind.name for kind in ACCELERATORS)
        and is_plain(part)
        and part.is_floating_point()
        and not (group["differentiable"] or group["capturable"] or group["fused"])
        and is_dense(part)
    )


def is_on_host(p: torch.Tensor) -> bool:
    """Whether a parameter, or this rank's part of it, lies in host memory."""
    return part_of(p).device.type == "cpu"


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a dense tensor in the order of memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of no class that changes what operators do, or the trace's stand-in for such a one."""
    return tensor.layout is torch.strided and (type(tensor) in _PLAIN or is_traced(tensor))


def is_traced(p: torch.Tensor) -> bool:
    """Whether `p` is a fake tensor, which has no memory, because a step is being traced."""
    # The module is not imported here. If nobody has imported it, no tensor is fake.
    kind = getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensor", ())
    return type(p) not in _PLAIN and isinstance(part_of(p), kind)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their range of memory without gaps or overlap."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def laid_out_as(p: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, or a copy with the layout of `p`."""
    if tensor.stride() == p.stride() or (tensor.is_contiguous() and p.is_contiguous()):
        return tensor
    return torch.empty_like(p, dtype=tensor.dtype, memory_format=torch.preserve_format).copy_(tensor)


def layout_of(p: torch.Tensor, values: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of a state of `p` in memory, of this rank's part if it is divided."""
    tensor = values["exp_avg_8bit"] if "exp_avg_8bit" in values else values["exp_avg"]
    if is_shard(p):
        tensor = part_of(tensor)
    return tuple(tensor.shape), tuple(tensor.stride())


def same_place(shape: tuple[int, ...], stride: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether tensors of one shape with these strides have each element at the same place."""
    return all(size == 1 or a == b for size, a, b in zip(shape, stride, other, strict=True))


def _empty_as(p: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_like(p, dtype=dtype, requires_grad=False, memory_format=torch.preserve_format)


# ---- new states ---------------------------------------------------------------------------


def fresh(p: torch.Tensor, amsgrad: bool, state_bits: int, bf16: str | None) -> dict[str, Any]:
    """The state before the first step."""
    part = part_of(p)
    values: dict[str, Any] = {"step": step_tensor(0)}
    for name, is_signed in MOMENTS.items():
        if moments_are_8bit(p, state_bits):
            zero = 127 if is_signed else 0
            values[f"{name}_8bit"] = _empty_as(part, torch.uint8).fill_(zero)
            values[f"{name}_absmax"] = _new_scales(p).zero_()
        else:
            values[name] = _empty_as(part, torch.float32).zero_()
    if amsgrad:
        values["max_exp_avg_sq"] = _empty_as(part, torch.float32).zero_()
    add_precision(values, part, bf16)
    return as_held(p, values)


def moments_are_8bit(p: torch.Tensor, state_bits: int) -> bool:
    """Whether the moments of a parameter have 8 bits: if it is divided, the same on all ranks. On a GPU none have."""
    return is_on_host(p) and _core.adamw_moments_bits(largest_part_elements(p), state_bits) == 8


def add_precision(values: dict[str, Any], p: torch.Tensor, bf16: str | None) -> None:
    """Adds the tensor that keeps the other bits of a bf16 parameter."""
    if p.dtype is not torch.bfloat16 or extra_of(bf16) in values:
        return
    if extra_of(bf16) == "master":
        values["master"] = _empty_as(p, torch.float32).copy_(p)
    else:
        values["low"] = _empty_as(p, torch.int16).zero_()


def extra_of(bf16: str | None) -> str:
    """The name of the array with the bits that bf16 cannot hold."""
    return "master" if bf16 == "master" else "low"


def parts_of(p: torch.Tensor, values: dict[str, Any]) -> dict[str, Any]:
    """A state of `p` with this rank's part of each tensor that this module knows."""
    if not is_shard(p):
        return values
    return {name: part_of(value) if name in KNOWN else value for name, value in values.items()}


def as_held(p: torch.Tensor, values: dict[str, Any]) -> dict[str, Any]:
    """A state as an optimizer holds it, of one with this rank's parts. Without copies."""
    if not is_shard(p):
        return values
    held = {name: value if is_shard(value) else _as_held(p, name, value) for name, value in values.items()}
    return {**held, DIVISION: _division(p)} if "exp_avg_absmax" in values else held


def _division(p: torch.Tensor) -> torch.Tensor:
    """The division of a parameter, which tells apart blocks of 8-bit moments that hold other elements."""
    return torch.tensor(divisions_of(p), dtype=torch.int64, device="cpu").flatten()


def _as_held(p: torch.Tensor, name: str, part: Any) -> Any:
    if name not in KNOWN or name in ("step", DIVISION):
        return part
    if not name.endswith("_absmax"):
        return divided_as(part, p)
    missing = _scales_count(p) - part.numel()  # disks hold the scales of this rank's blocks alone
    return divided_evenly(torch.nn.functional.pad(part, (0, missing)) if missing > 0 else part, p)


def addresses(p: torch.Tensor, gradient: torch.Tensor, values: dict[str, Any]) -> tuple[int, ...]:
    """One parameter's tuple for `_core.adamw_step`, of this rank's parts. The caller must keep the tensors alive."""

    def address(name: str) -> int:
        tensor = values.get(name)
        return 0 if tensor is None else tensor.data_ptr()

    is_8bit = "exp_avg_8bit" in values
    weights = FP32
    if p.dtype is torch.bfloat16:
        weights = BF16_MASTER if "master" in values else BF16_SPLIT
    return (
        weights,
        int(is_8bit),
        p.numel(),
        int(values["step"]) + 1,
        p.data_ptr(),
        gradient.data_ptr(),
        address("master") or address("low"),
        address("exp_avg_8bit" if is_8bit else "exp_avg"),
        address("exp_avg_sq_8bit" if is_8bit else "exp_avg_sq"),
        address("max_exp_avg_sq"),
        address("exp_avg_absmax"),
        address("exp_avg_sq_absmax"),
    )


# ---- loaded states --------------------------------------------------------------------------


def check_dict(state_dict: dict[str, Any], groups: list[dict[str, Any]]) -> None:
    """Refuses states of other optimizers and of other shapes, with errors that name the parameter."""
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
        raise IntegrationError("AdamW: this is not the state_dict() of an optimizer, with 'state' and 'param_groups'")
    ids = [index for group in state_dict["param_groups"] for index in group.get("params", ())]
    params = [p for group in groups for p in group["params"]]
    for index, p in zip(ids, params, strict=False):
        values = state_dict["state"].get(index)
        if not values:
            continue
        has_moments = {"exp_avg", "exp_avg_sq"} <= values.keys() or values.keys() >= QUANTIZED
        if "step" not in values or not has_moments:
            raise IntegrationError(
                f"AdamW: the state of parameter {index} holds {sorted(values)}, which is not a state "
                "of AdamW; load it into the optimizer that wrote it"
            )
        _check_shapes(index, p, values)
    for number, group in enumerate(state_dict["param_groups"]):
        missing = [name for name in ("params", "lr", "betas", "eps", "weight_decay") if name not in group]
        if missing:
            raise IntegrationError(
                f"AdamW: group {number} of the state has no {', '.join(missing)}, so it is not a state of AdamW; "
                "load it into the optimizer that wrote it"
            )


def _check_shapes(index: Any, p: torch.Tensor, values: dict[str, Any]) -> None:
    _check_division(index, p, values)
    for name, value in values.items():
        if name in ("step", DIVISION) or name not in KNOWN:
            continue
        is_scales = name.endswith("_absmax")
        expected = (parts_count(p) * _scales_count(p),) if is_scales else tuple(p.shape)
        if tuple(value.shape) != expected:
            raise IntegrationError(
                f"AdamW: {name} of parameter {index} has shape {tuple(value.shape)}, the parameter "
                f"needs {expected}; the state was saved for another model"
            )
        if is_shard(value) != is_shard(p) or not (is_scales or _is_divided_alike(p, value)):
            raise IntegrationError(
                f"AdamW: {name} of parameter {index} is not divided among ranks as the parameter is; load the state "
                "with torch.distributed.checkpoint.state_dict.set_optimizer_state_dict()"
            )


def _check_division(index: Any, p: torch.Tensor, values: dict[str, Any]) -> None:
    if "exp_avg_absmax" not in values:
        return
    found = values.get(DIVISION)
    if ([] if found is None else found.tolist()) != _division(p).tolist():
        raise IntegrationError(
            f"AdamW: the 8-bit state of parameter {index} was made for another division among ranks, and its blocks "
            "hold other elements; save what torch_state_dict() returns, whose moments are fp32"
        )


def _is_divided_alike(p: Any, value: Any) -> bool:
    return not is_shard(p) or (value.placements == p.placements and value.device_mesh == p.device_mesh)


def adapt(
    p: torch.Tensor,
    given: dict[str, Any],
    group: dict[str, Any],
    state_bits: int,
    bf16: str | None,
    is_torchs: bool,
    copies: bool = True,
) -> dict[str, Any]:
    """A loaded state in this optimizer's form, with this rank's parts. With `is_torchs` it has the form of
    `torch.optim.AdamW`, and is not divided further. `given` is not changed.

    Without `copies`, tensors of `given` that already have that form are used as they are.
    """
    if not given:
        return {}
    if is_torchs:
        full = full_precision(given)
        return {name: _as_torch(p, name, value, group) for name, value in full.items() if name not in EXTRAS}
    part, given = part_of(p), parts_of(p, given)

    def held(dtype: torch.dtype, value: torch.Tensor) -> torch.Tensor:
        fits = value.dtype is dtype and value.device == part.device and value.stride() == part.stride()
        return value if fits and not copies else _empty_as(part, dtype).copy_(value)

    full = full_precision(given)
    values: dict[str, Any] = {"step": step_tensor(full["step"])}
    is_8bit = moments_are_8bit(p, state_bits)
    for name, is_signed in MOMENTS.items():
        if is_8bit and f"{name}_8bit" in given and given[f"{name}_8bit"].stride() == part.stride():
            values[f"{name}_8bit"] = held(torch.uint8, given[f"{name}_8bit"])
            values[f"{name}_absmax"] = _scales(given, name).clone()
        else:
            moment = held(torch.float32, full[name])
            values.update(_quantized(name, moment, _new_scales(p), is_signed) if is_8bit else {name: moment})
    if group["amsgrad"]:
        peak = full.get("max_exp_avg_sq", full["exp_avg_sq"])
        values["max_exp_avg_sq"] = held(torch.float32, peak)
    _adapt_precision(values, part, full, bf16)
    for name, value in full.items():
        if name not in KNOWN:
            values[name] = value
    return values


def _adapt_precision(values: dict[str, Any], p: torch.Tensor, full: dict[str, Any], bf16: str | None) -> None:
    if p.dtype is torch.bfloat16:
        name = extra_of(bf16)
        if name in full:
            values[name] = _empty_as(p, full[name].dtype).copy_(full[name])
        add_precision(values, p, bf16)


def step_tensor(step: Any) -> torch.Tensor:
    """The count of updates as torch's optimizers hold it, with at least 32 bits under any default dtype."""
    wide = torch.get_default_dtype() is torch.float64
    return torch.tensor(float(step), dtype=torch.float64 if wide else torch.float32, device="cpu")


def _as_torch(p: torch.Tensor, name: str, value: Any, group: dict[str, Any]) -> Any:
    """A value of a loaded state, in the form in which `torch.optim.AdamW` would have loaded it."""
    if name == "step":
        on_device = group["capturable"] or group["fused"]
        return step_tensor(value).to(p.device if on_device else "cpu")
    if not torch.is_tensor(value):
        return value
    return value.detach().to(device=p.device, dtype=p.dtype if p.is_floating_point() else None, copy=True)


# ---- 8 bits -----------------------------------------------------------------------------------


def _scales_count(p: torch.Tensor) -> int:
    """The scales of the largest part that a rank has of a parameter."""
    return -(-largest_part_elements(p) // BLOCK)


def _new_scales(p: torch.Tensor) -> torch.Tensor:
    """Memory for the scales of 8-bit blocks, in fp32 on the host under any defaults of torch's."""
    return torch.empty(_scales_count(p), dtype=torch.float32, device="cpu")


def _quantized(name: str, moment: torch.Tensor, absmax: torch.Tensor, is_signed: bool) -> dict[str, torch.Tensor]:
    codes = _empty_as(moment, torch.uint8)
    _core.adamw_quantize(moment.data_ptr(), codes.data_ptr(), absmax.data_ptr(), moment.numel(), is_signed)
    return {f"{name}_8bit": codes, f"{name}_absmax": absmax}


def _scales(values: dict[str, Any], name: str) -> torch.Tensor:
    """The scales of a moment's blocks, converted to the device and dtype that C reads."""
    absmax = part_of(values[f"{name}_absmax"])
    return absmax.detach().to("cpu", torch.float32).contiguous()


def _dequantized(values: dict[str, Any], name: str, is_signed: bool) -> torch.Tensor:
    # Blocks follow the order in memory, so the codes must keep the layout in which they were written.
    held = values[f"{name}_8bit"]
    codes = part_of(held).to("cpu", torch.uint8)
    absmax = _scales(values, name)
    moment = _empty_as(codes, torch.float32)
    _core.adamw_dequantize(moment.data_ptr(), codes.data_ptr(), absmax.data_ptr(), codes.numel(), is_signed)
    return divided_as(moment, held)


def full_precision(values: dict[str, Any]) -> dict[str, Any]:
    """A state with fp32 moments, or `values` itself if it has them already."""
    if "exp_avg_8bit" not in values:
        return values
    full = {name: value for name, value in values.items() if name not in QUANTIZED and name != DIVISION}
    for name, is_signed in MOMENTS.items():
        full[name] = _dequantized(values, name, is_signed)
    return full
