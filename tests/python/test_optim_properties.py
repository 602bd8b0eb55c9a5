"""`memscale.optim.AdamW` over random models: it agrees with torch's for any shapes, layouts, types, groups and
settings. Threads and disk change no bit. Unsupported tensors are refused by name before anything changes."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
hypothesis = pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from optim_support import off_by  # noqa: E402

import memscale  # noqa: E402
from memscale.optim import AdamW  # noqa: E402

DISK = {"state": "disk", "disk_offload_dir": "/var/tmp"}
# The same examples on every run, however long drawing them takes.
few = settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
fused_multiply_add = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="torch here has no fused multiply-add"
)


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# Sizes around the kernels' vectors, pieces and blocks, and one that streams from disk.
sizes = st.sampled_from([0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 255, 257])
shapes = st.one_of(
    st.just(()), st.tuples(sizes), st.tuples(sizes, sizes), st.tuples(*[st.integers(1, 9)] * 4), st.just((130, 129))
)
LAYOUTS = ("plain", "transposed", "gapped", "offset")


def laid_out(values, layout):
    """The same numbers in another memory layout."""
    if layout == "transposed" and values.dim():
        return values.permute(*reversed(range(values.dim()))).contiguous().permute(*reversed(range(values.dim())))
    if layout == "gapped" and values.dim():
        return values.repeat_interleave(2, -1)[..., ::2]
    if layout == "offset":  # not at the start of its storage
        return torch.cat([values.new_zeros(3), values.flatten()])[3:].view(values.shape)
    return values.clone()


def twin(values):
    """A copy in a new storage with the same layout, gaps and offset included."""
    whole = torch.zeros(values.untyped_storage().nbytes() // values.element_size(), dtype=values.dtype)
    return whole.as_strided(values.shape, values.stride(), values.storage_offset()).copy_(values)


@st.composite
def models(draw, dtypes=(torch.float32,), layouts=LAYOUTS):
    """Draws a model: (tensors, groups' settings). At each of three steps, most tensors have a gradient."""
    made = []
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    for _ in range(draw(st.integers(1, 4))):
        shape, dtype = draw(shapes), draw(st.sampled_from(dtypes))
        scale = 10.0 ** draw(st.integers(-6, 3))
        values = (torch.randn(shape, generator=generator) * scale).to(dtype)
        gradients = []
        for _ in range(3):
            gradient = (torch.randn(shape, generator=generator) * 10.0 ** draw(st.integers(-12, 3))).to(dtype)
            laid = laid_out(gradient, draw(st.sampled_from(LAYOUTS)))
            gradients.append(None if draw(st.integers(0, 4)) == 0 else laid)
        made.append((laid_out(values, draw(st.sampled_from(layouts))), gradients, draw(st.integers(0, 1))))
    number = st.floats(0, 0.9)
    groups = [
        {"lr": draw(st.floats(0, 0.5)), "betas": (draw(number), draw(number)), "weight_decay": draw(number),
         "eps": draw(st.sampled_from([1e-8, 1e-3])), "amsgrad": draw(st.booleans()), "maximize": draw(st.booleans())}
        for _ in range(2)
    ]  # fmt: skip
    return made, groups


def built(model, kind, **kwargs):
    """New parameters of a drawn model, and an optimizer over its groups."""
    made, groups = model
    params = [twin(values).requires_grad_() for values, _, _ in made]
    chosen = []
    for number, group in enumerate(groups):
        members = [p for p, (_, _, place) in zip(params, made, strict=True) if place == number]
        if members:
            chosen.append({**group, "params": members})
    return params, kind(chosen, **kwargs)


def stepped(model, kind, **kwargs):
    params, optimizer = built(model, kind, **kwargs)
    for step in range(3):
        for p, (_, gradients, _) in zip(params, model[0], strict=True):
            p.grad = None if gradients[step] is None else twin(gradients[step])
        optimizer.step()
    return params, optimizer


def same(model, first, second):
    (ours, a), (theirs, b) = stepped(model, AdamW, **first), stepped(model, AdamW, **second)
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))
    mine, other = a.state_dict()["state"], b.state_dict()["state"]
    assert mine.keys() == other.keys()
    for index, values in mine.items():
        assert values.keys() == other[index].keys()
        assert all(torch.equal(value, other[index][name]) for name, value in values.items())


# ---- compared with torch ---------------------------------------------------------------------


@fused_multiply_add
@few
@given(models(layouts=("plain", "transposed", "offset")), st.sampled_from([{}, {"foreach": True}, {"fused": True}]))
def test_moments_have_torchs_bits_and_parameters_lie_within_the_bound(model, kwargs):
    made, _ = model
    torch.set_num_threads(1)
    ours, a = built(model, AdamW, **kwargs)
    theirs, b = built(model, torch.optim.AdamW, foreach=False)
    assert [group.keys() for group in a.param_groups] == [group.keys() for group in b.param_groups]
    for step in range(3):
        before = [q.detach().clone() for q in theirs]
        for p, q, (_, gradients, _) in zip(ours, theirs, made, strict=True):
            p.data.copy_(q.data)  # the bound holds for one step
            p.grad = q.grad = gradients[step]
        a.step()
        b.step()
        for p, q, old in zip(ours, theirs, before, strict=True):
            assert (p in a.state) == (q in b.state)
            if q not in b.state or not q.numel():
                continue
            assert a.state[p].keys() == b.state[q].keys()
            assert all(torch.equal(a.state[p][name], b.state[q][name]) for name in b.state[q])
            decay = next(g["lr"] * g["weight_decay"] for g in b.param_groups if any(q is one for one in g["params"]))
            assert off_by(p.detach(), q.detach(), old * (1 - decay)) <= 0


@few
@given(models(dtypes=(torch.float32, torch.bfloat16, torch.float16, torch.float64)))
def test_every_type_and_layout_trains_as_in_torch_but_for_rounding(model):
    (ours, _), (theirs, _) = stepped(model, AdamW), stepped(model, torch.optim.AdamW, foreach=False)
    for p, q in zip(ours, theirs, strict=True):
        assert p.dtype is q.dtype and p.stride() == q.stride()
        if p.dtype not in (torch.bfloat16, torch.float16):  # torch rounds the moments of these types
            torch.testing.assert_close(p, q, rtol=2e-5, atol=1e-6)


# ---- the same bits ---------------------------------------------------------------------------

FORMS = st.sampled_from([{}, {"bf16": "master"}, {"state_bits": 8}, {"state_bits": 8, "bf16": "master"}])
ours_only = models(dtypes=(torch.float32, torch.bfloat16))


def of_form(model, form):
    """The model without amsgrad if the state has 8 bits, which supports none."""
    made, groups = model
    return (made, [{**group, "amsgrad": False} for group in groups]) if "state_bits" in form else model


@few
@given(ours_only, FORMS, st.integers(2, 4))
def test_the_number_of_threads_changes_no_bit(model, form, count):
    model = of_form(model, form)
    runs = []
    for threads in (1, count):
        torch.set_num_threads(threads)
        runs.append(stepped(model, AdamW, **form)[0])
    assert all(torch.equal(p, q) for p, q in zip(*runs, strict=True))


@settings(few, max_examples=25)
@given(ours_only, FORMS)
def test_a_state_on_disk_changes_no_bit(model, form):
    same(of_form(model, form), form, {**form, **DISK})


@settings(few, max_examples=25)
@given(ours_only, FORMS, st.booleans())
def test_a_saved_state_goes_on_with_the_bits(model, form, on_disk):
    model = of_form(model, form)
    torch.set_num_threads(1)
    params, optimizer = stepped(model, AdamW, **form)
    again, resumed = built(model, AdamW, **form, **(DISK if on_disk else {}))
    for p, q in zip(params, again, strict=True):
        q.data.copy_(p.data)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for p, q, (_, gradients, _) in zip(params, again, model[0], strict=True):
        p.grad = q.grad = gradients[0]
    optimizer.step()
    resumed.step()
    assert all(torch.equal(p, q) for p, q in zip(params, again, strict=True))


# ---- refusals --------------------------------------------------------------------------------


@settings(few, max_examples=25)
@given(ours_only, st.data())
def test_one_bad_gradient_is_named_and_nothing_is_updated(model, data):
    params, optimizer = built(model, AdamW)
    for p, (_, gradients, _) in zip(params, model[0], strict=True):
        p.grad = gradients[0]
    group = data.draw(st.integers(0, len(optimizer.param_groups) - 1))
    position = data.draw(st.integers(0, len(optimizer.param_groups[group]["params"]) - 1))
    bad = optimizer.param_groups[group]["params"][position]
    bad.grad = torch.zeros(bad.shape, dtype=bad.dtype).to_sparse() if bad.dim() else None
    if bad.grad is None:  # a scalar has no sparse form
        return
    before = [p.detach().clone() for p in params]
    with pytest.raises(memscale.IntegrationError, match=f"parameter {position} of group {group} is sparse"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True)) and not optimizer.state
