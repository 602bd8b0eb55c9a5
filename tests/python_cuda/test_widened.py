"""memscale.optim with bf16 parameters on a GPU and state in fp32: wherever the state lies, parameters and states have
the bits of torch's AdamW on fp32 copies."""

from __future__ import annotations

import copy

import pytest
import torch
from cuda_support import scheduled
from test_optimizer import assert_equal, gradients, model_of, train
from torch import nn

import memscale
from memscale import _core
from memscale.errors import IntegrationError
from memscale.optim import AdamW

MB = 2**20
OPTIONS = {"plain": {}, "amsgrad": {"amsgrad": True}, "loop": {"foreach": False, "maximize": True}}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Pieces of a few thousand elements, so that parameters are cut and share buffers."""
    monkeypatch.setattr(_core, "optimizer_host_elements", lambda arrays, item_bytes: 70_000)


def model(width: int = 640) -> nn.Module:
    return model_of(width, 3, torch.bfloat16)


class Copies:
    """torch's AdamW on fp32 copies of a bf16 model's parameters."""

    def __init__(self, of: nn.Module, **options: object) -> None:
        self.model = of
        self.copies = [p.detach().float().requires_grad_() for p in of.parameters()]
        self.optimizer = torch.optim.AdamW(self.copies, lr=1e-2, **options)

    def train(self, steps: int = 4, first: int = 0) -> None:
        for seed in range(first, first + steps):
            gradients(self.model, seed)
            for p, wide in zip(self.model.parameters(), self.copies, strict=True):
                wide.grad, p.grad = p.grad.float(), None
            self.optimizer.step()
            with torch.no_grad():
                for p, wide in zip(self.model.parameters(), self.copies, strict=True):
                    p.copy_(wide)

    def check(self, trained: nn.Module, optimizer: AdamW) -> None:
        """Its values are those of a model that `optimizer` has trained."""
        states = optimizer.state_dict()["state"]
        for index, (p, wide) in enumerate(zip(trained.parameters(), self.copies, strict=True)):
            state, expected = states[index], self.optimizer.state[wide]
            for name, value in expected.items():
                assert torch.equal(state[name].cpu(), value.cpu()), (index, name)
            if "master" in state:
                value = state["master"].cpu()
                assert torch.equal(p.cpu(), value.bfloat16()), index
            else:
                bits = p.detach().cpu().view(torch.int16).int() * 65536 + state["low"].cpu().int()
                value = bits.view(torch.float32)
                assert ((p.cpu().float() - value).abs() <= (value * 2**-8).abs()).all(), index
            assert torch.equal(value, wide.detach().cpu()), index


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("bf16", ["split", "master"])
@pytest.mark.parametrize("state", ["memory", "host", "disk"])
def test_an_update_has_the_bits_of_torchs_in_fp32(state, bf16, options):
    trained = model()
    if bf16 == "split":  # rounds ties away from zero: the models would drift apart by gradients
        optimizer = AdamW(trained.parameters(), lr=1e-2, bf16=bf16, state=state, **options)
        expected = Copies(copy.deepcopy(trained), **options)
        for seed in range(4):
            gradients(trained, seed)
            for p, wide in zip(trained.parameters(), expected.copies, strict=True):
                wide.grad = p.grad.float()
            expected.optimizer.step()
            with scheduled(seed):
                optimizer.step()
            optimizer.zero_grad()
    else:
        expected = Copies(copy.deepcopy(trained), **options)
        optimizer = AdamW(trained.parameters(), lr=1e-2, bf16=bf16, state=state, **options)
        expected.train()
        with scheduled(1):
            train(trained, optimizer)
    expected.check(trained, optimizer)
    held = optimizer.state[trained[0][0].weight]
    assert (list(held) == ["step"]) == (state != "memory")
    small = optimizer.state[trained[0][0].bias]
    assert small["exp_avg"].dtype is torch.float32 and small["exp_avg"].device.type == "cuda"


@pytest.mark.parametrize("state", ["memory", "host", "disk"])
def test_released_gradients_give_the_same_bits(state):
    trained, plain = model(), model()
    expected = AdamW(plain.parameters(), lr=1e-2, bf16="split")
    optimizer = AdamW(trained.parameters(), lr=1e-2, bf16="split", state=state, release_gradients=True)
    train(plain, expected)
    with scheduled(3):
        train(trained, optimizer)
    assert_equal((plain, expected), (trained, optimizer))


@pytest.mark.parametrize("bf16", ["split", "master"])
def test_a_run_goes_on_from_the_other_kind_of_devices_state(bf16):
    """C on the CPU and torch on the GPU have one form of states."""
    on_host = model().cpu()
    first = AdamW(on_host.parameters(), lr=1e-2, bf16=bf16)
    for p in on_host.parameters():
        p.grad = torch.full_like(p, 0.01)
    first.step()
    for state in ("memory", "host", "disk"):
        there = copy.deepcopy(on_host).cuda()
        second = AdamW(there.parameters(), lr=1e-2, bf16=bf16, state=state)
        second.load_state_dict(first.state_dict())
        assert_equal((on_host, first), (there, second))
        gradients(there, 1)
        second.step()
        back = copy.deepcopy(there).cpu()
        third = AdamW(back.parameters(), lr=1e-2, bf16=bf16)
        third.load_state_dict(second.state_dict())
        assert_equal((there, second), (back, third))


def test_without_a_form_torch_updates_in_bf16():
    plain, trained = model(), model()
    expected = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    optimizer = AdamW(trained.parameters(), lr=1e-2)
    train(plain, expected)
    train(trained, optimizer)
    assert_equal((plain, expected), (trained, optimizer))


def test_a_master_takes_over_what_other_code_has_written():
    trained = model()
    for state in ("memory", "host", "disk"):
        optimizer = AdamW(trained.parameters(), lr=0.0, weight_decay=0.0, bf16="master", state=state)
        train(trained, optimizer, 1)
        with torch.no_grad():
            trained[0][0].weight[3] = 0.75
        train(trained, optimizer, 1)
        assert (trained[0][0].weight[3] == 0.75).all()
        assert (optimizer.state_dict()["state"][0]["master"][3] == 0.75).all()


def test_low_bits_of_a_weight_that_other_code_has_set_to_zero_make_no_nan():
    trained = model()
    optimizer = AdamW(trained.parameters(), lr=1e-2, bf16="split")
    train(trained, optimizer, 2)
    weight = trained[0][0].weight
    assert (optimizer.state[weight]["low"] < 0).any()
    for zero in (0.0, -0.0):
        with torch.no_grad():
            weight.fill_(zero)
        train(trained, optimizer, 1)
        assert not weight.isnan().any()


def test_an_update_beside_its_state_that_fails_in_its_middle_is_refused_from_then_on(monkeypatch):
    from memscale.optim import widened

    trained = model()
    optimizer = AdamW(trained.parameters(), bf16="split")
    gradients(trained, 0)
    calls = []

    def fails_later(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) > 2:
            raise RuntimeError("broken")
        run(*arguments)

    run = widened.run_adamw
    with monkeypatch.context() as patch:
        patch.setattr(widened, "run_adamw", fails_later)
        with pytest.raises(RuntimeError, match="broken"):
            optimizer.step()
    for call in (optimizer.step, optimizer.finish_step):
        with pytest.raises(IntegrationError, match="Load model and optimizer from a checkpoint"):
            call()


def test_a_card_without_room_for_the_copies_leaves_the_step_to_be_repeated(monkeypatch):
    monkeypatch.undo()
    trained = model_of(2048, 2, torch.bfloat16)
    optimizer = AdamW(trained.parameters(), bf16="split")
    train(trained, optimizer, 1)
    gradients(trained, 1)
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2 * MB) / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            optimizer.step()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())
    optimizer.step()
    assert optimizer.state[trained[0][0].weight]["step"].item() == 2


def test_groups_have_forms_of_their_own():
    trained = nn.ModuleList([model(), model(), model_of(640, 1)])
    twins = copy.deepcopy(trained)
    groups = [{"params": list(part.parameters())} for part in trained]
    optimizer = AdamW([{**groups[0], "bf16": "master"}, *groups[1:]], lr=1e-2)
    alone = [AdamW(twins[0].parameters(), lr=1e-2, bf16="master")]
    alone += [torch.optim.AdamW(part.parameters(), lr=1e-2) for part in twins[1:]]
    for part, twin, own in zip(trained, twins, alone, strict=True):
        gradients(part, 0)
        gradients(twin, 0)
        own.step()
    trained[1][0][0].bias.grad = None
    optimizer.step()
    states = [optimizer.state.get(p, {}) for p in trained.parameters()]
    expected = [own.state[p] for own, twin in zip(alone, twins, strict=True) for p in twin.parameters()]
    assert not states[len(list(trained[0].parameters())) + 1], "it had no gradient"
    for state, other in zip(states, expected, strict=True):
        assert all(torch.equal(value, other[name]) for name, value in state.items())


@pytest.mark.parametrize("bf16", ["split", "master"])
@pytest.mark.parametrize("source", ["torch", "other form", "8 bits"])
def test_a_state_of_another_form_is_converted_alike_for_every_place(source, bf16):
    first = model()
    if source == "torch":
        begun: torch.optim.Optimizer = torch.optim.AdamW(first.parameters(), lr=1e-2)
        train(first, begun, 1)
    elif source == "other form":
        begun = AdamW(first.parameters(), lr=1e-2, bf16="master" if bf16 == "split" else "split")
        train(first, begun, 1)
    else:
        on_host = copy.deepcopy(first).cpu()
        begun = AdamW(on_host.parameters(), lr=1e-2, state_bits=8)
        for p in on_host.parameters():
            p.grad = torch.full_like(p, 0.01)
        begun.step()
    found = []
    for state in ("memory", "host", "disk"):
        second = copy.deepcopy(first)
        optimizer = AdamW(second.parameters(), lr=1e-2, bf16=bf16, state=state)
        optimizer.load_state_dict(begun.state_dict())
        if bf16 == "master":
            assert torch.equal(optimizer.state_dict()["state"][0]["master"].cpu(), second[0][0].weight.cpu().float())
        train(second, optimizer, 2, first=3)
        found.append((second, optimizer))
    assert_equal(found[0], found[1])
    assert_equal(found[0], found[2])


@pytest.mark.parametrize("bf16", ["split", "master"])
def test_a_states_place_may_change_between_steps(bf16):
    plain, trained = model(), model()
    expected, optimizer = (AdamW(m.parameters(), lr=1e-2, bf16=bf16) for m in (plain, trained))
    for step, (on_disk, on_host) in enumerate(((False, True), (True, False), (False, False), (False, True))):
        train(trained, optimizer, 1, first=step)
        optimizer._arrange(on_disk, False, on_host=on_host)
    optimizer._arrange(False, False)
    train(trained, optimizer, 1, first=4)
    train(plain, expected, 5)
    assert_equal((plain, expected), (trained, optimizer))


def test_a_nan_stays_one_and_its_neighbours_do_not_become_one():
    trained = model()
    optimizer = AdamW(trained.parameters(), lr=1e-2, bf16="split")
    gradients(trained, 0)
    trained[0][0].weight.grad[0, 0] = float("nan")
    optimizer.step()
    weight = trained[0][0].weight.detach().cpu()
    assert weight[0, 0].isnan() and weight.isnan().sum() == 1
    low = optimizer.state[trained[0][0].weight]["low"]
    assert low[0, 0].item() == 0


def test_a_plan_moves_the_state_and_keeps_its_budget():
    """Each place of the state has the bits of a run without a plan."""
    plain = model_of(1536, 4, torch.bfloat16)
    expected = AdamW(plain.parameters(), lr=1e-2, bf16="split")
    train(plain, expected, 3)
    state_bytes = 10 * sum(p.numel() for p in plain.parameters())
    assert state_bytes > 90 * MB
    trained = model_of(1536, 4, torch.bfloat16)
    optimizer = AdamW(trained.parameters(), lr=1e-2, bf16="split")
    before = torch.cuda.memory_allocated()
    budget = before + 60 * MB + 64 * MB  # gradients and buffers fit, the state does not
    config = memscale.Config(memory_budget_gb=budget / 1e9)
    memscale.apply_all_optimizations(trained, optimizer, config)
    torch.cuda.reset_peak_memory_stats()
    train(trained, optimizer, 3)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() <= budget
    executor = trained._memscale_executor
    assert executor.plan.step_options["state_on_host"]["chosen"]
    assert optimizer._place.planned_bytes() > 0.9 * state_bytes
    memscale.detach(trained)
    assert_equal((plain, expected), (trained, optimizer))


@pytest.mark.parametrize(("state", "most_mb"), [("memory", 17), ("host", 65), ("disk", 9)])
def test_an_update_takes_a_bounded_part_of_the_card(monkeypatch, state, most_mb):
    """Beside a state in memory, the temporaries of one piece. Plans count the others (step_options.h)."""
    monkeypatch.undo()
    trained = model_of(2048, 4, torch.bfloat16)
    optimizer = AdamW(trained.parameters(), bf16="split", state=state)
    train(trained, optimizer, 1)
    gradients(trained, 0)
    begun = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - begun <= most_mb * MB
    assert torch.cuda.memory_allocated() <= begun
