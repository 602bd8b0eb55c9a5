"""memscale.optim on a GPU: state in host memory or on disk, and gradient release, give the bits of torch's AdamW on the
card, by the user's choice and by a plan's."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import mmap
from contextlib import suppress

import pytest
import torch
from cuda_support import scheduled
from test_promises import waits
from torch import nn

import memscale
from memscale import _core
from memscale.device import kind_of
from memscale.errors import IntegrationError
from memscale.optim import AdamW

MB = 2**20


def model_of(width: int = 640, layers: int = 4, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Its states fill several buffers of 4096 elements; the biases are too small to be moved."""
    torch.manual_seed(0)
    made = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)]
    return nn.Sequential(*made).to("cuda", dtype)


def gradients(model: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    first = next(model.parameters())
    x = torch.randn(8, first.shape[1], device="cuda", dtype=first.dtype)
    model(x).square().mean().backward()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4, first: int = 0) -> None:
    for seed in range(first, first + steps):
        gradients(model, seed)
        optimizer.step()
        optimizer.zero_grad()


def values_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Copies of parameters and states, on the host."""
    found = {name: p.detach().cpu() for name, p in model.named_parameters()}
    for index, values in optimizer.state_dict()["state"].items():
        found |= {f"{index} {name}": value.detach().cpu().clone() for name, value in values.items()}
    return found


def assert_equal(expected, found) -> None:
    """Parameters and states of two pairs of model and optimizer, or of their `values_of`."""
    first, second = (pair if isinstance(pair, dict) else values_of(*pair) for pair in (expected, found))
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.fixture
def small_buffers(monkeypatch):
    """Buffers of a few thousand elements, so that parameters are cut and share buffers."""
    monkeypatch.setattr(_core, "optimizer_host_elements", lambda arrays, item_bytes: 70_000)


OPTIONS = {
    "plain": {},
    "amsgrad": {"amsgrad": True},
    "maximize": {"maximize": True, "weight_decay": 0.1},
    "loop": {"foreach": False},
    "foreach": {"foreach": True, "betas": (0.8, 0.99)},
}


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("state", ["host", "disk"])
def test_state_off_the_card_has_torchs_bits(options, dtype, state):
    width = 1031 if state == "disk" else 640  # two chunks of fp32, and a half word left of bf16
    plain, model = model_of(width, dtype=dtype), model_of(width, dtype=dtype)
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2, **options)
    optimizer = AdamW(model.parameters(), lr=1e-2, state=state, **options)
    with scheduled(1):
        train(plain, reference)
    with scheduled(2):
        train(model, optimizer)
    assert_equal((plain, reference), (model, optimizer))
    assert list(optimizer.state[model[0][0].weight]) == ["step"]
    assert optimizer.state_dict()["state"][0]["exp_avg"].device.type == "cpu"


@pytest.mark.usefixtures("small_buffers")
def test_schedules_change_no_bit():
    plain = model_of()
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    train(plain, reference)
    for seed in range(20):
        model = model_of()
        optimizer = AdamW(model.parameters(), lr=1e-2, state="host")
        with scheduled(seed):
            train(model, optimizer)
            assert_equal((plain, reference), (model, optimizer))


@pytest.mark.usefixtures("small_buffers")
def test_more_buffers_change_no_bit_and_are_freed():
    buffers = 6 * _core.OPTIMIZER_HOST_BUFFER_BYTES
    plain = model_of()
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    train(plain, reference)
    for seed in range(10):
        model = model_of()
        optimizer = AdamW(model.parameters(), lr=1e-2)
        optimizer._arrange(False, True, on_host=True, buffer_bytes=buffers)
        with scheduled(seed):
            train(model, optimizer, 3)
            before = torch.cuda.memory_allocated()
            gradients(model, 3)  # updates, and leaves the buffers for the step's other parameters
            assert buffers <= torch.cuda.memory_allocated() - before < buffers + MB
            optimizer._arrange(False, True, on_host=True)
            usual = _core.OPTIMIZER_HOST_BUFFERS * _core.OPTIMIZER_HOST_BUFFER_BYTES
            assert usual <= torch.cuda.memory_allocated() - before < usual + MB
            optimizer.step()
            optimizer.zero_grad()
            assert torch.cuda.memory_allocated() <= before
            assert_equal((plain, reference), (model, optimizer))


def test_a_loaded_checkpoint_ends_a_step_that_failed_in_backward():
    plain, model = model_of(), model_of()
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    optimizer = AdamW(model.parameters(), lr=1e-2, state="host", release_gradients=True)
    train(plain, reference, 2)
    train(model, optimizer, 2)
    saved, parameters = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    before = torch.cuda.memory_allocated()

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    handle = model[0].register_full_backward_hook(fail)  # after the later layers' updates
    with pytest.raises(ZeroDivisionError):
        gradients(model, 2)
    handle.remove()
    model.load_state_dict(parameters)
    optimizer.load_state_dict(saved)
    optimizer.zero_grad()
    assert_equal((plain, reference), (model, optimizer))
    assert torch.cuda.memory_allocated() < before + MB
    train(plain, reference, 2, first=2)
    train(model, optimizer, 2, first=2)
    assert_equal((plain, reference), (model, optimizer))


def test_groups_layouts_and_missing_gradients(small_buffers):
    def make(kind, **options):
        torch.manual_seed(0)
        conv = nn.Conv2d(64, 64, 3).to("cuda", memory_format=torch.channels_last)
        wide, unused = nn.Linear(300, 300).to("cuda"), nn.Linear(300, 300).to("cuda")
        model = nn.ModuleList([conv, wide, unused])
        groups = [{"params": conv.parameters(), "lr": 1e-2}, {"params": [*wide.parameters(), *unused.parameters()]}]
        return model, kind(groups, lr=1e-3, weight_decay=0.1, **options)

    def run(model, optimizer):
        for seed in range(3):
            torch.manual_seed(seed)
            x = torch.randn(2, 64, 8, 8, device="cuda")
            loss = model[0](x).square().mean() + model[1](torch.randn(4, 300, device="cuda")).square().mean()
            if seed == 2:
                loss = loss + model[2](torch.randn(4, 300, device="cuda")).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    expected = run(*make(torch.optim.AdamW))
    for state in ("host", "disk"):
        assert_equal(expected, run(*make(AdamW, state=state)))


def test_the_card_holds_only_the_buffers():
    model = model_of(2048, 4)
    optimizer = AdamW(model.parameters(), state="host")
    gradients(model, 0)
    begun = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    peak, after = torch.cuda.max_memory_allocated() - begun, torch.cuda.memory_allocated() - begun
    assert after < MB  # the states of biases
    assert 48 * MB <= peak <= 65 * MB


def test_state_on_disk_takes_a_chunk_of_the_card():
    model = model_of(2048, 4)
    optimizer = AdamW(model.parameters(), state="disk")
    gradients(model, 0)
    begun = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    peak, after = torch.cuda.max_memory_allocated() - begun, torch.cuda.memory_allocated() - begun
    assert after < MB  # the states of biases
    assert peak <= 9 * MB
    assert optimizer._place.disk.stats()["disk_bytes"] >= 128 * MB


def test_a_states_place_may_change_between_steps():
    plain, model = model_of(), model_of()
    reference, optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2), AdamW(model.parameters(), lr=1e-2)
    for step, (on_disk, on_host) in enumerate(((False, True), (True, False), (False, True), (True, False))):
        train(model, optimizer, 1, first=step)
        optimizer._arrange(on_disk, False, on_host=on_host)
        place = optimizer._place
        assert [len(away or ()) for away in (place.disk, place.host)] == [4 * on_disk, 4 * on_host]
    optimizer._arrange(False, False)
    train(model, optimizer, 1, first=4)
    train(plain, reference, 5)
    assert optimizer.state[model[0][0].weight]["exp_avg"].is_cuda
    assert_equal((plain, reference), (model, optimizer))


@pytest.mark.parametrize("to_disk", [False, True])
def test_a_part_of_the_states_leaves_the_card(to_disk):
    plain, model = model_of(), model_of()
    reference, optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2), AdamW(model.parameters(), lr=1e-2)
    one = 8 * model[0][0].weight.numel()
    for step, wanted in enumerate((2 * one, one + 1, 3 * one, 1, 4 * one)):
        optimizer._arrange(to_disk, False, on_host=not to_disk, moved_bytes=wanted)
        train(model, optimizer, 1, first=step)
        away = optimizer._place.disk if to_disk else optimizer._place.host
        assert len(away) == -(-wanted // one)
        on_card = [p for p in model.parameters() if optimizer.state[p].get("exp_avg") is not None and p.dim() == 2]
        assert len(on_card) == 4 - len(away) and all(optimizer.state[p]["exp_avg"].is_cuda for p in on_card)
    train(plain, reference, 5)
    assert_equal((plain, reference), (model, optimizer))


def test_an_update_on_the_card_that_fails_after_others_interrupts_the_step(monkeypatch):
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    optimizer._arrange(False, False, on_host=True, moved_bytes=8 * model[0][0].weight.numel())
    train(model, optimizer, 1)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    gradients(model, 1)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr("memscale.optim.adamw.update_by_torch", fail)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        optimizer.step()
    monkeypatch.undo()
    assert "load model and optimizer from a checkpoint" in caught.value.__notes__[0]
    with pytest.raises(IntegrationError, match="interrupted"):
        optimizer.step()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    optimizer.step()
    plain = model_of()
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    train(plain, reference, 2)
    assert_equal((plain, reference), (model, optimizer))


def test_the_host_does_not_wait_for_a_step(double):
    model = model_of()
    optimizer = AdamW(model.parameters(), state="host")
    train(model, optimizer, 1)
    gradients(model, 1)
    torch.cuda.synchronize()
    assert not waits(double, optimizer.step)


def test_an_exported_state_has_the_next_steps_values():
    model = model_of()
    optimizer = AdamW(model.parameters(), state="host")
    train(model, optimizer, 1)
    shown = optimizer.state_dict()["state"][0]["exp_avg"]
    before = shown.clone()
    with scheduled(3):
        gradients(model, 1)
        optimizer.step()
        assert not torch.equal(before, shown)
        assert torch.equal(shown, optimizer.state_dict()["state"][0]["exp_avg"])


@pytest.mark.parametrize("state", ["host", "disk"])
def test_checkpoints_go_to_torch_and_back(state):
    plain, model = model_of(), model_of()
    reference, optimizer = torch.optim.AdamW(plain.parameters()), AdamW(model.parameters(), state=state)
    train(plain, reference, 2)
    train(model, optimizer, 2)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    saved = torch.load(file)
    tensors = [value for values in saved["state"].values() for value in values.values()]
    assert {tensor.device.type for tensor in tensors} == {"cpu"}  # also those of biases, which the card has
    other = torch.optim.AdamW(model.parameters())
    other.load_state_dict(saved)
    again = AdamW(model.parameters(), state=state)
    again.load_state_dict(other.state_dict())
    train(plain, reference, 2, first=2)
    train(model, again, 2, first=2)
    assert_equal((plain, reference), (model, again))


@pytest.mark.parametrize("state", ["host", "disk"])
def test_a_copy_has_states_of_its_own(state):
    model = model_of()
    optimizer = AdamW(model.parameters(), state=state)
    train(model, optimizer, 2)
    twin_model, twin = copy.deepcopy((model, optimizer))
    train(model, optimizer, 2, first=2)
    train(twin_model, twin, 2, first=2)
    assert_equal((model, optimizer), (twin_model, twin))
    assert len(getattr(twin._place, state)) == 4


def test_without_pinned_memory_the_bits_are_the_same(double):
    plain, model = model_of(), model_of()
    reference = torch.optim.AdamW(plain.parameters())
    optimizer = AdamW(model.parameters(), state="host")
    train(plain, reference)
    double.fail("cuMemHostRegister_v2", 0, 2)
    train(model, optimizer)
    assert_equal((plain, reference), (model, optimizer))


def test_memory_that_cannot_be_pinned_fails_no_later_kernel():
    """The runtime keeps the error of a failed call, and the next kernel would raise it."""
    pages = mmap.mmap(-1, 1 << 16)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    kind = kind_of(torch.device("cuda"))
    assert kind.pin(address, len(pages)) and not kind.pin(address, len(pages))
    assert (torch.ones(3, device="cuda") + 1).sum().item() == 6
    assert kind.unpin(address) and not kind.unpin(address)
    assert (torch.ones(3, device="cuda") + 1).sum().item() == 6


def test_pinned_memory_is_given_back():
    model = model_of()
    optimizer = AdamW(model.parameters(), state="host")
    train(model, optimizer, 1)
    host = optimizer._place.host
    moment = host._arrays[model[0][0].weight]["exp_avg"]
    address = moment.data_ptr()
    kind = kind_of(torch.device("cuda"))
    assert not kind.pin(address, moment.nbytes)  # it is registered already
    del moment, host, optimizer
    gc.collect()
    assert not kind.unpin(address)  # it isn't any more


@pytest.mark.parametrize(("state", "repeat"), [("host", "step"), ("disk", "finish_step")])
def test_a_card_without_room_for_the_buffers_leaves_the_step_to_be_repeated(state, repeat):
    gc.collect()
    torch.cuda.empty_cache()
    plain, model = model_of(), model_of()
    reference, optimizer = torch.optim.AdamW(plain.parameters()), AdamW(model.parameters(), state=state)
    train(plain, reference, 3)
    train(model, optimizer, 2)
    gradients(model, 2)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
    taken = []
    try:
        for size in (2 * MB, MB + 1, MB):  # of both pools
            with suppress(torch.OutOfMemoryError):
                while True:
                    taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        with pytest.raises(torch.OutOfMemoryError):
            optimizer.step()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    taken.clear()
    getattr(optimizer, repeat)()
    optimizer.zero_grad()
    assert_equal((plain, reference), (model, optimizer))


@pytest.mark.parametrize("state", ["host", "disk"])
def test_a_step_that_fails_in_its_middle_is_refused_from_then_on(monkeypatch, state):
    from memscale.optim import widened

    def fails(*_):
        raise RuntimeError("broken")

    model = model_of()
    optimizer = AdamW(model.parameters(), state=state)
    gradients(model, 0)
    with monkeypatch.context() as patch:
        patch.setattr(widened, "run_adamw", fails)
        with pytest.raises(RuntimeError, match="broken"):
            optimizer.step()
    for call in (optimizer.step, optimizer.finish_step):
        with pytest.raises(IntegrationError, match="Load model and optimizer from a checkpoint"):
            call()


# ---- gradient release ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("state", ["memory", "host", "disk"])
def test_released_gradients_give_torchs_bits(state):
    plain, model = model_of(), model_of()
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    optimizer = AdamW(model.parameters(), lr=1e-2, state=state, release_gradients=True)
    with scheduled(5):
        train(plain, reference)
    with scheduled(6):
        for seed in range(4):
            gradients(model, seed)
            assert all(p.grad is None for p in model.parameters())
            optimizer.step()
    assert_equal((plain, reference), (model, optimizer))


def test_a_state_is_not_read_in_the_middle_of_a_step():
    model = model_of()
    optimizer = AdamW(model.parameters(), state="host", release_gradients=True)
    gradients(model, 0)
    with pytest.raises(IntegrationError, match="before you read the state"):
        optimizer.state_dict()
    optimizer.step()
    optimizer.state_dict()


def test_released_gradients_under_a_scaler_and_accumulation():
    plain, model = model_of(), model_of()
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    optimizer = AdamW(model.parameters(), lr=1e-2, release_gradients=True)
    gradients(plain, 0)
    gradients(plain, 1)
    reference.step()
    with optimizer.accumulate():
        gradients(model, 0)
    gradients(model, 1)
    optimizer.step()
    assert_equal((plain, reference), (model, optimizer))
    gradients(model, 2)
    with pytest.raises(IntegrationError, match="clipped"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


# ---- chosen by a plan ------------------------------------------------------------------------------------


def wide_model() -> nn.Module:
    """64 MiB of parameters, 128 MiB of state and few activations."""
    return model_of(2048, 4)


def planned(mode: str, budget_mb: float | None, **settings):
    """Trains under a plan; returns model, optimizer and executor, and the peak."""
    model = wide_model()
    config = memscale.Config(
        force_optimize=budget_mb is None,
        memory_budget_gb=None if budget_mb is None else budget_mb / 1000,
        mode=mode,
        enable_logging=False,
        **settings,
    )
    model, optimizer = memscale.apply_all_optimizations(model, AdamW(model.parameters(), lr=1e-2), config)
    torch.cuda.reset_peak_memory_stats()
    train(model, optimizer, 4)
    return model, optimizer, model._memscale_executor, torch.cuda.max_memory_allocated()


@pytest.fixture
def expected():
    """The values of torch's AdamW after four and five steps, and the run's peak. Nothing of it stays on the card."""
    plain = wide_model()
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    torch.cuda.reset_peak_memory_stats()
    train(plain, reference, 4)
    peak, four = torch.cuda.max_memory_allocated(), values_of(plain, reference)
    train(plain, reference, 1, first=4)
    return four, values_of(plain, reference), peak


@pytest.mark.double
def test_a_plan_moves_state_to_host_memory_and_detach_takes_it_back(expected):
    four, five, unmodified = expected
    base = 2 * 64 * MB  # parameters and gradients stay
    budget_mb = (base + 100 * MB) / 1e6
    model, optimizer, executor, peak = planned("balanced", budget_mb)
    option = executor.plan.step_options["state_on_host"]
    assert option["chosen"] and option["saved_bytes"] > 0
    assert executor.plan.step_options["state_on_disk"]["rule"] == "host_has_room"
    assert "state_on_host is on" in executor.plan.explain()
    assert list(optimizer.state[model[0][0].weight]) == ["step"]
    assert peak <= budget_mb * 1e6 < unmodified
    assert 0.92 * peak <= executor.plan.predicted_peak_bytes <= 1.08 * peak
    memscale.detach(model)
    assert optimizer.state[model[0][0].weight]["exp_avg"].is_cuda
    assert_equal(four, (model, optimizer))
    train(model, optimizer, 1, first=4)
    assert_equal(five, (model, optimizer))


@pytest.mark.double
def test_a_plan_moves_state_to_disk_if_host_memory_has_no_room(expected):
    four, five, unmodified = expected
    budget_mb = (2 * 64 * MB + 60 * MB) / 1e6
    model, optimizer, executor, peak = planned("balanced", budget_mb, max_cpu_offload_gb=0.06)
    options = executor.plan.step_options
    assert options["state_on_disk"]["chosen"] and options["state_on_host"]["rule"] == "host_cap"
    assert peak <= budget_mb * 1e6 < unmodified
    assert 0.92 * peak <= executor.plan.predicted_peak_bytes <= 1.08 * peak
    memscale.detach(model)
    assert optimizer.state[model[0][0].weight]["exp_avg"].is_cuda
    assert_equal(four, (model, optimizer))
    train(model, optimizer, 1, first=4)
    assert_equal(five, (model, optimizer))


def test_a_plan_releases_gradients_too(expected):
    four, _, _ = expected
    model, optimizer, executor, _ = planned("aggressive", None)
    chosen = {name for name, option in executor.plan.step_options.items() if option["chosen"]}
    assert chosen >= {"state_on_host", "gradient_release"}, executor.plan.explain()
    memscale.detach(model)
    assert_equal(four, (model, optimizer))


@pytest.mark.double
def test_a_plan_may_give_state_larger_buffers_and_its_peak_holds():
    def make() -> nn.Module:
        return model_of(3072, 4)  # each layer has 38 MB of gradients and 75 MB of state

    def trained(budget_bytes: float):
        model = make()
        config = memscale.Config(memory_budget_gb=budget_bytes / 1e9, mode="aggressive", enable_logging=False)
        model, optimizer = memscale.apply_all_optimizations(model, AdamW(model.parameters(), lr=1e-2), config)
        torch.cuda.reset_peak_memory_stats()
        train(model, optimizer, 4)
        return model, optimizer

    def smallest() -> int:
        try:
            trained(MB)
        except memscale.BudgetInfeasibleError as error:  # its traceback holds the model
            return error.smallest_budget_bytes
        raise AssertionError

    least = smallest()
    gc.collect()
    plain = make()
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    train(plain, reference, 4)
    expected = values_of(plain, reference)
    del plain, reference
    model, optimizer = trained(least + 60e6)
    peak = torch.cuda.max_memory_allocated()
    plan = model._memscale_executor.plan
    # Whether it is chosen depends on the machine's rates.
    assert plan.step_options["state_read_ahead"]["rule"] == "pressure"
    assert peak <= plan.predicted_peak_bytes + plan.reserve_bytes <= least + 60e6
    memscale.detach(model)
    assert_equal(expected, (model, optimizer))


def test_rules_say_why_state_stays_on_the_card():
    model = wide_model()
    for settings, optimizer, rule in (
        ({"mode": "conservative"}, AdamW(model.parameters()), "mode"),
        ({"enable_offloading": False}, AdamW(model.parameters()), "flag_off"),
        ({"max_cpu_offload_gb": 0.01}, AdamW(model.parameters()), "host_cap"),
        ({}, torch.optim.AdamW(model.parameters()), "other_optimizer"),
        ({}, AdamW(model.parameters(), fused=True), "other_optimizer"),
        ({}, AdamW(model.parameters(), state="host"), "other_optimizer"),
    ):
        config = memscale.Config(force_optimize=True, enable_logging=False, **settings)
        with memscale.optimize(model, optimizer, config) as executor:
            train(model, optimizer, 1)
            assert executor.plan.step_options["state_on_host"]["rule"] == rule
