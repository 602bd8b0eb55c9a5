"""`use_mixed_precision` on a GPU without BF16: forwards run under autocast to FP16, and memscale scales the loss by
the rule of torch's GradScaler. The bits equal those of a loop with a GradScaler."""

from __future__ import annotations

import gc
import json
import logging
import math

import pytest

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import memscale  # noqa: E402
from memscale import _core  # noqa: E402
from memscale.session import session as sessions  # noqa: E402

STEPS = 6
BACKWARD = torch.autograd.backward


@pytest.fixture(autouse=True)
def old_gpu(monkeypatch):
    """Makes C choose the precision for a GPU without BF16. The model stays on the CPU, whose autocast supports FP16
    too."""
    decide = sessions._core.plan_precision

    def for_the_gpu(plain, half, hardware, is_fp16):
        gpu = {"name": "old", "total_bytes": 10**10, "free_bytes": 10**10, "compute_major": 7, "compute_minor": 5}
        gpu |= {"copy_engines": 1, "matmul_flops_per_s": 10**12, "stream_bytes_per_s": 10**11}
        gpu |= {"to_host_bytes_per_s": 10**10, "from_host_bytes_per_s": 10**10}
        described = json.loads(hardware) | {"device": 0, "gpus": [gpu]}
        dtype, line, _ = decide(plain, half, json.dumps(described), is_fp16)
        return dtype, line, hardware

    monkeypatch.setattr(sessions._core, "plan_precision", for_the_gpu)


class Net(torch.nn.Module):
    def __init__(self, reentrant=False):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(16, 16) for _ in range(3)])
        self.reentrant = reentrant

    def forward(self, x):
        for layer in self.layers:
            if self.reentrant:
                x = checkpoint(lambda h, layer=layer: layer(h).tanh(), x, use_reentrant=True)
            else:
                x = layer(x).tanh()
        return x.float()


def make(**fields):
    torch.manual_seed(0)
    return Net(**fields)


def batches(count=STEPS):
    torch.manual_seed(1)
    return [torch.randn(8, 16, requires_grad=True) for _ in range(count)]


class Loop:
    """A user's training loop; `scales` adds a GradScaler, for models that memscale doesn't scale."""

    def __init__(self, model, optimizer, scales=False, clips=False, micro=1, loss_of=None):
        self.model, self.optimizer, self.clips, self.micro = model, optimizer, clips, micro
        self.scaler = torch.amp.GradScaler("cpu") if scales else None
        self.loss_of = loss_of or (lambda model, out: out.pow(2).mean() * 1e-7)
        self.gradients = []

    def step(self, batch):
        for _ in range(self.micro):
            with torch.autocast("cpu", torch.float16, enabled=self.scaler is not None):
                out = self.model(batch)
            loss = self.loss_of(self.model, out)
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        self.gradients.append([None if p.grad is None else p.grad.clone() for p in self.model.parameters()])
        if self.clips:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1e-7)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()

    def run(self, count=STEPS):
        return [self.step(batch) for batch in batches(count)]


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def wrapped(model, **fields):
    return memscale.wrap(model, memscale.Config(use_mixed_precision=True, enable_logging=False, **fields))


def assert_same(expected, found):
    for one, other in zip(expected, found, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


def assert_same_runs(make_optimizer=adamw, count=STEPS, fields=None, config=None, **options):
    """Asserts that an unwrapped run with a GradScaler and a wrapped run without one agree in losses, in the gradients
    that the loop sees, and in parameters."""
    fields, config = fields or {}, config or {}
    reference = make(**fields)
    theirs = Loop(reference, make_optimizer(reference), scales=True, **options)
    model = make(**fields)
    ours = Loop(wrapped(model, **config), make_optimizer(model), **options)
    assert_same(theirs.run(count), ours.run(count))
    for expected, found in zip(theirs.gradients, ours.gradients, strict=True):
        finite = all(g is None or g.isfinite().all() for g in expected)
        if finite:
            assert_same(expected, found)
        else:
            assert not all(g.isfinite().all() for g in found)
    assert_same(list(reference.parameters()), list(model.parameters()))
    memscale.detach(model)
    assert torch.autograd.backward is BACKWARD
    return theirs


def test_small_gradients_are_kept_with_the_bits_of_a_grad_scaler():
    theirs = assert_same_runs()
    # Without scaling the gradients are zero.
    model = make()
    with torch.autocast("cpu", torch.float16):
        out = model(batches(1)[0])
    (out.pow(2).mean() * 1e-7).backward()
    assert not model.layers[0].weight.grad.any() and theirs.gradients[0][0].any()


def test_a_step_that_overflows_is_left_out():
    theirs = assert_same_runs(count=20, loss_of=lambda model, out: out.pow(2).mean() * 1e4)
    seen = [all(g.isfinite().all() for g in step) for step in theirs.gradients]
    assert not seen[0] and seen[-1]


def test_the_log_says_what_happens_to_the_scale(caplog):
    model = make()
    optimizer = adamw(model)
    with caplog.at_level(logging.INFO, logger="memscale"):
        memscale.wrap(model, memscale.Config(use_mixed_precision=True))
        Loop(model, optimizer, loss_of=lambda model, out: out.pow(2).mean() * 1e4).run(3)
        memscale.detach(model)
    lines = [record.message for record in caplog.records if "use_mixed_precision" in record.message]
    assert "FP16, because this GPU does not compute BF16" in lines[0]
    assert "overflowed in FP16, the step was skipped; the loss is scaled by 32768" in lines[1]


def test_gradients_that_no_scale_makes_finite_are_named_once(caplog):
    model = make()
    optimizer = adamw(model)
    before = [p.clone() for p in model.parameters()]
    with caplog.at_level(logging.WARNING, logger="memscale"):
        wrapped(model)
        Loop(model, optimizer, loss_of=lambda model, out: out.pow(2).mean() * float("inf")).run(25)
        memscale.detach(model)
    assert caplog.text.count("are not finite although the loss is not scaled any more") == 1
    assert_same(before, list(model.parameters()))


def test_clipping_sees_gradients_of_the_usual_size():
    assert_same_runs(clips=True)


def test_gradients_accumulate():
    assert_same_runs(micro=3)


def test_a_penalty_on_parameters_outside_the_model_counts_as_written():
    assert_same_runs(
        loss_of=lambda model, out: out.pow(2).mean() * 1e-7 + 0.01 * sum(p.pow(2).sum() for p in model.parameters())
    )


def test_inside_reentrant_checkpointing():
    assert_same_runs(fields={"reentrant": True})


@pytest.mark.parametrize("config", [{"force_optimize": True}, {"verify_correctness": True}], ids=str)
def test_under_a_plan(config):
    assert_same_runs(config=config)


def test_with_gradients_that_may_be_released():
    """Gradients stay until step(), which skips them if one of them overflowed."""

    def releasing(model):
        return memscale.optim.AdamW(model.parameters(), lr=0.01, release_gradients=True)

    assert_same_runs(make_optimizer=releasing, count=10, loss_of=lambda model, out: out.pow(2).mean() * 1e4)


def test_what_leads_into_the_model_gets_gradients_of_the_usual_size():
    model, leaf = make(), torch.randn(16, requires_grad=True)
    wrapped(model)
    batch = batches(1)[0]
    with torch.autocast("cpu", torch.float16):
        (make()(batch * leaf).pow(2).mean() * 2.0**16).backward()
    expected, leaf.grad, batch.grad = [leaf.grad, batch.grad], None, None
    model(batch * leaf).pow(2).mean().backward()
    assert all(torch.equal(a, b * 2.0**16) for a, b in zip(expected, (leaf.grad, batch.grad), strict=True))
    memscale.detach(model)


def test_hooks_on_parameters_see_gradients_of_the_usual_size():
    seen = []
    model = make()
    model.layers[0].weight.register_hook(seen.append)
    wrapped(model)
    model(batches(1)[0]).pow(2).mean().backward()
    assert torch.equal(seen[0], model.layers[0].weight.grad)
    memscale.detach(model)


class _Remembers(torch.autograd.Function):
    """A user's function whose context has an attribute that otherwise only a leaf's node has."""

    @staticmethod
    def forward(ctx, x):
        ctx.variable = "x"
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_notes_of_custom_functions_are_no_leaves():
    assert_same_runs(loss_of=lambda model, out: _Remembers.apply(out).pow(2).mean() * 1e-7)


def test_a_closure_is_checked_after_its_backward():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.clone() for p in model.parameters()]
    wrapped(model)

    def closure():
        optimizer.zero_grad()
        loss = model(batches(1)[0]).pow(2).mean() * 1e4
        loss.backward()
        return loss

    for given in ((closure,), ()):
        optimizer.step(*given, **({} if given else {"closure": closure}))
        assert_same(before, list(model.parameters()))
    memscale.detach(model)


def test_a_loop_with_a_grad_scaler_is_left_to_it():
    model, reference = make(), make()
    theirs = Loop(reference, adamw(reference), scales=True)
    optimizer = adamw(model)
    wrapped(model)
    ours = Loop(model, optimizer)
    ours.scaler = torch.amp.GradScaler("cpu")
    ours_losses = []
    for batch in batches():
        loss = model(batch).pow(2).mean() * 1e-7  # memscale chooses the precision
        ours.scaler.scale(loss).backward()
        ours.scaler.step(optimizer)
        ours.scaler.update()
        optimizer.zero_grad()
        ours_losses.append(loss.detach())
    assert_same(theirs.run(), ours_losses)
    assert_same(list(reference.parameters()), list(model.parameters()))
    memscale.detach(model)


def test_backward_is_torchs_own_where_the_loop_chose_its_precision():
    model = make()
    wrapped(model)
    with torch.autocast("cpu", torch.bfloat16):
        model(batches(1)[0])
    assert torch.autograd.backward is BACKWARD
    memscale.detach(model)


def test_models_that_are_not_wrapped_are_left_alone():
    model, other, alone = make(), make(), make()
    wrapped(model)
    model(batches(1)[0]).mean().backward()
    alone(batches(1)[0]).pow(2).mean().backward()
    scale_seen = []
    out = other(batches(1)[0])
    out.register_hook(scale_seen.append)
    out.pow(2).mean().backward()
    assert_same([p.grad for p in alone.parameters()], [p.grad for p in other.parameters()])
    assert scale_seen[0].abs().max() < 1
    memscale.detach(model)


def test_gradients_of_models_that_are_not_wrapped_are_not_checked():
    model, alone = make(), make()
    wrapped(model)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    model(batches(1)[0]).mean().backward()
    (alone(batches(1)[0]).mean() * math.inf).backward()
    optimizer.step()
    assert all(p.grad is not None for p in alone.parameters())
    assert not all(p.isfinite().all() for p in alone.parameters())  # the same as without memscale
    memscale.detach(model)


def test_two_models_share_the_scale():
    first, second = make(), make()
    references = make(), make()
    for model in (first, second):
        wrapped(model)
    batch = batches(1)[0]
    second(first(batch)).pow(2).mean().mul(1e-7).backward()
    with torch.autocast("cpu", torch.float16):
        out = references[1](references[0](batch))
    (out.pow(2).mean() * 1e-7 * 2.0**16).backward()
    for model, reference in zip((first, second), references, strict=True):
        assert_same([q.grad for q in reference.parameters()], [p.grad * 2.0**16 for p in model.parameters()])
        memscale.detach(model)


def test_a_model_that_dies_wrapped_leaves_nothing():
    model = make()
    wrapped(model)
    model(batches(1)[0]).mean().backward()
    assert torch.autograd.backward is not BACKWARD
    del model
    gc.collect()
    assert torch.autograd.backward is BACKWARD


def test_parameters_in_fp16_are_refused_by_name(caplog):
    model = make().half()
    with caplog.at_level(logging.INFO, logger="memscale"):
        memscale.wrap(model, memscale.Config(use_mixed_precision=True))
        model(batches(1)[0].half()).sum().backward()
        memscale.detach(model)
    assert "call model.float() first" in caplog.text


def test_the_scale_is_a_power_of_two():
    scale, steps = _core.loss_scale_default()
    assert (scale, steps) == (65536.0, 0)
    assert _core.loss_scale_update(scale, steps, False) == (32768.0, 0)
    assert _core.loss_scale_update(scale, 1999, True) == (131072.0, 0)


def test_the_chunked_heads_gradients_are_divided_where_they_are_scaled():
    torch.manual_seed(0)
    rows, classes = 512, 1000
    hidden, weight = torch.randn(rows, 32, requires_grad=True), torch.randn(classes, 32, requires_grad=True)
    labels = torch.randint(0, classes, (rows,))
    torch.nn.functional.cross_entropy(hidden @ weight.t(), labels).backward()
    expected = [hidden.grad, weight.grad]
    hidden.grad = weight.grad = None
    with torch.autocast("cpu", torch.float16):
        loss = memscale.techniques.linear_cross_entropy(hidden, weight, labels)
    (loss * 65536).backward()
    for one, found in zip(expected, (hidden.grad, weight.grad), strict=True):
        assert (found / 65536 - one).norm() < 1e-2 * one.norm()
