"""The loss heads on a GPU: the exact one has torch's bits in one buffer of tokens x vocabulary, the chunked one needs
none, and the host waits for neither."""

from __future__ import annotations

import pytest
import torch
from cuda_support import case_on, peak_of, scheduled, twins_on
from execute_support import assert_same, train
from test_promises import waits
from torch.nn import functional as F

import memscale
from memscale.techniques import cross_entropy, linear_cross_entropy

ROWS, VOCABULARY = 1601, 10_007  # an odd row length: rows begin at every address modulo 16
LOGITS_BYTES = ROWS * VOCABULARY * 4


def logits_of(seed: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    made = torch.randn(ROWS, VOCABULARY, device="cuda", dtype=dtype).requires_grad_()
    labels = torch.randint(0, VOCABULARY, (ROWS,), device="cuda")
    labels[::7] = -100
    return made, labels


def loss_and_gradient(loss_of, seed: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    logits, labels = logits_of(seed, dtype)
    loss = loss_of(logits * 1, labels)
    loss.sum().backward()
    return [loss.detach().cpu(), logits.grad.cpu()]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_cross_entropy_has_torchs_bits(dtype, reduction):
    with scheduled(3):
        expected = loss_and_gradient(lambda x, y: F.cross_entropy(x, y, reduction=reduction), 1, dtype)
    with scheduled(4):
        found = loss_and_gradient(lambda x, y: cross_entropy(x, y, reduction=reduction), 1, dtype)
    assert_same(expected, found)


def test_cross_entropy_needs_one_buffer_and_two_chunks():
    def peak(head) -> int:
        logits, labels = logits_of(1)
        begun = torch.cuda.memory_allocated()
        peak_bytes = peak_of(lambda: head(logits * 1, labels).backward())
        return peak_bytes - begun

    torch_bytes, own_bytes = peak(F.cross_entropy), peak(cross_entropy)
    assert torch_bytes >= 3 * LOGITS_BYTES
    # The gradient that is written over the logits, the leaf's own gradient, and two chunks of 24 MiB.
    assert own_bytes <= 2 * LOGITS_BYTES + 2 * (24 << 20) + (1 << 20)


def test_the_host_does_not_wait_for_a_head(double):
    hidden = torch.randn(64, 16, device="cuda", requires_grad=True)
    weight = torch.randn(1000, 16, device="cuda", requires_grad=True)
    labels = torch.randint(0, 1000, (64,), device="cuda")

    def step() -> None:
        cross_entropy(hidden @ weight.t(), labels).backward()
        linear_cross_entropy(hidden, weight, labels).backward()

    step()
    torch.cuda.synchronize()
    assert not waits(double, step)


class Head(torch.nn.Module):
    """Little but a loss over a vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh())
        self.head = torch.nn.Linear(32, 16_001, bias=False)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.body(x)), labels)


def head_batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return torch.randn(1024, 32, device="cuda"), torch.randint(0, 16_001, (1024,), device="cuda")


def steps_of(model: torch.nn.Module) -> list[torch.Tensor]:
    seen = []
    for seed in range(3):
        model.zero_grad()
        loss = model(*head_batch(seed))
        loss.backward()
        seen += [loss.detach().cpu(), *(p.grad.cpu() for p in model.parameters())]
        del loss
    return seen


@pytest.mark.double
def test_a_plan_uses_the_exact_head_under_a_budget_and_keeps_it():
    """The head alone brings the step below its budget."""
    plain = Head().to("cuda")
    expected = steps_of(plain)
    plain.zero_grad()
    logits_bytes = 1024 * 16_001 * 4
    unmodified = peak_of(lambda: plain(*head_batch(0)).backward())
    plain.to("cpu")
    model = Head().to("cuda")
    budget = unmodified - logits_bytes // 2
    memscale.wrap(model, memscale.Config(memory_budget_gb=budget / 1e9, enable_logging=False))
    try:
        torch.cuda.reset_peak_memory_stats()
        assert_same(expected, steps_of(model))
        peak = torch.cuda.max_memory_allocated()
        plan = model._memscale_executor.plan
        assert plan.step_options["exact_loss_head"]["chosen"], plan.explain()
        assert "exact_loss_head is on" in plan.explain()
        assert peak <= budget
        assert 0.92 * peak <= plan.predicted_peak_bytes <= 1.08 * peak
    finally:
        memscale.detach(model)


@pytest.mark.double
def test_a_plan_uses_the_chunked_head_if_allowed():
    plain = Head().to("cuda")
    expected = steps_of(plain)
    model = Head().to("cuda")
    config = memscale.Config(memory_budget_gb=0.15, enable_tiling=True, enable_logging=False)
    memscale.wrap(model, config)
    try:
        torch.cuda.reset_peak_memory_stats()
        found = steps_of(model)
        peak = torch.cuda.max_memory_allocated()
        assert model._memscale_executor.plan.step_options["chunked_loss_head"]["chosen"]
        assert peak <= 0.15e9
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(expected, found, strict=True))
    finally:
        memscale.detach(model)


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "gpt2_autocast"])
def test_models_train_with_the_same_bits(name):
    case, twin = twins_on(name)
    with scheduled(5):
        expected = train(case, twin)
    memscale.wrap(case.model, memscale.Config(force_optimize=True, enable_logging=False))
    try:
        with scheduled(6):
            assert_same(expected, train(case, case.model))
        rule = case.model._memscale_executor.plan.step_options["exact_loss_head"]["rule"]
        assert rule in ("forced", "no_loss_head")
    finally:
        memscale.detach(case.model)


@pytest.mark.double
def test_a_wrong_label_fails_as_torchs_does():
    case = case_on("mlp")  # the device is in use
    del case
    logits, labels = logits_of(1)
    labels[3] = VOCABULARY
    with pytest.raises((RuntimeError, IndexError)):
        cross_entropy(logits, labels)
        torch.cuda.synchronize()
