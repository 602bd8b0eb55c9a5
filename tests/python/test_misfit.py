"""`wrap()` refuses an input whose types or sizes don't fit the model, whatever torch's message says. It accepts inputs
that fit, and models that can't be traced."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import memscale
from memscale.tracing.operand_types import OperandTypes

long, double = torch.int64, torch.float64


class Head(nn.Module):
    """A layer, followed by a function of its result and further inputs."""

    def __init__(self, then) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.then = then

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return self.then(self.layer(x), *more)


class Before(nn.Module):
    """A function of the input, followed by a layer."""

    def __init__(self, first, layer: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.first(x))


def _ids(*size: int, dtype: torch.dtype = long) -> torch.Tensor:
    return torch.zeros(*size, dtype=dtype)


def _x(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(*size).to(dtype)


REFUSED = {
    "float ids": (lambda: Before(nn.Embedding(9, 8), nn.Linear(8, 4)), (_x(4, 3),)),
    "bool ids of a frozen table": (
        lambda: Before(nn.Embedding(9, 8).requires_grad_(False), nn.Linear(8, 4)),
        (_ids(4, 3, dtype=torch.bool),),
    ),
    "float ids of a bag": (lambda: nn.EmbeddingBag(9, 4), (_x(4, 3),)),
    "int32 labels": (lambda: Head(F.cross_entropy), (_x(4, 8), _ids(4, dtype=torch.int32))),
    "float labels": (lambda: Head(F.cross_entropy), (_x(4, 8), _x(4))),
    "double image": (lambda: nn.Conv2d(3, 4, 3), (_x(1, 3, 8, 8, dtype=double),)),
    "integer image": (lambda: nn.Conv2d(3, 4, 3), (_ids(1, 3, 8, 8),)),
    "double image, made smaller first": (
        lambda: Before(lambda x: (x - 0.5) / 4, nn.Conv2d(3, 4, 3)),
        (_x(1, 3, 8, 8, dtype=double),),
    ),
    "float rows to select": (lambda: Head(lambda y, i: y.index_select(0, i)), (_x(4, 8), _x(3))),
    "float places to gather": (lambda: Head(lambda y, i: y.gather(1, i)), (_x(4, 8), _x(4, 1))),
    "float mask": (lambda: Head(lambda y, m: y.masked_fill(m, 0.0)), (_x(4, 8), _x(4, 8))),
    "integer mask": (lambda: Head(lambda y, m: y.masked_fill(m, 0.0)), (_x(4, 8), _ids(4, 8))),
    "softmax of integers": (lambda: Before(lambda x: x.softmax(-1), nn.Linear(8, 4)), (_ids(4, 8),)),
    "double rows": (lambda: nn.Linear(8, 4), (_x(4, 8, dtype=double),)),
    "integer rows": (lambda: nn.Linear(8, 4), (_ids(4, 8),)),
    "float rows of a half model": (lambda: nn.Linear(8, 4).bfloat16(), (_x(4, 8),)),
    "integers to a layer norm": (lambda: nn.LayerNorm(8), (_ids(4, 8),)),
    "doubles to a layer norm": (lambda: nn.LayerNorm(8), (_x(4, 8, dtype=double),)),
    "integers to a batch norm": (lambda: nn.BatchNorm1d(8), (_ids(4, 8),)),
    "doubles to a group norm": (lambda: nn.GroupNorm(2, 8), (_x(4, 8, 3, dtype=double),)),
    "doubles to an LSTM": (lambda: nn.LSTM(8, 4), (_x(3, 2, 8, dtype=double),)),
    "integers to a GRU": (lambda: nn.GRU(8, 4), (_ids(3, 2, 8),)),
    "doubles to an encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16), (_x(3, 2, 8, dtype=double),)),
    "too few features": (lambda: nn.Linear(8, 4), (_x(4, 7),)),
    "features of a bilinear": (lambda: nn.Bilinear(3, 4, 5), (_x(2, 3), _x(2, 3))),
    "channels of a convolution": (lambda: nn.Conv2d(3, 4, 3), (_x(1, 4, 8, 8),)),
    "channels in one dimension": (lambda: nn.Conv1d(3, 4, 3), (_x(1, 4, 8),)),
    "channels upwards": (lambda: nn.ConvTranspose2d(3, 4, 3), (_x(1, 4, 8, 8),)),
    "an image smaller than its kernel": (lambda: nn.Conv2d(3, 4, 5), (_x(1, 3, 4, 4),)),
    "a flat image": (lambda: nn.Conv2d(3, 4, 3), (_x(8, 8),)),
    "a flat image to a batch norm": (lambda: nn.BatchNorm2d(3), (_x(4, 3),)),
    "channels of a batch norm": (lambda: nn.BatchNorm2d(3), (_x(2, 4, 5, 5),)),
    "channels of a group norm": (lambda: nn.GroupNorm(2, 8), (_x(2, 6, 5),)),
    "width of a layer norm": (lambda: nn.LayerNorm(16), (_x(4, 8),)),
    "features of an LSTM": (lambda: nn.LSTM(8, 4), (_x(3, 2, 7),)),
    "features of an encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16), (_x(3, 2, 6),)),
    "labels of another batch": (lambda: Head(F.cross_entropy), (_x(4, 8), _ids(3))),
    "a target that does not go along": (
        lambda: Head(lambda y, t: F.binary_cross_entropy_with_logits(y, t)),
        (_x(4, 8), _x(4, 7)),
    ),
    "sums of other sizes": (lambda: Head(lambda y, z: y + z), (_x(4, 8), _x(4, 7))),
    "products of other sizes": (lambda: Head(lambda y, z: y @ z), (_x(4, 8), _x(7, 3))),
    "batches of products": (lambda: Head(lambda y, z: torch.bmm(y, z)), (_x(2, 4, 8), _x(3, 8, 2))),
    "what is put together": (lambda: Head(lambda y, z: torch.cat([y, z], 0)), (_x(4, 8), _x(4, 7))),
    "what is stacked": (lambda: Head(lambda y, z: torch.stack([y, z])), (_x(4, 8), _x(4, 7))),
    "heads that do not divide": (lambda: Before(lambda x: x.view(2, 3, -1), nn.Linear(8, 4)), (_x(5, 8),)),
    "one dimension too few": (lambda: Before(lambda x: x.transpose(1, 2), nn.Linear(8, 4)), (_x(4, 8),)),
    "expanded": (lambda: Head(lambda y, z: y + z.expand(4, 8)), (_x(4, 8), _x(3, 8))),
}

TAKEN = {
    "ids": (lambda: Before(nn.Embedding(9, 8), nn.Linear(8, 4)), (_ids(4, 3),)),
    "int32 ids": (lambda: Before(nn.Embedding(9, 8), nn.Linear(8, 4)), (_ids(4, 3, dtype=torch.int32),)),
    "an image in groups": (lambda: nn.Conv2d(4, 4, 3, groups=2), (_x(1, 4, 8, 8),)),
    "a uint8 image, scaled": (
        lambda: Before(lambda x: (x - 0.5) / 4, nn.Conv2d(3, 4, 3)),
        (_ids(1, 3, 8, 8, dtype=torch.uint8),),
    ),
    "labels": (lambda: Head(F.cross_entropy), (_x(4, 8), _ids(4))),
    "soft labels": (lambda: Head(F.cross_entropy), (_x(4, 8), _x(4, 8).softmax(-1))),
    "a mask": (lambda: Head(lambda y, m: y.masked_fill(m, 0.0)), (_x(4, 8), _ids(4, 8, dtype=torch.bool))),
    "an integer divisor": (lambda: Head(lambda y, n: y / n.div(n, rounding_mode="floor")), (_x(4, 8), _ids(8) + 3)),
    "bags with a padding index": (
        lambda: nn.EmbeddingBag(9, 8, padding_idx=6, include_last_offset=True),
        (_ids(7), torch.tensor([0, 3, 7])),
    ),
    "a half model": (lambda: nn.Linear(8, 4).bfloat16(), (_x(4, 8, dtype=torch.bfloat16),)),
    "a double model": (lambda: nn.LSTM(8, 4).double(), (_x(3, 2, 8, dtype=double),)),
}


def _run(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    output = module(*inputs)
    (output[0] if isinstance(output, tuple) else output).float().sum().backward()


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_model_refuses_is_refused_at_once(name: str) -> None:
    make, inputs = REFUSED[name]
    module = make()
    with pytest.raises((RuntimeError, ValueError, IndexError, TypeError, AssertionError)):
        _run(module, inputs)
    with pytest.raises(memscale.ProfileError, match="sample_input does not fit"):
        memscale.wrap(module, sample_input=inputs)
    assert "_memscale_executor" not in module.__dict__


@pytest.mark.parametrize("name", TAKEN)
def test_what_the_model_takes_is_taken(name: str, caplog: pytest.LogCaptureFixture) -> None:
    make, inputs = TAKEN[name]
    module = make()
    _run(module, inputs)
    memscale.wrap(module, sample_input=inputs)
    memscale.detach(module)
    assert "can't be traced" not in caplog.text


def test_the_argument_and_the_type_that_it_should_have_are_named() -> None:
    make, inputs = REFUSED["int32 labels"]
    with pytest.raises(memscale.ProfileError, match=r"is int32, but aten::nll_loss_forward takes int64"):
        memscale.wrap(make(), sample_input=inputs)
    with pytest.raises(memscale.ProfileError, match=r"the input does not fit Linear: input is float64, but"):
        memscale.plan(nn.Linear(8, 4), _x(4, 8, dtype=double))


def test_a_forward_of_the_wrong_type_fails_as_without_wrap_and_is_forgotten() -> None:
    module = memscale.wrap(Before(nn.Embedding(9, 8), nn.Linear(8, 4)))
    with pytest.raises(RuntimeError, match="scalar type"):
        module(_x(4, 3))
    _run(module, (_ids(4, 3),))
    assert module._memscale_executor.plan is not None
    memscale.detach(module)


class _Conditioned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, *, by: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) * by)


def test_a_model_is_traced_although_its_first_forward_lacked_an_argument() -> None:
    module = memscale.wrap(_Conditioned())
    with pytest.raises(TypeError, match="missing 1 required"):
        module(_x(4, 8))
    module(_x(4, 8), by=_x(8)).sum().backward()
    assert "first" in [layer["name"] for layer in json.loads(module._memscale_executor.plan.to_json())["entries"]]
    memscale.detach(module)


def test_a_storage_that_takes_a_freed_inputs_address_is_not_taken_for_it() -> None:
    types = OperandTypes()
    tensor = torch.zeros(3, dtype=torch.int64)
    types.add_input("labels", tensor)
    assert types._is_input(tensor)
    address, storage = tensor.untyped_storage()._cdata, types._names
    other = torch.zeros(3)
    storage[other.untyped_storage()._cdata] = storage.pop(address)  # as if `other` had got the address
    assert types._is_input(other)
    del tensor
    assert not types._is_input(other)
