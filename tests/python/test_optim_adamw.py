"""`memscale.optim.AdamW` compared with `torch.optim.AdamW`: moments with the same bits, parameters within the
documented bound, and the same behaviour in a training loop."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from optim_support import new_gradients, off_by, parameters, small_task, train  # noqa: E402

import memscale  # noqa: E402
from memscale.optim import AdamW  # noqa: E402

SHAPES = [(3,), (), (17, 5), (64, 33), (300, 301)]
fused_multiply_add = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="torch here has no fused multiply-add"
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def twins(shapes=SHAPES, **kwargs):
    ours, theirs = parameters(shapes), parameters(shapes)
    return ours, theirs, AdamW(ours, **kwargs), torch.optim.AdamW(theirs, foreach=False, **kwargs)


VARIANTS = [
    {},
    {"amsgrad": True},
    {"maximize": True},
    {"weight_decay": 0.0},
    {"weight_decay": 0.5, "lr": 0.3},
    {"betas": (0.3, 0.9)},
    {"betas": (0.5, 0.0)},
    {"betas": (0.0, 0.999), "eps": 1e-3},
    {"lr": 0.0},
]


@fused_multiply_add
@pytest.mark.parametrize("kwargs", VARIANTS, ids=str)
def test_moments_have_torchs_bits_and_parameters_lie_within_the_bound(kwargs):
    ours, theirs, a, b = twins(**kwargs)
    for step in range(8):
        for p, q in zip(ours, theirs, strict=True):
            p.data.copy_(q.data)  # the bound holds for one step
        decay = a.defaults["lr"] * a.defaults["weight_decay"]  # not part of the step's update
        before = [q.detach() * (1 - decay) for q in theirs]
        new_gradients(ours, theirs, seed=step)
        a.step()
        b.step()
        for p, q, old in zip(ours, theirs, before, strict=True):
            assert a.state[p].keys() == b.state[q].keys()
            for name in b.state[q]:
                assert torch.equal(a.state[p][name], b.state[q][name]), name
            assert off_by(p.detach(), q.detach(), old) <= 0


@fused_multiply_add
def test_the_bound_holds_over_many_magnitudes():
    generator = torch.Generator().manual_seed(5)
    n = 1_000_000
    p = torch.randn(n, generator=generator) * 10.0 ** torch.randint(-6, 3, (n,), generator=generator)
    g = torch.randn(n, generator=generator) * 10.0 ** torch.randint(-12, 3, (n,), generator=generator)
    ours, theirs = p.clone().requires_grad_(), p.clone().requires_grad_()
    ours.grad, theirs.grad = g.clone(), g.clone()
    AdamW([ours], lr=1e-2).step()
    torch.optim.AdamW([theirs], lr=1e-2, foreach=False).step()
    assert off_by(ours.detach(), theirs.detach(), p * (1 - 1e-4)) <= 0


def test_nan_and_infinite_gradients_do_as_in_torch():
    ours, theirs, a, b = twins([(6,)])
    for bad in (float("nan"), float("inf"), -float("inf")):
        new_gradients(ours, theirs, seed=1)
        ours[0].grad[2] = theirs[0].grad[2] = bad
        a.step()
        b.step()
        assert torch.equal(ours[0].isnan(), theirs[0].isnan())
        assert torch.equal(a.state[ours[0]]["exp_avg_sq"].isnan(), b.state[theirs[0]]["exp_avg_sq"].isnan())
    assert ours[0].isnan().sum() == 1


@pytest.mark.parametrize("threads", [2, 3, 4])
def test_the_number_of_threads_changes_no_bit(threads):
    results = []
    for count in (1, threads):
        torch.set_num_threads(count)
        ours = parameters([(700, 1000), (5,)])
        AdamW(ours, lr=0.1).step()
        results.append(ours)
    assert all(torch.equal(p, q) for p, q in zip(*results, strict=True))


# ---- layouts ---------------------------------------------------------------------------------


def test_strides_of_parameters_and_gradients_do_not_matter():
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(8, 6, 5, 4, generator=generator)
    gradient = torch.randn(8, 6, 5, 4, generator=generator)
    plain = values.clone().requires_grad_()
    plain.grad = gradient.clone()
    AdamW([plain]).step()
    last = values.clone(memory_format=torch.channels_last).requires_grad_()
    last.grad = gradient.clone()
    gapped = torch.zeros(8, 6, 5, 8)[..., ::2].copy_(values).detach().requires_grad_()
    gapped.grad = gradient.clone()
    transposed = values.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0).requires_grad_()
    transposed.grad = gradient.clone()
    optimizer = AdamW([last, gapped, transposed])
    optimizer.step()
    assert torch.equal(last, plain)
    assert torch.equal(transposed, plain)
    torch.testing.assert_close(gapped, plain, rtol=1e-6, atol=1e-7)  # torch updates this layout
    assert optimizer.state[last]["exp_avg"].stride() == last.stride()


def test_other_dtypes_go_through_torch_in_the_same_step():
    mixed = [*parameters([(4, 4)]), *parameters([(4, 4)], torch.float64), *parameters([(4, 4)], torch.float16)]
    twin = [p.detach().clone().requires_grad_() for p in mixed]
    for p, q in zip(mixed, twin, strict=True):
        q.grad = p.grad.clone()
    ours = AdamW(mixed)
    ours.step()
    torch.optim.AdamW(twin).step()
    for p, q in zip(mixed, twin, strict=True):
        torch.testing.assert_close(p, q)
    ours.load_state_dict(copy.deepcopy(ours.state_dict()))
    assert [ours.state[p]["exp_avg"].dtype for p in mixed] == [torch.float32, torch.float64, torch.float16]
    ours.step()


def test_a_write_is_seen_by_autograd():
    weight = torch.ones(3, requires_grad=True)
    output = (weight * weight).sum()
    weight.grad = torch.ones(3)
    AdamW([weight]).step()
    with pytest.raises(RuntimeError, match="inplace"):
        output.backward()


# ---- the loop around it --------------------------------------------------------------------------


def test_parameters_without_gradients_are_left_alone():
    ours = parameters([(4,), (5,)])
    ours[1].grad = None
    before = ours[1].detach().clone()
    optimizer = AdamW(ours)
    optimizer.step()
    assert torch.equal(ours[1], before)
    assert ours[1] not in optimizer.state


def test_groups_closures_tensor_rates_and_schedulers():
    ours, theirs = parameters(SHAPES), parameters(SHAPES)

    def groups(ps):
        return [{"params": ps[:2], "lr": 1e-2, "weight_decay": 0.0}, {"params": ps[2:], "betas": (0.8, 0.9)}]

    a, b = AdamW(groups(ours), lr=torch.tensor(0.25)), torch.optim.AdamW(groups(theirs), lr=torch.tensor(0.25))
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (a, b)]
    for step in range(5):
        new_gradients(ours, theirs, seed=step)
        assert a.step(lambda: torch.is_grad_enabled()) is True
        b.step()
        for scheduler in schedulers:
            scheduler.step()
    assert [float(g["lr"]) for g in a.param_groups] == [float(g["lr"]) for g in b.param_groups]
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q)
    a.add_param_group({"params": parameters([(3,)])})
    a.step()


@pytest.mark.parametrize("fused", [False, True])
def test_a_grad_scaler_unscales_and_skips(fused):
    results = []
    for kind in (AdamW, torch.optim.AdamW):
        torch.manual_seed(0)
        model = torch.nn.Linear(7, 3)
        optimizer = kind(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(5, 7)).square().mean()).backward()
            if step == 2:
                model.weight.grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
        steps = float(optimizer.state[model.weight]["step"])
        results.append((model.weight.detach(), model.weight.grad, steps, scaler.get_scale()))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_differentiable_step_is_part_of_the_graph():
    gradients = []
    for kind in (torch.optim.AdamW, AdamW):
        start, rate = torch.ones(3, requires_grad=True), torch.tensor(0.1, requires_grad=True)
        weights = start.clone()
        weights.grad = torch.tensor([1.0, -2.0, 3.0])
        kind([weights], lr=rate, differentiable=True, foreach=False).step()
        weights.square().sum().backward()
        gradients.append((start.grad, rate.grad))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_hooks_run_around_the_step():
    calls = []
    optimizer = AdamW(parameters([(3,)]))
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.step()
    assert calls == ["before", "after"]


# ---- states ------------------------------------------------------------------------------------------


def test_a_state_dict_has_torchs_layout_and_goes_both_ways():
    ours, theirs, a, b = twins(amsgrad=True)
    for step in range(3):
        new_gradients(ours, theirs, seed=step)
        a.step()
        b.step()
    mine, other = a.state_dict(), b.state_dict()
    assert {**mine["param_groups"][0], "foreach": False} == other["param_groups"][0]
    assert {k: v.keys() for k, v in mine["state"].items()} == {k: v.keys() for k, v in other["state"].items()}
    c, d = AdamW(ours, amsgrad=True), torch.optim.AdamW(theirs, foreach=False, amsgrad=True)
    c.load_state_dict(other)
    d.load_state_dict(mine)
    for p, q in zip(ours, theirs, strict=True):
        q.data.copy_(p.data)
        for name, value in other["state"][0].items():
            assert c.state[ours[0]][name].dtype is value.dtype
        assert torch.equal(c.state[p]["exp_avg"], b.state[q]["exp_avg"])
        assert c.state[p]["exp_avg"].data_ptr() != b.state[q]["exp_avg"].data_ptr()
    new_gradients(ours, theirs, seed=9)
    c.step()
    d.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("kwargs", [{}, {"state_bits": 8}, {"bf16": "master"}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, kwargs, dtype):
    shapes = [(5,), (90, 100)]
    straight, resumed = parameters(shapes, dtype), parameters(shapes, dtype)
    a, b = AdamW(straight, **kwargs), AdamW(resumed, **kwargs)
    for step in range(3):
        new_gradients(straight, resumed, seed=step)
        a.step()
        b.step()
    torch.save(b.state_dict(), tmp_path / "optimizer.pt")
    again = [p.detach().clone().requires_grad_() for p in resumed]
    c = AdamW(again, **kwargs)
    c.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for step in range(3, 6):
        new_gradients(straight, again, seed=step)
        a.step()
        c.step()
    for p, q in zip(straight, again, strict=True):
        assert torch.equal(p, q)
        for name in a.state[p]:
            assert torch.equal(a.state[p][name], c.state[q][name]), name


def test_copies_and_pickles_keep_settings_and_state():
    ours = parameters([(70, 70)])
    optimizer = AdamW(ours, state_bits=8)
    optimizer.step()
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        p = twin.param_groups[0]["params"][0]
        p.grad = ours[0].grad.clone()
        assert torch.equal(twin.state[p]["exp_avg_8bit"], optimizer.state[ours[0]]["exp_avg_8bit"])
        twin.add_param_group({"params": parameters([(80, 80)])})
        twin.step()
        assert "exp_avg_8bit" in twin.state[twin.param_groups[1]["params"][0]]


def test_load_hooks_see_the_plain_dict():
    ours = parameters([(3,)])
    optimizer = AdamW(ours)
    optimizer.step()
    saved = optimizer.state_dict()
    seen = []
    optimizer.register_load_state_dict_pre_hook(lambda o, d: seen.append(torch.is_tensor(d["state"][0]["exp_avg"])))
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append(torch.is_tensor(o.state[ours[0]]["exp_avg"])))
    optimizer.load_state_dict(saved)
    assert seen == [True, True]


# ---- refusals ------------------------------------------------------------------------------------------


def test_sparse_gradients_are_refused_by_name():
    table = torch.nn.Embedding(10, 3, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(memscale.IntegrationError, match="parameter 0 of group 0 is sparse.*SparseAdam"):
        AdamW(table.parameters()).step()


def test_a_gradient_of_another_dtype_is_refused():
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer = AdamW([p])
    p.data = p.data.to(torch.bfloat16)
    with pytest.raises(memscale.IntegrationError, match="float32 on cpu, the parameter torch.bfloat16"):
        optimizer.step()


@pytest.mark.parametrize(
    ("kwargs", "error", "text"),
    [
        ({"lr": -1.0}, ValueError, "learning rate"),
        ({"betas": (1.0, 0.9)}, ValueError, "beta"),
        ({"fused": True, "foreach": True}, RuntimeError, "cannot be"),
        ({"state_bits": 4}, memscale.ConfigError, "state_bits: 4 is not allowed; allowed are 8 and 32"),
        ({"bf16": "round"}, memscale.ConfigError, "allowed are 'split' and 'master', or None"),
        ({"state_bits": 8, "amsgrad": True}, memscale.ConfigError, "no 8-bit form"),
    ],
)
def test_bad_arguments_are_refused(kwargs, error, text):
    with pytest.raises(error, match=text):
        AdamW(parameters([(3,)]), **kwargs)


def test_states_of_other_optimizers_and_shapes_are_refused_and_nothing_changes():
    ours = parameters([(3,)])
    optimizer = AdamW(ours)
    optimizer.step()
    before = optimizer.state[ours[0]]["exp_avg"].clone()
    other = parameters([(3,)])
    momentum = torch.optim.SGD(other, momentum=0.9)
    momentum.step()
    with pytest.raises(memscale.IntegrationError, match="momentum_buffer.*not a state of AdamW"):
        optimizer.load_state_dict(momentum.state_dict())
    plain = torch.optim.SGD(other, lr=0.1)  # SGD without momentum has groups but no state
    with pytest.raises(memscale.IntegrationError, match="group 0 of the state has no betas, eps.*not a state of AdamW"):
        optimizer.load_state_dict(plain.state_dict())
    for foreign in (torch.nn.Linear(3, 3).state_dict(), [], {"state": {}}):
        with pytest.raises(memscale.IntegrationError, match="not the state_dict"):
            optimizer.load_state_dict(foreign)
    wider = parameters([(4,)])
    wrong = AdamW(wider)
    wrong.step()
    with pytest.raises(memscale.IntegrationError, match=r"shape \(4,\).*needs \(3,\)"):
        optimizer.load_state_dict(wrong.state_dict())
    with pytest.raises(ValueError, match="parameter group"):
        optimizer.load_state_dict(AdamW([{"params": p} for p in parameters([(3,), (3,)])]).state_dict())
    assert torch.equal(optimizer.state[ours[0]]["exp_avg"], before)


# ---- bf16 -----------------------------------------------------------------------------------------------


def test_split_and_master_are_fp32_training_rounded_at_the_end():
    n = 5000
    full = parameters([(n,)], torch.bfloat16)[0].detach().float().requires_grad_()
    split, master = parameters([(n,)], torch.bfloat16), parameters([(n,)], torch.bfloat16)
    reference, a, b = AdamW([full], lr=1e-3), AdamW(split, lr=1e-3), AdamW(master, lr=1e-3, bf16="master")
    for step in range(20):
        new_gradients(split, master, seed=step)
        full.grad = split[0].grad.float()
        for optimizer in (reference, a, b):
            optimizer.step()
    assert torch.equal(b.state[master[0]]["master"], full)
    assert torch.equal(master[0], full.to(torch.bfloat16))
    bits = (split[0].detach().view(torch.int16).int() << 16) + a.state[split[0]]["low"].int()
    assert torch.equal(bits.view(torch.float32), full)
    away = (split[0].float() - full).abs() - (full.to(torch.bfloat16).float() - full).abs()
    assert away.max() <= 0  # the nearest bf16


def test_a_master_follows_weights_that_were_loaded():
    ours = parameters([(4,)], torch.bfloat16)
    optimizer = AdamW(ours, bf16="master", lr=0.0)
    optimizer.step()
    with torch.no_grad():
        ours[0].fill_(3.0)
    optimizer.step()
    assert torch.equal(optimizer.state[ours[0]]["master"], torch.full((4,), 3.0))
    assert torch.equal(ours[0], torch.full((4,), 3.0, dtype=torch.bfloat16))


def test_a_torch_state_of_bf16_parameters_can_be_taken_over():
    theirs, ours = parameters([(50,)], torch.bfloat16), parameters([(50,)], torch.bfloat16)
    b = torch.optim.AdamW(theirs)
    b.step()
    a = AdamW(ours)
    a.load_state_dict(b.state_dict())
    assert a.state[ours[0]]["exp_avg"].dtype is torch.float32
    assert torch.equal(a.state[ours[0]]["exp_avg"].to(torch.bfloat16), b.state[theirs[0]]["exp_avg"])
    a.step()
    b.load_state_dict(a.state_dict())
    b.step()


def test_training_ends_where_torchs_ends():
    losses = []
    for kind in (torch.optim.AdamW, AdamW):
        model, batch = small_task()
        losses.append(train(model, batch, kind(model.parameters(), lr=3e-3), 100))
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
