"""Gradient release gives the bits of a run without it, and releases each gradient as soon as it is used. Anything that
needs the gradients later is refused by name."""

import copy
import gc

import pytest

torch = pytest.importorskip("torch")

from optim_support import small_task  # noqa: E402

import memscale  # noqa: E402
from memscale import _core  # noqa: E402
from memscale.optim import AdamW  # noqa: E402

DISK = {"state": "disk", "disk_offload_dir": "/var/tmp"}
PLACES = pytest.mark.parametrize("place", [{}, DISK], ids=["memory", "disk"])
Refused = memscale.IntegrationError


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


class Tied(torch.nn.Module):
    """An embedding tied to the head, a layer used twice, and a layer that is never used."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(700, 32)
        self.twice = torch.nn.Linear(32, 32)
        self.wide = torch.nn.Linear(32, 600)
        self.back = torch.nn.Linear(600, 32)
        self.unused = torch.nn.Linear(4, 4)

    def forward(self, tokens):
        x = self.twice(torch.tanh(self.twice(self.table(tokens))))
        x = x + self.back(torch.nn.functional.gelu(self.wide(x)))
        return x @ self.table.weight.t()


def tied_pair(**kwargs):
    """Two equal models with two groups each; the second one's optimizer releases gradients."""
    pair = []
    for release in (False, True):
        torch.manual_seed(0)
        model = Tied()
        matrices = [p for p in model.parameters() if p.dim() > 1]
        vectors = [p for p in model.parameters() if p.dim() == 1]
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0, "lr": 3e-3}]
        place = kwargs if release else {k: v for k, v in kwargs.items() if k not in DISK}
        pair.append((model, AdamW(groups, lr=1e-2, release_gradients=release, **place)))
    return pair


def loss_of(model, step, part=0):
    generator = torch.Generator().manual_seed(step * 10 + part)
    tokens = torch.randint(0, 700, (4, 9), generator=generator)
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def assert_same(pair):
    (plain, a), (released, b) = pair
    for (name, p), q in zip(plain.named_parameters(), released.parameters(), strict=True):
        assert torch.equal(p, q), name
    first, second = a.state_dict()["state"], b.state_dict()["state"]
    assert first.keys() == second.keys()
    assert all(torch.equal(first[i][name], second[i][name]) for i in first for name in first[i])


@PLACES
def test_the_bits_are_those_of_a_run_without(place):
    pair = tied_pair(**place)
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7) for _, optimizer in pair]
    for step in range(4):
        for (model, optimizer), scheduler in zip(pair, schedulers, strict=True):
            loss_of(model, step).backward()
            if model is pair[1][0]:
                assert all(p.grad is None for p in model.parameters())
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    assert_same(pair)


@PLACES
def test_accumulation_releases_on_the_last_micro_step(place):
    pair = tied_pair(**place)
    for step in range(3):
        for model, optimizer in pair:
            with optimizer.accumulate():
                loss_of(model, step, 0).backward()
                loss_of(model, step, 1).backward()
            assert model.table.weight.grad is not None
            loss_of(model, step, 2).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same(pair)


def test_a_gradient_that_the_last_micro_step_does_not_touch_is_used_by_step():
    pair = tied_pair()
    for model, optimizer in pair:
        with optimizer.accumulate():
            model.unused(torch.ones(2, 4)).sum().backward()
        loss_of(model, 0).backward()
        assert model.unused.weight.grad is not None
        optimizer.step()
        optimizer.zero_grad()
    assert_same(pair)


@PLACES
def test_a_wrapped_model_is_released_with_the_same_bits(place):
    pair = tied_pair(**place)
    released = pair[1][0]
    config = memscale.Config(force_optimize=True, enable_logging=False, disk_offload_dir="/var/tmp")
    memscale.wrap(released, config)
    for step in range(3):
        for model, optimizer in pair:
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
    memscale.detach(released)
    assert_same(pair)


def test_no_two_large_gradients_live_at_the_same_time():
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64, bias=False) for _ in range(8)])
    optimizer = AdamW(model.parameters(), release_gradients=True)
    most = []

    def count(_):
        most.append(sum(p.grad is not None for p in model.parameters()))

    for p in model.parameters():  # hooks run in the order of registration
        p.register_post_accumulate_grad_hook(count)
    model(torch.randn(2, 64)).sum().backward()
    assert most == [0] * 8
    optimizer.step()


@PLACES
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clips", [False, True])
def test_under_a_grad_scaler_gradients_are_kept_with_the_same_bits(place, fused, clips, caplog):
    pair = tied_pair(fused=fused, **place)
    scales = []
    for model, optimizer in pair:
        scaler = torch.amp.GradScaler("cpu", init_scale=1000.0, growth_interval=2)
        for step in range(4):
            loss = loss_of(model, step)
            scaler.scale(loss * float("inf") if step == 1 else loss).backward()
            assert model.table.weight.grad is not None
            if clips:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        scales.append(scaler.get_scale())
    assert scales[0] == scales[1]
    assert_same(pair)
    assert float(pair[1][1].state[pair[1][0].table.weight]["step"]) == 3  # the scaler skipped one step
    assert [record.message for record in caplog.records if "GradScaler" in record.message] == [
        "release_gradients: a GradScaler needs all gradients at once; they are kept until step(), and take "
        "their memory until then"
    ]
    for model, optimizer in pair:  # without a scaler, gradients are released again
        loss_of(model, 9).backward()
        assert (model.table.weight.grad is None) == (optimizer is pair[1][1])
        optimizer.step()
    assert_same(pair)


def test_a_scaler_that_is_off_changes_nothing():
    model, optimizer, loss = released_model()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.scale(loss()).backward()
    assert all(p.grad is None for p in model.parameters())
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("trainer", [False, True])
def test_accelerate_says_which_micro_step_is_the_last(trainer, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    if trainer:
        pytest.importorskip("transformers")
    pair = tied_pair()
    tokens = [torch.randint(0, 700, (9,), generator=torch.Generator().manual_seed(i)) for i in range(16)]
    for model, optimizer in pair:
        released = optimizer is pair[1][1]
        seen = []
        if trainer:
            _train_by_trainer(model, optimizer, tokens, str(tmp_path), seen)
        else:
            accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
            prepared, stepping = accelerator.prepare(model, optimizer)
            for part in range(4):
                with accelerator.accumulate(prepared):
                    accelerator.backward(loss_of(prepared, 0, part))
                    seen.append(model.table.weight.grad is None)
                    stepping.step()
                    stepping.zero_grad()
        assert seen == ([False, True] * 2 if released else [False] * 4)
    assert_same(pair)


def _train_by_trainer(model, optimizer, tokens, directory, seen):
    from transformers import Trainer, TrainingArguments

    class ForTrainer(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            ids = inputs["ids"]
            return torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            seen.append(model.table.weight.grad is None)
            return loss

    arguments = TrainingArguments(
        directory, max_steps=2, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_grad_norm=0.0,
        use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    data = [{"ids": ids} for ids in tokens]
    ForTrainer(model, arguments, train_dataset=data, optimizers=(optimizer, scheduler)).train()


def test_torch_updates_what_c_does_not_take():
    runs = []
    for release in (False, True):
        torch.manual_seed(1)
        model = torch.nn.Linear(9, 9).double()
        optimizer = AdamW(model.parameters(), release_gradients=release)
        for _ in range(3):
            model(torch.ones(2, 9).double()).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        runs.append(model.weight)
    assert torch.equal(*runs)


def test_a_closure_and_copies_work():
    pair = tied_pair()
    for model, optimizer in pair:

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = loss_of(model, 1)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert_same(pair)
    twin = copy.deepcopy({"model": pair[1][0], "optimizer": pair[1][1]})
    pair[0][1].zero_grad()
    loss_of(twin["model"], 2).backward()
    twin["optimizer"].step()
    loss_of(pair[0][0], 2).backward()
    pair[0][1].step()
    assert_same((pair[0], (twin["model"], twin["optimizer"])))


# ---- refusals ----------------------------------------------------------------------------------


def released_model():
    model, batch = small_task()
    optimizer = AdamW(model.parameters(), lr=1e-2, release_gradients=True)

    def loss():
        inputs, labels = batch()
        return torch.nn.functional.cross_entropy(model(inputs), labels)

    return model, optimizer, loss


def test_a_second_backward_before_step_is_refused():
    _, _, loss = released_model()
    loss().backward()
    with pytest.raises(Refused, match="second gradient of parameter . of group 0.*accumulate"):
        loss().backward()


def test_backward_through_a_graph_that_was_kept_is_refused():
    _, _, loss = released_model()
    value = loss()
    value.backward(retain_graph=True)
    # Either autograd's check of the weights or ours of the gradients raises first.
    with pytest.raises((Refused, RuntimeError), match="second gradient|inplace"):
        value.backward()


@pytest.mark.filterwarnings("ignore")
def test_double_backward_is_refused():
    _, _, loss = released_model()
    with pytest.raises(Refused, match="create_graph"):
        loss().backward(create_graph=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "clip",
    [
        lambda ps: torch.nn.utils.clip_grad_norm_(ps, 1.0),
        lambda ps: torch.nn.utils.clip_grad_value_(ps, 1.0),
        lambda ps: torch.nn.utils.clip_grads_with_norm_(ps, 1.0, torch.tensor(2.0)),
    ],
)
def test_clipping_is_refused(clip):
    model, optimizer, loss = released_model()
    loss().backward()
    with pytest.raises(Refused, match="can't be clipped.*max_grad_norm=0"):
        clip(list(model.parameters()))
    optimizer.step()


def test_clipping_by_a_name_imported_before_is_refused_and_others_may_clip():
    from torch.nn.utils import clip_grad_norm_

    model, _, loss = released_model()
    loss().backward()
    with pytest.raises(Refused, match="can't be clipped"):
        clip_grad_norm_(model.parameters(), 1.0)
    other = torch.nn.Linear(3, 3)
    other(torch.ones(1, 3)).sum().backward()
    clip_grad_norm_(other.parameters(), 0.1)
    assert other.weight.grad.norm() < 0.1


def test_a_norm_without_a_bound_clips_nothing_and_may_be_asked_for():
    model, optimizer, loss = released_model()
    loss().backward()
    params = list(model.parameters())
    assert torch.nn.utils.clip_grad_norm_(params, float("inf")) == 0.0
    torch.nn.utils.clip_grad_norm_(parameters=params, max_norm=float("inf"))
    with pytest.raises(Refused, match="can't be clipped"):
        torch.nn.utils.clip_grad_norm_(parameters=params, max_norm=1.0)
    optimizer.step()


def test_torchs_functions_are_put_back_with_the_last_optimizer():
    import torch.nn.utils.clip_grad as module

    gc.collect()

    def in_place():
        scale = torch.amp.GradScaler.scale
        return module._clip_grads_with_norm_, module.clip_grad_value_, torch.nn.utils.clip_grad_value_, scale

    before = in_place()
    model, optimizer, loss = released_model()
    assert all(a is not b for a, b in zip(before, in_place(), strict=True))
    del optimizer
    gc.collect()
    assert in_place() == before
    loss().backward()
    assert model[0].weight.grad is not None  # the hooks are gone


@pytest.mark.parametrize("unscales", [False, True])
def test_a_grad_scaler_that_scales_unseen_is_refused_by_name(unscales):
    scaler = torch.amp.GradScaler("cpu")
    scale = scaler.scale  # taken before any gradient is released
    _, optimizer, loss = released_model()
    scale(loss()).backward()
    if unscales:
        scaler.unscale_(optimizer)
    with pytest.raises(Refused, match="GradScaler"):
        scaler.step(optimizer)


def test_rates_changed_between_backward_and_step_are_refused():
    _, optimizer, loss = released_model()
    loss().backward()
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(Refused, match="lr or another hyperparameter of group 0 was changed"):
        optimizer.step()


def test_a_gradient_set_by_hand_after_the_update_is_refused():
    model, optimizer, loss = released_model()
    loss().backward()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    with pytest.raises(Refused, match="has a gradient again"):
        optimizer.step()


def test_a_sparse_gradient_is_refused_in_backward():
    table = torch.nn.Embedding(10, 3, sparse=True)
    optimizer = AdamW(table.parameters(), release_gradients=True)
    with pytest.raises(Refused, match="sparse"):
        table(torch.tensor([1])).sum().backward()
    del optimizer


@pytest.mark.parametrize("kind", ["read", "flip"])
def test_state_that_can_not_be_read_stops_backward_and_only_a_checkpoint_helps(kind):
    pair = tied_pair(**DISK)
    model, optimizer = pair[1]
    for m, o in pair:
        loss_of(m, 0).backward()
        o.step()
        o.zero_grad()
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    _core.fault_arm(kind, 1, 5)
    try:
        with pytest.raises(memscale.OffloadError) as caught:
            loss_of(model, 1).backward()
    finally:
        _core.fault_disarm_all()
    assert "load model and optimizer from a checkpoint" in caught.value.__notes__[0]
    for refused in (optimizer.step, optimizer.finish_step, optimizer.state_dict):
        with pytest.raises(Refused, match="interrupted"):
            refused()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    optimizer.zero_grad()
    for m, o in pair:
        m.zero_grad()
        loss_of(m, 2).backward()
        o.step()
    assert_same(pair)


def test_state_can_not_be_read_between_backward_and_step():
    pair = tied_pair(**DISK)
    loss_of(pair[1][0], 0).backward()
    with pytest.raises(Refused, match="call step"):
        pair[1][1].state_dict()
