"""`apply_all_optimizations` wraps the model, and replaces the optimizer if the config says so."""

import sys
import warnings

import pytest

torch = pytest.importorskip("torch")

from optim_support import small_task, train  # noqa: E402

import memscale  # noqa: E402
from memscale.optim import AdamW, AdamW8bit  # noqa: E402
from memscale.optim.replace import successor_with_8bit_state, take_over  # noqa: E402


def config(**kwargs):
    return memscale.Config(enable_logging=False, **kwargs)


@pytest.fixture
def task():
    torch.set_num_threads(1)
    model, batch = small_task()
    yield model, batch
    if hasattr(model, "_memscale_executor"):
        memscale.detach(model)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, AdamW])
def test_groups_hyperparameters_state_and_schedulers_go_on(task, kind):
    model, batch = task
    groups = [
        {"params": list(model[0].parameters()), "lr": 2e-3},
        {"params": list(model[2:].parameters()), "betas": (0.8, 0.99), "weight_decay": 0.0},
    ]
    old = kind(groups, lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(old, 1, 0.5)
    train(model, batch, old, 5)
    scheduler.step()
    moment = old.state[model[3].weight]["exp_avg"].clone()
    same, new = memscale.apply_all_optimizations(model, old, config(use_8bit_optimizer=True))
    assert same is model and model._memscale_executor is not None
    assert isinstance(new, AdamW8bit) and new is not old
    assert new.param_groups[1]["betas"] == (0.8, 0.99)
    assert not old.state
    assert float(new.state[model[3].weight]["step"]) == 5
    assert "exp_avg_8bit" in new.state[model[3].weight]
    index = [id(p) for group in new.param_groups for p in group["params"]].index(id(model[3].weight))
    kept = new.torch_state_dict()["state"][index]["exp_avg"]
    torch.testing.assert_close(kept, moment, rtol=0.1, atol=0.008 * moment.abs().max().item())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, batch, new, 5)
        scheduler.step()
    assert [group["lr"] for group in new.param_groups] == [5e-4, 2.5e-4]


@pytest.mark.parametrize("kind", [torch.optim.AdamW, AdamW])
def test_hooks_on_the_step_go_on_and_the_old_optimizer_refuses(task, kind):
    model, batch = task
    old = kind(model.parameters(), lr=1e-3)
    seen = []
    handle = old.register_step_post_hook(lambda optimizer, *_: seen.append(optimizer))
    old.register_step_pre_hook(lambda optimizer, *_: seen.append("before"))
    _, new = memscale.apply_all_optimizations(model, old, config(use_8bit_optimizer=True))
    train(model, batch, new, 5)
    assert seen == ["before", new] * 5
    handle.remove()
    train(model, batch, new, 5)
    assert seen[10:] == ["before"] * 5
    with pytest.raises(memscale.IntegrationError, match="was replaced.*apply_all_optimizations"):
        old.step()
    assert not old.state


def test_without_the_flag_the_optimizer_stays(task):
    model, _ = task
    old = torch.optim.SGD(model.parameters(), lr=0.1)
    assert memscale.apply_all_optimizations(model, old, config()) == (model, old)
    assert model._memscale_executor is not None


def test_state_that_has_8_bits_stays(task):
    model, _ = task
    old = AdamW8bit(model.parameters())
    assert memscale.apply_all_optimizations(model, old, config(use_8bit_optimizer=True))[1] is old


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda ps: torch.optim.SGD(ps, lr=0.1), memscale.IntegrationError, "SGD has no 8-bit form here; use"),
        (lambda ps: torch.optim.Adam(ps), memscale.IntegrationError, "Adam has no 8-bit form"),
        (lambda ps: torch.optim.AdamW(ps, amsgrad=True), memscale.ConfigError, "amsgrad"),
        (lambda ps: None, TypeError, "not None"),
        (lambda ps: "adamw", TypeError, "apply_all_optimizations.*not str"),
    ],
)
def test_what_has_no_8_bit_form_is_refused_and_nothing_is_wrapped(task, make, error, text):
    model, _ = task
    with pytest.raises(error, match=text):
        memscale.apply_all_optimizations(model, make(model.parameters()), config(use_8bit_optimizer=True))
    assert not hasattr(model, "_memscale_executor")


def test_training_on_ends_where_8_bits_from_the_start_ends(task):
    model, batch = task
    _, new = memscale.apply_all_optimizations(
        model, torch.optim.AdamW(model.parameters(), lr=3e-3), config(use_8bit_optimizer=True)
    )
    wrapped = train(model, batch, new, 60)
    plain, plain_batch = small_task()
    assert wrapped == train(plain, plain_batch, AdamW8bit(plain.parameters(), lr=3e-3), 60)


@pytest.mark.parametrize(("kind", "per_element"), [(AdamW, 8.0), (AdamW8bit, 2.03)])
def test_a_profiled_step_makes_the_state_without_memory(kind, per_element):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        p = torch.nn.Parameter(torch.empty(512, 512))
        p.grad = torch.empty(512, 512)
        optimizer = kind([p])
        optimizer.step()
    values = [v for name, v in optimizer.state[p].items() if name != "step"]
    made = sum(v.numel() * v.element_size() for v in values)
    assert made / p.numel() == pytest.approx(per_element, abs=0.01)


# ---- on CUDA: tests that need no GPU ----------------------------------------------------------


def on_cuda():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.nn.Parameter(torch.empty(300, 300, device="cuda"))


def test_on_cuda_without_bitsandbytes_the_optimizer_stays_with_a_notice(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    old = torch.optim.AdamW([on_cuda()])
    assert successor_with_8bit_state(old) is old
    assert "use_8bit_optimizer: bitsandbytes is not installed" in caplog.text and "stays as it is" in caplog.text
    take_over(old, old)
    old.step()  # it still works


def test_on_cuda_it_is_bitsandbytes_own():
    bitsandbytes = pytest.importorskip("bitsandbytes")
    p = on_cuda()
    old = torch.optim.AdamW([{"params": [p], "lr": 0.5}], betas=(0.7, 0.8))
    new = successor_with_8bit_state(old)
    assert type(new) is bitsandbytes.optim.AdamW8bit
    assert new.param_groups[0]["lr"] == 0.5 and tuple(new.param_groups[0]["betas"]) == (0.7, 0.8)
    old.state[p]["step"] = torch.tensor(1.0)
    with pytest.raises(memscale.IntegrationError, match="before the first step"):
        successor_with_8bit_state(old)
