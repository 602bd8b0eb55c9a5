"""The user may change torch's default dtype and device: tensors whose addresses C gets, and counters of steps, name
theirs explicitly."""

from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")

from optim_support import parameters  # noqa: E402

from memscale.optim import AdamW, AdamW8bit  # noqa: E402
from memscale.techniques import cross_entropy, linear_cross_entropy, loss_head  # noqa: E402

DEFAULTS = [torch.bfloat16, torch.float16, torch.float64, torch.device("meta")]
STEPS = 270  # bf16 counts only to 256


@contextmanager
def default(kind):
    """A context with this dtype or device as torch's default."""
    if isinstance(kind, torch.device):
        with kind:
            yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.fixture(params=DEFAULTS, ids=str)
def other_default(request):
    return request.param


@pytest.mark.parametrize(
    "make",
    [AdamW, AdamW8bit, lambda params: AdamW(params, state="disk"), lambda params: AdamW8bit(params, state="disk")],
    ids=["memory", "8bit", "disk", "disk_8bit"],
)
def test_updates_do_not_depend_on_torchs_defaults(make, other_default):
    ours, twins = (parameters([(20_000,)]) for _ in range(2))
    twin_optimizer = make(twins)
    with default(other_default):
        optimizer = make(ours)
    for _ in range(STEPS):
        twin_optimizer.step()
        with default(other_default):
            optimizer.step()
    assert torch.equal(ours[0], twins[0])
    state, twin_state = optimizer.state_dict()["state"][0], twin_optimizer.state_dict()["state"][0]
    assert float(state["step"]) == STEPS
    assert all(torch.equal(state[name], twin_state[name]) for name in state if name != "step")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_loaded_count_goes_on(dtype):
    ours = parameters([(20_000,)])
    optimizer = AdamW(ours)
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][0]["step"] = torch.tensor(1000.0)
    with default(dtype):
        again = AdamW(ours)
        again.load_state_dict(saved)
        again.step()
    assert float(again.state[ours[0]]["step"]) == 1001


def test_the_loss_does_not_depend_on_torchs_defaults(other_default):
    logits, labels = torch.randn(50, 1009), torch.randint(0, 1009, (50,))
    expected = torch.nn.functional.cross_entropy(logits, labels)
    loss_head._c_agrees.cache_clear()
    with default(other_default):
        leaf = logits.clone().requires_grad_()
        loss = cross_entropy(leaf, labels)
        loss.backward()
        agrees = loss_head._c_agrees()
    loss_head._c_agrees.cache_clear()
    assert agrees == loss_head._c_agrees()
    assert torch.equal(loss, expected)
    twin = logits.clone().requires_grad_()
    torch.nn.functional.cross_entropy(twin, labels).backward()
    assert torch.equal(leaf.grad, twin.grad)


def test_a_count_of_items_is_not_rounded(other_default):
    hidden, weight, labels = torch.randn(20, 8), torch.randn(30, 8), torch.randint(0, 30, (20,))
    expected = linear_cross_entropy(hidden, weight, labels, num_items_in_batch=257.0)
    with default(other_default):
        found = linear_cross_entropy(hidden, weight, labels, num_items_in_batch=257.0)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_scales_of_any_dtype_are_read_as_numbers(dtype):
    """In some checkpoints, all floats were cast to another type."""
    ours, twins = (parameters([(20_000,)]) for _ in range(2))
    first = AdamW8bit(ours)
    first.step()
    saved = first.state_dict()
    values = saved["state"][0]
    for name in ("exp_avg_absmax", "exp_avg_sq_absmax"):
        values[name] = values[name].bfloat16().float()
    cast = {name: v.to(dtype) if name.endswith("absmax") else v for name, v in values.items()}
    one, other = AdamW8bit(twins), AdamW8bit(ours)
    other.load_state_dict(saved)
    one.load_state_dict({**saved, "state": {0: cast}})
    for name in values:
        assert torch.equal(one.state[twins[0]][name], other.state[ours[0]][name])
    assert torch.equal(one.torch_state_dict()["state"][0]["exp_avg"], other.torch_state_dict()["state"][0]["exp_avg"])
