"""`memscale.techniques.linear_cross_entropy` gives the loss and gradients of the whole logits, which are never
allocated."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from memscale.techniques import linear_cross_entropy  # noqa: E402

ROWS, WIDTH, CLASSES = 700, 24, 1501


def whole(hidden, weight, labels, bias=None, label_smoothing=0.0, z_loss=0.0, softcap=None, items=None):
    """Computes the same loss from the whole logits, with torch's operators."""
    logits = F.linear(hidden, weight, bias).flatten(0, -2)
    logits = logits.double() if logits.dtype is torch.float64 else logits.float()
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    labels = labels.flatten()
    loss = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)
    counts = labels != -100
    loss = loss + z_loss * (torch.logsumexp(logits, 1) ** 2)[counts].sum()
    return loss / (counts.sum() if items is None else items)


def operands(dtype=torch.float32, bias=True, ignored=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(2, ROWS // 2, WIDTH, generator=generator).to(dtype)
    weight = torch.randn(CLASSES, WIDTH, generator=generator).to(dtype)
    labels = torch.randint(0, CLASSES, (2, ROWS // 2), generator=generator)
    if ignored:
        labels[:, ::5] = -100
    made = [hidden, weight, torch.randn(CLASSES, generator=generator).to(dtype) if bias else None]
    return [t.requires_grad_() if t is not None else None for t in made], labels


def results(function, leaves, labels, **options):
    hidden, weight, bias = leaves
    loss = function(hidden, weight, labels, bias, **options)
    gradients = torch.autograd.grad(loss * 1.5, [t for t in leaves if t is not None])
    return loss.detach(), gradients


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"label_smoothing": 0.1},
        {"z_loss": 1e-2},
        {"softcap": 5.0},
        {"label_smoothing": 0.2, "z_loss": 1e-3, "softcap": 8.0},
    ],
    ids=["plain", "smoothing", "z_loss", "softcap", "all"],
)
@pytest.mark.parametrize("bias", [False, True], ids=["no_bias", "bias"])
def test_loss_and_gradients_agree_with_the_whole_logits(options, bias):
    leaves, labels = operands(torch.float64, bias)
    loss, gradients = results(whole, leaves, labels, **options)
    our_loss, ours = results(linear_cross_entropy, leaves, labels, **options)
    torch.testing.assert_close(our_loss, loss, rtol=1e-12, atol=0)
    for ours_one, one in zip(ours, gradients, strict=True):
        torch.testing.assert_close(ours_one, one, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_loss_agrees_to_a_millionth(dtype):
    leaves, labels = operands(dtype)
    loss, gradients = results(whole, leaves, labels)
    our_loss, ours = results(linear_cross_entropy, leaves, labels)
    assert our_loss.dtype is torch.float32
    torch.testing.assert_close(our_loss, loss, rtol=1e-6, atol=0)
    for ours_one, one in zip(ours, gradients, strict=True):
        assert ours_one.dtype is dtype
        rounding = 1e-5 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(ours_one, one, rtol=rounding, atol=rounding * float(one.abs().max()))


def test_tokens_times_vocabulary_is_never_there():
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.untyped_storage().nbytes())
            return result

    rows, classes = 4096, 20011
    hidden = torch.randn(rows, 4, requires_grad=True)
    weight = torch.randn(classes, 4, requires_grad=True)
    labels = torch.randint(0, classes, (rows,))
    with Watch():
        linear_cross_entropy(hidden, weight, labels).backward()
    assert largest < rows * classes * 4 / 4


def test_gradients_nobody_asks_for_are_not_made():
    (hidden, weight, bias), labels = operands()
    loss = linear_cross_entropy(hidden, weight.detach(), labels, bias.detach())
    assert all(g is None for g in loss.grad_fn.gradients[1:])
    with torch.no_grad():
        assert not linear_cross_entropy(hidden, weight, labels).requires_grad


def test_items_divide_the_sum():
    leaves, labels = operands(torch.float64)
    loss, _ = results(whole, leaves, labels, items=123)
    for items in (123, torch.tensor(123)):
        our_loss, _ = results(linear_cross_entropy, leaves, labels, num_items_in_batch=items)
        torch.testing.assert_close(our_loss, loss, rtol=1e-12, atol=0)


def test_without_a_token_that_counts_gradients_are_zero():
    (hidden, weight, bias), labels = operands()
    loss = linear_cross_entropy(hidden, weight, torch.full_like(labels, -100), bias)
    loss.backward()
    assert loss.isnan() and not hidden.grad.any() and not weight.grad.any() and not bias.grad.any()


def test_a_retained_graph_gives_the_same_gradients_again():
    leaves, labels = operands()
    loss = linear_cross_entropy(leaves[0], leaves[1], labels, leaves[2])
    first = torch.autograd.grad(loss, leaves, torch.tensor(3.0), retain_graph=True)
    second = torch.autograd.grad(loss, leaves, torch.tensor(3.0))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, leaves)


def test_autocast_is_that_of_a_linear_layer():
    leaves, labels = operands()
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = results(whole, leaves, labels)
        our_loss, ours = results(linear_cross_entropy, leaves, labels)
    torch.testing.assert_close(our_loss, loss, rtol=1e-6, atol=0)
    assert all(gradient.dtype is torch.float32 for gradient in ours)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"hidden": torch.zeros(4, 3)}, ValueError, "shapes"),
        ({"labels": torch.zeros(5, dtype=torch.long)}, ValueError, "shapes"),
        ({"bias": torch.zeros(7)}, ValueError, "bias"),
        ({"labels": torch.zeros(4)}, ValueError, "integers"),
        ({"label_smoothing": 2.0}, ValueError, "label_smoothing"),
        ({"softcap": 0.0}, ValueError, "softcap"),
        ({"softcap": float("nan")}, ValueError, "softcap"),
        ({"softcap": "20"}, TypeError, "softcap must be a number, not str"),
        ({"z_loss": "1"}, TypeError, "z_loss must be a number, not str"),
        ({"ignore_index": None}, TypeError, "ignore_index must be a number, not NoneType"),
        (
            {"hidden": torch.zeros(4, 2, dtype=torch.cfloat), "weight": torch.zeros(6, 2, dtype=torch.cfloat)},
            TypeError,
            "hidden is torch.complex64",
        ),
        ({"hidden": torch.zeros(4, 2, dtype=torch.long)}, TypeError, "floating point"),
        ({"labels": torch.tensor([0, 1, 6, 2])}, IndexError, "out of bounds"),
    ],
)
def test_bad_input_is_named(change, error, text):
    arguments = {
        "hidden": torch.zeros(4, 2), "weight": torch.zeros(6, 2), "labels": torch.zeros(4, dtype=torch.long),
    }  # fmt: skip
    with pytest.raises(error, match=text):
        linear_cross_entropy(**{**arguments, **change})
