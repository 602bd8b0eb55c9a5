"""`use_mixed_precision`: forwards run under autocast to BF16 if the machine gains by it. The bits are those of torch's
own autocast, and nothing of it is left afterwards."""

from __future__ import annotations

import json
import logging
import sys

import pytest

torch = pytest.importorskip("torch")

import memscale  # noqa: E402
from memscale.session import session as sessions  # noqa: E402

CONFIG = memscale.Config(use_mixed_precision=True, enable_logging=False)


@pytest.fixture
def machine(monkeypatch):
    """Returns a function that makes memscale see a machine with or without BF16, and with slow matrix products."""

    def describe(isa=("avx2", "avx512f", "avx512_bf16", "amx_bf16"), flops=10**9):
        document = json.loads(sessions._core.hardware_probe(None, no_measure=True))
        document["cpu"]["isa"] = list(isa)
        document["cpu"]["matmul_flops_per_s"] = flops
        monkeypatch.setattr(sessions, "probe_machine", lambda config, device=None: json.dumps(document))

    describe()
    return describe


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(32, 64)
        layer = torch.nn.TransformerEncoderLayer(64, 2, 128, dropout=0.1, batch_first=True)
        self.blocks = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = torch.nn.Linear(64, 16)
        self.seen = []
        self.raises = None

    def forward(self, x, labels):
        self.seen.append(torch.is_autocast_enabled("cpu"))
        logits = self.head(self.blocks(self.embed(x)))
        if self.raises is not None:
            raise self.raises
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def make():
    torch.manual_seed(0)
    return Net(), {"x": torch.randn(4, 8, 32), "labels": torch.randint(0, 16, (4, 8))}


def step(model, batch, autocast=False):
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model(**batch)
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    return loss.detach(), found


def assert_equal(expected, seen):
    assert torch.equal(expected[0], seen[0]) and expected[1].keys() == seen[1].keys()
    assert all(torch.equal(value, seen[1][name]) for name, value in expected[1].items())


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("forced", [False, True])
def test_forwards_have_the_bits_of_torchs_autocast_until_detach(machine, at_once, forced):
    model, batch = make()
    plain, half = step(model, batch), step(model, batch, autocast=True)
    assert not torch.equal(plain[0], half[0])
    config = memscale.Config(use_mixed_precision=True, enable_logging=False, force_optimize=forced)
    memscale.wrap(model, config, sample_input=batch if at_once else None)
    assert not torch.is_autocast_enabled("cpu")
    for _ in range(2):
        assert_equal(half, step(model, batch))
        assert model.seen[-1] and not torch.is_autocast_enabled("cpu")
    assert "autocast=cpu:bfloat16" in str(model._memscale_executor.plan)
    assert {p.dtype for p in model.parameters()} == {g.dtype for g in half[1].values()} == {torch.float32}
    memscale.detach(model)
    assert_equal(plain, step(model, batch))
    assert not model.seen[-1]


def test_verify_correctness_compares_under_autocast(machine):
    model, batch = make()
    half = step(model, batch, autocast=True)
    config = memscale.Config(
        use_mixed_precision=True, enable_logging=False, force_optimize=True, verify_correctness=True
    )
    memscale.wrap(model, config)
    assert_equal(half, step(model, batch))
    memscale.detach(model)


@pytest.mark.parametrize(
    ("isa", "flops", "words"),
    [(("avx2", "avx512f"), 10**9, "no instructions for BF16"), (("avx512_bf16",), 10**15, "not used: under autocast")],
)
def test_where_nothing_is_gained_the_log_says_so_and_no_bit_changes(machine, caplog, isa, flops, words):
    machine(isa, flops)
    model, batch = make()
    plain = step(model, batch)
    with caplog.at_level(logging.INFO, logger="memscale"):
        memscale.wrap(model, memscale.Config(use_mixed_precision=True))
        assert_equal(plain, step(model, batch))
        assert_equal(plain, step(model, batch))
    lines = [record.message for record in caplog.records if "use_mixed_precision" in record.message]
    assert len(lines) == 1 and words in lines[0]
    memscale.detach(model)


def test_without_the_flag_nothing_runs_under_autocast(machine):
    model, batch = make()
    memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False))
    step(model, batch)
    memscale.detach(model)
    assert not any(model.seen)


def test_evaluation_and_the_callers_own_autocast_are_left_alone(machine, caplog):
    model, batch = make()
    memscale.wrap(model, CONFIG)
    with torch.no_grad():
        model(**batch)
    assert model.seen == [False]
    with caplog.at_level(logging.INFO, logger="memscale"), torch.autocast("cpu", torch.float16):
        model(**batch)
        assert torch.get_autocast_dtype("cpu") is torch.float16
    assert "your own autocast" in caplog.text
    memscale.detach(model)


def test_a_forward_that_fails_leaves_no_autocast(machine):
    model, batch = make()
    memscale.wrap(model, CONFIG)
    model(**batch)
    model.raises = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        model(**batch)
    assert model.seen[-1] and not torch.is_autocast_enabled("cpu")

    # torch doesn't run hooks with always_call after a KeyboardInterrupt.
    def evaluate():
        with torch.no_grad():
            model(**batch)
        assert not model.seen[-1]

    def interrupt():
        model.raises = KeyboardInterrupt()
        caught = []
        try:
            model(**batch)
        except KeyboardInterrupt as error:  # pytest.raises() would hold the frames in a circle
            caught.append(error.with_traceback(error.__traceback__.tb_next))  # without this frame
        model.raises = None
        assert torch.is_autocast_enabled("cpu")  # the error holds the forward's frames
        return caught.pop()

    interrupt()
    if sys.gettrace() is None:  # coverage's tracer holds the frames longer than the error
        assert not torch.is_autocast_enabled("cpu")
    for way_out in (lambda: model(**batch), evaluate, lambda: memscale.detach(model)):
        error = interrupt()
        way_out()
        assert not torch.is_autocast_enabled("cpu")
        del error


def test_a_budget_that_nothing_fits_leaves_no_autocast(machine):
    model, batch = make()
    memscale.wrap(model, memscale.Config(use_mixed_precision=True, memory_budget_gb=0.001, enable_logging=False))
    with pytest.raises(memscale.BudgetInfeasibleError):
        model(**batch)
    assert not torch.is_autocast_enabled("cpu")
    memscale.detach(model)


def test_a_plan_without_wrapping_is_of_the_chosen_precision(machine):
    model, batch = make()
    assert "autocast=cpu:bfloat16" in str(memscale.plan(model, batch, CONFIG))
    machine(isa=())
    assert "autocast" not in str(memscale.plan(model, batch, CONFIG))
