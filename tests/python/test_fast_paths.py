"""torch's fast paths for encoders, which depend on hooks and modes, are taken as in an unwrapped run."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from execute_support import executing, uniform
from torch.overrides import TorchFunctionMode

import memscale
from memscale.base.modes import FUNCTION, modes_on
from memscale.execution.around import Around
from memscale.techniques.loss_mode import exact_head

MASKS = {
    "none": {},
    "causal": {"mask": torch.nn.Transformer.generate_square_subsequent_mask(24)},
    "padding": {"src_key_padding_mask": torch.arange(24).expand(4, 24) >= torch.tensor([24, 20, 9, 24])[:, None]},
}


def encoder(layers: int = 3) -> torch.nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu")
    return torch.nn.TransformerEncoder(layer, layers)


class Frozen(torch.nn.Module):
    """A frozen encoder in evaluation mode below a body that trains, with its own loss."""

    def __init__(self, masks):
        super().__init__()
        self.encoder = encoder().requires_grad_(False)
        self.attention = torch.nn.MultiheadAttention(64, 4, batch_first=True).requires_grad_(False)
        self.body = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))
        self.head = torch.nn.Linear(64, 50)
        self.masks = masks
        self.seen = []

    def train(self, mode=True):
        super().train(mode)
        self.encoder.eval()
        self.attention.eval()
        return self

    def forward(self, x, labels):
        with torch.no_grad():
            x = self.encoder(x, **self.masks)
            x = self.attention(x, x, x, need_weights=False)[0]
        self.seen.append(x.clone())
        for layer in self.body:
            x = torch.relu(layer(x))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def steps(model: Frozen) -> list[torch.Tensor]:
    model.train()
    model.seen.clear()
    found = []
    for step in range(3):
        torch.manual_seed(step)
        loss = model(torch.randn(4, 24, 64), torch.randint(0, 50, (4, 24)))
        loss.backward()
        found += [loss.detach(), model.head.weight.grad.clone()]
        model.zero_grad()
    return found + model.seen


def assert_equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    assert len(a) == len(b)
    assert [torch.equal(one, other) for one, other in zip(a, b, strict=True)] == [True] * len(a)


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("technique", ["recompute", "selective_4"])
def test_a_frozen_encoder_in_a_model_that_trains(masks, technique, tmp_path):
    model = Frozen(MASKS[masks])
    expected = steps(copy.deepcopy(model))
    with executing(model, uniform(model, technique), tmp_path) as executor:
        executor._modes.loss_head = exact_head  # a function mode that spans the forward
        assert_equal(expected, steps(model))
    assert_equal(expected, steps(model))


@pytest.mark.parametrize("masks", MASKS)
def test_an_evaluation_between_steps(masks, tmp_path):
    model = encoder()
    x = torch.randn(4, 24, 64)
    plain = copy.deepcopy(model).eval()
    with torch.no_grad():
        expected = plain(x, **MASKS[masks])
    with executing(model, uniform(model, "recompute"), tmp_path):
        model.train()(x).sum().backward()
        with torch.no_grad():
            assert torch.equal(model.eval()(x, **MASKS[masks]), expected)


def test_an_encoder_layer_that_is_the_model(tmp_path):
    model = encoder().layers[0]
    x, masks = torch.randn(4, 24, 64), {"src_mask": MASKS["causal"]["mask"]}
    with torch.no_grad():
        expected = copy.deepcopy(model).eval()(x, **masks)
    with executing(model, uniform(model, "recompute"), tmp_path) as executor:
        model.train()(x).sum().backward()
        assert executor.counters()["recomputed_layers"] > 0
        with torch.no_grad():
            assert torch.equal(model.eval()(x, **masks), expected)
    assert "forward" not in model.__dict__


def test_encoder_layers_are_recomputed_to_the_bit(tmp_path):
    model = encoder()
    plain = copy.deepcopy(model)
    x = torch.randn(4, 24, 64)

    def gradients(module):
        torch.manual_seed(1)
        module.train()(x, **MASKS["padding"]).sum().backward()
        return [parameter.grad for parameter in module.parameters()]

    expected = gradients(plain)
    with executing(model, uniform(model, "recompute"), tmp_path) as executor:
        assert_equal(expected, gradients(model))
        assert executor.counters()["recomputed_layers"] == 3


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_have_their_own_forward(duplicate, tmp_path):
    model = encoder()
    with executing(model, uniform(model, "recompute"), tmp_path):
        copied = duplicate(model)
        replica = model.layers[0]._replicate_for_data_parallel()
    assert not any("forward" in part.__dict__ for part in (*copied.modules(), replica))
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
        assert not torch.equal(copied.eval()(torch.ones(2, 24, 64)), model.eval()(torch.ones(2, 24, 64)))


def test_a_forward_of_the_users_own_stays(tmp_path):
    model = encoder()
    calls = []
    inner = model.layers[1].forward
    model.layers[1].forward = lambda *args, **kwargs: calls.append(1) or inner(*args, **kwargs)
    own = model.layers[1].__dict__["forward"]
    with executing(model, uniform(model, "recompute"), tmp_path):
        assert isinstance(model.layers[1].forward, Around)
        model.train()(torch.randn(2, 24, 64)).sum().backward()
        assert len(calls) == 2  # the forward and its replay
    assert model.layers[1].__dict__["forward"] is own


def test_a_replaced_forward_outlives_detach(tmp_path):
    """Other code may have put its own function around ours, and calls ours after `detach()`."""
    model = encoder()
    with executing(model, uniform(model, "recompute"), tmp_path):
        ours = model.layers[0].forward
        model.layers[0].forward = lambda *args, **kwargs: ours(*args, **kwargs)
    x = torch.randn(2, 24, 64)
    del model.layers[1:]
    plain = copy.deepcopy(model)
    del plain.layers[0].__dict__["forward"]
    assert torch.equal(model.eval()(x), plain.eval()(x))


def test_an_error_in_forward_is_the_users(tmp_path):
    model = encoder()
    with executing(model, uniform(model, "recompute"), tmp_path) as executor:
        with pytest.raises(AssertionError, match="embedding dimension"):
            model.train()(torch.randn(2, 24, 63))
        assert executor.stats()["open_frames"] == 0
        model(torch.randn(2, 24, 64)).sum().backward()


def test_modes_of_the_user_stay_on_in_a_fast_path():
    class Counting(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    model = memscale.wrap(Frozen({}), memscale.Config(memory_budget_gb=4.0))
    seen = []
    model.encoder.layers[0].register_forward_pre_hook(lambda *_: seen.append(modes_on(FUNCTION)))
    with Counting() as mode:
        model.train()(torch.randn(4, 24, 64), torch.randint(0, 50, (4, 24))).backward()
    memscale.detach(model)
    assert seen and all(mode in modes for modes in seen)
