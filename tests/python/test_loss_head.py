"""`memscale.techniques.cross_entropy` has the bits of `F.cross_entropy`, in a third of its memory."""

import gc
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from memscale import _core  # noqa: E402
from memscale.techniques import cross_entropy  # noqa: E402


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def made(rows, vocabulary, dtype=torch.float32, ignored=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, vocabulary, generator=generator) * 3).to(dtype)
    labels = torch.randint(0, vocabulary, (rows,), generator=generator)
    if ignored is not None:
        labels[::3] = ignored
    return logits, labels


def both(logits, labels, num_items=None, **kwargs):
    """(loss, gradient) of torch's function and of ours; backward gives each loss a different gradient."""
    results = []
    for function in (F.cross_entropy, cross_entropy):
        leaf = logits.clone().requires_grad_()
        if num_items is None:
            loss = function(leaf * 1, labels, **kwargs)
        elif function is F.cross_entropy:
            loss = function(leaf * 1, labels, reduction="sum", **kwargs) / num_items
        else:
            loss = function(leaf * 1, labels, num_items_in_batch=num_items, **kwargs)
        upstream = torch.linspace(0.5, 1.5, max(loss.numel(), 1)).to(loss.dtype).reshape(loss.shape)
        loss.backward(upstream)
        results += [(loss.detach(), leaf.grad)]
    return results


def assert_same(logits, labels, **kwargs):
    (loss, gradient), (our_loss, our_gradient) = both(logits, labels, **kwargs)
    assert our_loss.dtype is loss.dtype
    assert torch.equal(our_loss.nan_to_num(nan=7e4), loss.nan_to_num(nan=7e4))
    assert torch.equal(our_gradient.nan_to_num(nan=7e4), gradient.nan_to_num(nan=7e4))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_loss_and_gradient_have_torchs_bits(dtype, reduction, smoothing):
    for rows, vocabulary in [(1, 1), (1, 503), (2, 31), (67, 1009), (130, 2050)]:
        for ignored in (None, -100):
            logits, labels = made(rows, vocabulary, dtype, ignored)
            assert_same(logits, labels, reduction=reduction, label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_are_torchs_over_several_chunks(dtype, smoothing, threads):
    rows, vocabulary = (801, 20011) if dtype is torch.float32 else (1401, 20011)
    assert _core.loss_chunk_rows(rows, vocabulary, dtype.itemsize, threads, False) < rows / 2
    logits, labels = made(rows, vocabulary, dtype, -100)
    assert_same(logits, labels, label_smoothing=smoothing)


def test_bits_are_torchs_over_all_magnitudes():
    """The logits' differences from the largest one reach values whose exponential is denormal or zero."""
    logits, labels = made(40, 30_011, seed=7)
    logits *= torch.logspace(-3, 1.6, 40)[:, None]
    assert_same(logits, labels, reduction="none")


@pytest.mark.parametrize("capability", ["avx512", "avx2", "default"])
def test_bits_are_torchs_with_other_vectors(capability):
    """torch chooses its vector instructions when it starts. The C code uses the same ones, or torch's operators run."""
    if capability == "avx512" and not torch.cpu._is_avx512_supported():
        pytest.skip("this processor has no AVX-512; torch would not start")
    code = """
import torch
from memscale.techniques import cross_entropy, loss_head
torch.manual_seed(0)
for rows, vocabulary in ((3, 7), (3, 9), (30, 33), (50, 5003)):
    logits, labels = torch.randn(rows, vocabulary) * 4, torch.randint(0, vocabulary, (rows,))
    results = []
    for function in (torch.nn.functional.cross_entropy, cross_entropy):
        leaf = logits.clone().requires_grad_()
        loss = function(leaf, labels)
        loss.backward()
        results.append((loss, leaf.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results)), vocabulary
print(torch.backends.cpu.get_cpu_capability(), loss_head._c_agrees())
"""
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    # torch 2.6 calls the last one "NO AVX"
    assert done.stdout.split() in (["AVX512", "True"], ["AVX2", "True"], ["DEFAULT", "False"], ["NO", "AVX", "False"])


@pytest.mark.parametrize("ignore_index", [0, 5, -1, 10_000])
def test_any_ignore_index(ignore_index):
    logits, labels = made(50, 101, ignored=ignore_index)
    assert_same(logits, labels, ignore_index=ignore_index)
    assert_same(logits, labels, ignore_index=ignore_index, label_smoothing=0.1)


@pytest.mark.parametrize("num_items", [17, torch.tensor(17), 17.0], ids=str)
def test_hugging_faces_count_of_items(num_items):
    assert_same(*made(40, 99, ignored=-100), num_items=num_items)


def test_nothing_to_learn_from_is_nan_as_in_torch():
    logits, labels = made(6, 11)
    assert_same(logits, torch.full_like(labels, -100))
    assert_same(logits[:0], labels[:0])
    assert_same(logits[:0], labels[:0], reduction="sum")


def test_inf_and_nan_do_as_in_torch():
    logits, labels = made(8, 40)
    logits[1, 3], logits[2, 5], logits[3, 7] = float("inf"), -float("inf"), float("nan")
    labels[2] = 5
    assert_same(logits, labels)


def test_leading_dimensions_and_single_rows():
    logits, labels = made(24, 50, ignored=-100)
    whole = cross_entropy(logits, labels)
    assert torch.equal(cross_entropy(logits.view(4, 6, 50), labels.view(4, 6)), whole)
    assert cross_entropy(logits.view(4, 6, 50), labels.view(4, 6), reduction="none").shape == (4, 6)
    assert_same(logits[1], labels[1])


def test_layouts_of_logits_do_not_matter():
    logits, labels = made(40, 60)
    for twisted in (logits.t().contiguous().t(), torch.stack([logits, logits], 1)[:, 1], logits[::2]):
        assert_same(twisted, labels[: len(twisted)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_casts_as_torch_does(dtype):
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(*made(30, 70, dtype))


def test_what_it_does_not_do_itself_is_torchs():
    logits, labels = made(20, 30)
    weight = torch.rand(30)
    assert_same(logits, labels, weight=weight)
    probabilities = torch.softmax(logits, 1)
    assert torch.equal(cross_entropy(logits, probabilities), F.cross_entropy(logits, probabilities))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_classes_are_the_last_dimension_for_torchs_own_function_too(reduction):
    logits, labels = made(9, 3)  # torch alone would use the second dimension, whose size fits too
    weight = torch.tensor([0.2, 1.0, 3.0])
    whole = cross_entropy(logits, labels, weight, reduction=reduction)
    cube = logits.view(3, 3, 3)
    assert torch.equal(cross_entropy(cube, labels.view(3, 3), weight, reduction=reduction).view(whole.shape), whole)
    probabilities = torch.softmax(logits, 1)
    whole = cross_entropy(logits, probabilities, reduction=reduction)
    given = cross_entropy(cube, probabilities.view(3, 3, 3), reduction=reduction)
    assert torch.equal(given.view(whole.shape), whole)
    with pytest.raises(ValueError, match="need labels of shape"):
        cross_entropy(cube, labels, weight)


# ---- who owns the logits' memory ------------------------------------------------------------------


def test_logits_that_somebody_holds_are_not_overwritten():
    values, labels = made(30, 50)
    for hold in (lambda x: x, lambda x: x.detach().numpy(), lambda x: x[3], lambda x: x.untyped_storage()):
        leaf = values.clone().requires_grad_()
        logits = leaf * 1
        held = hold(logits)
        loss = cross_entropy(logits, labels)
        base = logits.detach().clone() if held is logits else None
        before = torch.as_tensor(held).detach().clone() if not isinstance(held, torch.UntypedStorage) else held.tolist()
        del logits
        loss.backward()
        if isinstance(held, torch.UntypedStorage):
            assert held.tolist() == before
        else:
            assert torch.equal(torch.as_tensor(held).detach(), before)
        assert base is None or torch.equal(base, values)


def test_logits_that_another_operator_saved_are_not_overwritten():
    values, labels = made(30, 50)
    gradients = []
    for function in (F.cross_entropy, cross_entropy):
        leaf = values.clone().requires_grad_()
        logits = leaf * 1
        squares = logits.square().sum()  # saves the logits; its backward comes after the loss's
        total = function(logits, labels) + squares
        del logits, squares
        total.backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)


def test_a_retained_graph_can_be_used_again_and_no_other():
    values, labels = made(30, 50)
    leaf = values.clone().requires_grad_()
    loss = cross_entropy(leaf * 1, labels)
    loss.backward(retain_graph=True)
    first = leaf.grad.clone()
    leaf.grad = None
    loss.backward()
    assert torch.equal(leaf.grad, first)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_logits_changed_in_place_are_noticed():
    values, labels = made(30, 50)
    logits = values.clone().requires_grad_() * 1
    loss = cross_entropy(logits, labels)
    logits.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_derivative_is_refused():
    values, labels = made(5, 7)
    leaf = values.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(cross_entropy(leaf, labels), leaf, create_graph=True)
    with pytest.raises(RuntimeError):
        gradient.sum().backward()


@pytest.mark.parametrize(("is_held", "buffers"), [(False, 0), (True, 1)])
def test_it_needs_no_second_buffer_of_tokens_times_vocabulary(is_held, buffers):
    """Besides the logits it needs only chunks, or one buffer for the gradient if the caller holds the logits."""
    gc.collect()
    if _core.hostmem_install() != "slots":
        _core.hostmem_uninstall()
        pytest.skip("torch's allocator has no slots to take here")
    try:
        hidden = torch.randn(1600, 4, requires_grad=True)
        weight = torch.randn(4, 50_000, requires_grad=True)
        labels = torch.randint(0, 50_000, (1600,))
        whole = 1600 * 50_000 * 4
        logits = hidden @ weight
        live = _core.hostmem_stats()["live_bytes"]
        _core.hostmem_reset_peak()
        loss = cross_entropy(logits, labels)
        if not is_held:
            del logits
        loss.backward()
        beside = _core.hostmem_stats()["peak_live_bytes"] - live
        assert beside < (buffers + 0.35) * whole
    finally:
        _core.hostmem_uninstall()


# ---- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [50, -1, -99])
def test_labels_out_of_bounds_are_refused(label):
    logits, labels = made(5, 50)
    labels[2] = label
    with pytest.raises(IndexError, match=f"Target {label} is out of bounds"):
        cross_entropy(logits, labels)


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [({"reduction": "median"}, "allowed are mean, sum, none"), ({"label_smoothing": 1.5}, "allowed is 0 to 1")],
)
def test_bad_arguments_are_refused(kwargs, text):
    with pytest.raises(ValueError, match=text):
        cross_entropy(*made(5, 7), **kwargs)


def test_shapes_must_belong_together():
    logits, labels = made(6, 7)
    with pytest.raises(ValueError, match=r"need labels of shape \(6,\), not \(5,\)"):
        cross_entropy(logits, labels[:5])
