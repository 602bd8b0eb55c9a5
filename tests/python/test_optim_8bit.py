"""8-bit moments: the published map, two bytes per parameter, and training that converges as with fp32 moments."""

import copy
import json

import pytest
from forked_python import run_python

torch = pytest.importorskip("torch")

from optim_support import new_gradients, parameters, small_task, train  # noqa: E402

from memscale import Config, _core  # noqa: E402
from memscale.optim import AdamW, AdamW8bit  # noqa: E402
from memscale.tracing.profiler import MemoryProfiler  # noqa: E402


def state_bytes(values):
    return sum(v.numel() * v.element_size() for name, v in values.items() if name != "step")


def test_state_takes_two_bytes_and_small_tensors_stay_fp32():
    ours = parameters([(1000, 1000), (64, 64), (4095,)])
    optimizer = AdamW8bit(ours)
    optimizer.step()
    assert state_bytes(optimizer.state[ours[0]]) / 1e6 == pytest.approx(2.03, abs=0.005)
    assert "exp_avg_8bit" in optimizer.state[ours[1]]
    assert optimizer.state[ours[2]]["exp_avg"].dtype is torch.float32


_ADDED = """
import torch, memscale
def resident(name):
    line = next(l for l in open("/proc/self/status") if l.startswith(name))
    return int(line.split()[1]) * 1024
def added_mb(optimizer_class, dtype, bf16):
    p = torch.nn.Parameter(torch.ones(4000, 4096, dtype=getattr(torch, dtype)))  # 16.4 million elements
    p.grad = torch.full_like(p, 1e-3)
    optimizer = getattr(memscale.optim, optimizer_class)([p], bf16=bf16)
    optimizer.step()
    open("/proc/self/clear_refs", "w").write("5")
    before = resident("VmRSS")
    optimizer.step()
    return (resident("VmHWM") - before) / 1e6
torch.set_num_threads(2)
for kind in ("AdamW8bit", "AdamW"):
    for dtype in ("float32", "bfloat16"):
        for bf16 in ("split", "master"):
            print(kind, dtype, bf16, added_mb(kind, dtype, bf16))
"""


def test_a_step_makes_no_copy_of_a_tensor():
    """A step allocates less than 4 MB; a copy would be 16 MB for 8-bit codes and 66 MB for floats."""
    done = run_python("-c", _ADDED, check=True)
    assert done.stdout.count("\n") == 8
    for line in done.stdout.splitlines():
        assert float(line.split()[-1]) < 4, line


def test_a_group_can_keep_its_floats():
    ours = parameters([(100, 100), (100, 100)])
    optimizer = AdamW8bit([{"params": ours[:1], "state_bits": 32}, {"params": ours[1:]}])
    optimizer.step()
    assert "exp_avg" in optimizer.state[ours[0]]
    assert "exp_avg_8bit" in optimizer.state[ours[1]]


def test_the_first_step_is_fp32s():
    ours, theirs = parameters([(300, 100)]), parameters([(300, 100)])
    AdamW8bit(ours, lr=0.1).step()
    AdamW(theirs, lr=0.1).step()
    assert torch.equal(ours[0], theirs[0])


def test_moments_are_what_the_codes_say():
    """The moments after a step are the codes of the formula's result on the dequantized moments before it."""
    ours = parameters([(70, 100)])
    optimizer = AdamW8bit(ours)
    for step in range(3):
        new_gradients(ours, seed=step)
        before = optimizer.torch_state_dict()["state"].get(0)
        optimizer.step()
    after = optimizer.torch_state_dict()["state"][0]
    g = ours[0].grad
    for name, decay, term in (("exp_avg", 0.9, g), ("exp_avg_sq", 0.999, g * g)):
        exact = before[name] * decay + term * (1 - decay)
        absmax = exact.flatten().abs()
        scale = torch.cat([block.max().expand(len(block)) for block in absmax.split(256)]).view_as(exact)
        assert ((after[name] - exact).abs() <= 0.0072 * scale).all()
        stored = optimizer.state[ours[0]][f"{name}_absmax"]
        torch.testing.assert_close(stored, torch.stack([b.max() for b in absmax.split(256)]))


def test_a_second_moment_never_becomes_zero():
    """In a block with a large gradient, a small one's moment could round to zero; the next step must not explode."""
    p = torch.zeros(4096, requires_grad=True)
    optimizer = AdamW8bit([p], lr=0.1, weight_decay=0.0)
    p.grad = torch.full((4096,), 1e-4)
    p.grad[0] = 10.0
    optimizer.step()
    p.grad = torch.zeros(4096)
    optimizer.step()
    assert p.abs().max() < 0.5


def test_nan_stays_in_its_block():
    ours = parameters([(64, 64)])
    optimizer = AdamW8bit(ours)
    ours[0].grad.view(-1)[300] = float("nan")
    optimizer.step()
    assert ours[0].isnan().nonzero().tolist() == [[300 // 64, 300 % 64]]
    new_gradients(ours, seed=1)
    optimizer.step()
    assert ours[0].flatten().isnan().nonzero().flatten().tolist() == list(range(256, 512))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_200_steps_end_within_one_percent_of_fp32(dtype):
    losses = []
    for kind in (AdamW, AdamW8bit):
        model, batch = small_task()
        optimizer = kind(model.parameters(), lr=3e-3)
        if dtype is torch.bfloat16:
            model.to(dtype)
            plain = batch

            def batch(plain=plain):
                inputs, labels = plain()
                return inputs.to(dtype), labels

        losses.append(train(model, batch, optimizer, 200))
    assert losses[0] < 0.5
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


def test_states_convert_between_8_and_32_bits_and_torch():
    ours, theirs = parameters([(80, 80), (3,)]), parameters([(80, 80), (3,)])
    b = torch.optim.AdamW(theirs)
    b.step()
    a = AdamW8bit(ours)
    a.load_state_dict(b.state_dict())
    torch.testing.assert_close(
        a.torch_state_dict()["state"][0]["exp_avg"], b.state[theirs[0]]["exp_avg"], rtol=0.1, atol=1e-4
    )
    back = AdamW(ours)
    back.load_state_dict(a.state_dict())
    assert torch.equal(back.state[ours[0]]["exp_avg"], a.torch_state_dict()["state"][0]["exp_avg"])
    b.load_state_dict(copy.deepcopy(a.torch_state_dict()))  # torch keeps the tensors themselves, not copies
    b.step()
    again = AdamW8bit(ours)
    again.load_state_dict(back.state_dict())
    for name in ("exp_avg", "exp_avg_sq"):  # a block whose largest value is negative is rounded again
        first, second = (o.torch_state_dict()["state"][0][name] for o in (a, again))
        torch.testing.assert_close(first, second, rtol=0.1, atol=0.008 * first.abs().max().item())


def test_codes_of_another_layout_are_read_right():
    values = torch.randn(8, 16, 8, 8)
    last = values.clone(memory_format=torch.channels_last).requires_grad_()
    last.grad = torch.randn(8, 16, 8, 8)
    a = AdamW8bit([last])
    a.step()
    plain = values.clone().requires_grad_()
    b = AdamW8bit([plain])
    b.load_state_dict(a.state_dict())
    mine, given = b.torch_state_dict()["state"][0], a.torch_state_dict()["state"][0]
    torch.testing.assert_close(mine["exp_avg"], given["exp_avg"], rtol=0.1, atol=2e-3)


# ---- bitsandbytes, if it is installed ---------------------------------------------------------------


@pytest.fixture(scope="module")
def bitsandbytes():
    return pytest.importorskip("bitsandbytes.functional")


@pytest.mark.parametrize("is_signed", [True, False])
def test_the_map_is_bitsandbytes_map(bitsandbytes, is_signed):
    theirs = bitsandbytes.create_dynamic_map(signed=is_signed)
    assert torch.equal(torch.tensor(_core.adamw_map(is_signed)), theirs)


@pytest.mark.parametrize("is_signed", [True, False])
def test_codes_are_the_nearest_of_bitsandbytes_map(bitsandbytes, is_signed):
    """bitsandbytes defines a code as that of the nearest value; its CPU kernel only approximates it."""
    values = torch.randn(40, 256) * 10.0 ** torch.randint(-3, 1, (40, 256))
    values = values if is_signed else values.square()
    theirs = bitsandbytes.create_dynamic_map(signed=is_signed)
    codes, absmax = torch.empty(40, 256, dtype=torch.uint8), torch.empty(40)
    _core.adamw_quantize(values.data_ptr(), codes.data_ptr(), absmax.data_ptr(), values.numel(), is_signed)
    assert torch.equal(absmax, values.abs().amax(1))
    scaled = (values / absmax[:, None]).double()
    distance = (scaled[..., None] - theirs.double()).abs()
    mine = distance.gather(-1, codes.long()[..., None])[..., 0]
    judged = torch.ones_like(scaled, dtype=torch.bool) if is_signed else scaled > theirs[1]
    assert ((mine - distance.amin(-1))[judged] <= 3e-7 * scaled.abs()[judged]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_plan_before_the_first_step_counts_the_8bit_state_that_is_asked_for(dtype: torch.dtype) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Linear(200, 30)).to(dtype)
    batch = torch.ones(4, 300, dtype=dtype)
    asked, known = (
        json.loads(MemoryProfiler(config).trace(model, (batch,), optimizer=optimizer))["loop"]
        for config, optimizer in (
            (Config(use_8bit_optimizer=True), None),
            (None, AdamW8bit(model.parameters())),
        )
    )
    assert asked["optimizer_state_bytes"] == known["optimizer_state_bytes"] > 0
