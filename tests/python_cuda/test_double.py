"""The double of torch's CUDA keeps the promises of tests/torch_double/README.md. Tests break each of its rules once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conftest import FOLDER, ROOT
from torch import nn

MB = 2**20
SLOW_NS = 300_000  # the longest time of a piece of work


def run_alone(code: str, rocm: bool = False) -> subprocess.CompletedProcess[str]:
    """Loads the double and torch in a new process, and runs the code there."""
    head = f"import torch_double\ntorch_double.load({str(FOLDER)!r}, rocm={rocm})\nimport ctypes, torch\n"
    return subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "torch_double")},
        capture_output=True,
        text=True,
        timeout=600,
    )


# ---- the host can't reach device memory -----------------------------------------------------------


@pytest.mark.parametrize("access", ["ctypes.string_at(x.data_ptr(), 4)", "ctypes.memset(x.data_ptr(), 0, 4)"])
def test_host_access_to_device_memory_ends_the_process(access):
    done = run_alone(f"x = torch.ones(8, device='cuda')\ntorch.cuda.synchronize()\nprint('made', flush=True)\n{access}")
    assert done.stdout == "made\n" and done.returncode == -signal.SIGSEGV, done.stderr


# ---- the host runs ahead ---------------------------------------------------------------------------


def test_operators_are_queued_with_their_shapes_known_and_run_later(double):
    x = torch.randn(8, 8, device="cuda")
    torch.cuda.synchronize()
    with double.stopped():
        y = (x @ x).relu().sum(1)
        assert y.shape == (8,)
        assert double.pending() >= 3
        assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert double.pending() == 0
    assert torch.equal(y.cpu(), (x.cpu() @ x.cpu()).relu().sum(1))


def test_the_first_call_of_an_operator_does_not_wait_either(double):
    x = torch.randn(5, 7, 3, device="cuda")
    with double.stopped():
        y = torch.cumsum(x, 1).logsumexp(2)  # shapes that no other test has
        assert y.shape == (5, 7) and double.pending() > 0


@pytest.mark.parametrize("read", ["item", "cpu", "tolist", "bool", "to_non_blocking", "nonzero", "mask"])
def test_reading_on_the_host_waits(double, read):
    double.schedule(1, SLOW_NS)
    x = torch.zeros((), device="cuda")
    for _ in range(20):
        x = x + 1
    got = {
        "item": lambda: x.item(),
        "cpu": lambda: float(x.cpu()),
        "tolist": lambda: x.tolist(),
        "bool": lambda: 20.0 if x == 20 else -1.0,
        "to_non_blocking": lambda: float(x.to("cpu", non_blocking=False)),
        "nonzero": lambda: 20.0 * x.reshape(1).nonzero().shape[0],
        "mask": lambda: x.reshape(1)[x.reshape(1) == 20].item(),
    }[read]()
    assert got == 20.0


def test_a_full_queue_makes_the_host_wait(double):
    x = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    double.schedule(1, SLOW_NS, queue_limit=4)
    for _ in range(50):
        x = x + 1
        assert double.pending() <= 4
    assert x[0].item() == 50


def test_a_failure_on_the_device_shows_where_the_host_waits():
    table, index = torch.randn(4, 2, device="cuda"), torch.tensor([9], device="cuda")
    torch.nn.functional.embedding(index.clamp(max=3), table)  # the same shapes: learned
    picked = torch.nn.functional.embedding(index, table)
    with pytest.raises(torch.AcceleratorError, match="asynchronous failure in aten::"):
        picked.cpu()
    torch.cuda.synchronize()  # once


# ---- streams must be ordered explicitly ---------------------------------------------------------


@pytest.mark.breaks_rules
@pytest.mark.parametrize("waits", [True, False])
def test_use_on_another_stream_needs_an_event(double, waits):
    side = torch.cuda.Stream()
    x = torch.randn(64, device="cuda")
    if waits:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.mul_(2)
    count, first = double.violations()
    assert (count == 0) == waits, first
    side.synchronize()


def test_a_wait_that_is_needed_also_gives_the_right_values(double):
    double.schedule(3, SLOW_NS)
    side, x = torch.cuda.Stream(), torch.zeros(64, device="cuda")
    for _ in range(5):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x += 1
        torch.cuda.current_stream().wait_stream(side)
        x *= 2
    assert x.cpu().eq(62).all()


@pytest.mark.breaks_rules
@pytest.mark.parametrize("recorded", [True, False])
def test_memory_used_on_another_stream_has_to_be_recorded(double, recorded):
    side, x = torch.cuda.Stream(), torch.ones(1000, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with double.stopped():
        with torch.cuda.stream(side):
            x.sum()
        if recorded:
            x.record_stream(side)
        address = x.data_ptr()
        del x
        again = torch.zeros(1000, device="cuda")
        assert (again.data_ptr() != address) == recorded
        assert (double.violations()[0] == 0) == recorded
    side.synchronize()
    del again
    torch.cuda.empty_cache()  # sees the end of the other stream's use
    assert torch.cuda.memory_reserved() == 0


def test_events_tell_what_is_done_and_when(double):
    double.schedule(5, SLOW_NS)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    x = torch.zeros(4, device="cuda")
    with double.stopped():
        begin.record()
        for _ in range(10):
            x = x + 1
        end.record()
        assert not end.query()
    end.synchronize()
    assert end.query() and begin.elapsed_time(end) > 0.0


@pytest.mark.breaks_rules
@pytest.mark.parametrize("waits", [True, False])
def test_pinned_memory_must_not_change_under_a_copy(double, waits):
    source = torch.ones(1000, pin_memory=True)
    assert source.is_pinned() and not torch.ones(4).is_pinned()
    with double.stopped():
        moved = source.to("cuda", non_blocking=True)
        if not waits:
            source.zero_()
    torch.cuda.synchronize()
    source.zero_()
    assert (double.violations()[0] == 0) == waits
    assert moved.cpu().eq(1).all() == waits


def test_a_failed_call_of_the_runtime_fails_the_threads_next_launch(double):
    x, runtime = torch.ones(4, device="cuda"), torch.cuda.cudart()
    assert double.last_error() == 0
    assert runtime.cudaHostUnregister(4096) != 0
    assert torch.ones(4).to("cuda").device.type == "cuda"  # a copy has an error of its own
    with ThreadPoolExecutor(1) as other:
        other.submit(lambda: x + 1).result()
    with pytest.raises(torch.AcceleratorError):
        x + 1
    assert (x + 1).tolist() == [2] * 4  # it is told once


def test_asking_for_the_last_error_forgets_it(double):
    x, runtime = torch.ones(4, device="cuda"), torch.cuda.cudart()
    assert runtime.cudaHostUnregister(4096) != 0
    assert double.last_error() != 0 and double.last_error() == 0
    assert (x + 1).tolist() == [2] * 4


def test_pinned_memory_is_given_out_again_after_its_copies_only(double):
    source = torch.ones(1000, pin_memory=True)
    address = source.data_ptr()
    with double.stopped():
        source.to("cuda", non_blocking=True)
        del source
        assert torch.empty(1000, pin_memory=True).data_ptr() != address


# ---- the caching allocator ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "allocated", "reserved"),
    [
        (1, 512, 2 * MB),
        (513, 1024, 2 * MB),
        (MB, MB, 2 * MB),
        (MB + 1, MB + 512, 20 * MB),
        (10 * MB - 512, 10 * MB - 512, 20 * MB),
        (10 * MB, 10 * MB, 10 * MB),
        (11 * MB + 1, 12 * MB, 12 * MB),  # a rest of at most 1 MB stays with the block
        (30 * MB, 30 * MB, 30 * MB),
    ],
)
def test_sizes_are_those_of_torch(requested, allocated, reserved):
    x = torch.empty(requested, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == allocated
    assert torch.cuda.memory_reserved() == reserved
    del x
    assert torch.cuda.memory_allocated() == 0 and torch.cuda.memory_reserved() == reserved
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def test_peaks_after_known_allocations():
    torch.cuda.reset_peak_memory_stats()
    a, b = (torch.empty(3 * MB, dtype=torch.uint8, device="cuda") for _ in range(2))
    del a
    address = b.data_ptr() - 3 * MB
    c = torch.empty(3 * MB // 2, dtype=torch.uint8, device="cuda")
    assert c.data_ptr() == address  # best fit: the 3 MB freed by `a`, not the 14 MB after `b`
    stats = torch.cuda.memory_stats()
    assert torch.cuda.max_memory_allocated() == 6 * MB and torch.cuda.memory_allocated() == 4.5 * MB
    assert torch.cuda.max_memory_reserved() == 20 * MB
    assert stats["inactive_split_bytes.all.current"] == 15.5 * MB
    assert stats["requested_bytes.all.peak"] == 6 * MB and stats["segment.large_pool.current"] == 1
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 4.5 * MB
    del b, c
    assert torch.cuda.memory_stats()["inactive_split_bytes.all.current"] == 0  # joined again


def test_freed_memory_is_handed_out_at_once_on_its_stream_and_not_on_another():
    x = torch.empty(1000, device="cuda")
    address = x.data_ptr()
    del x
    with torch.cuda.stream(torch.cuda.Stream()):
        assert torch.empty(1000, device="cuda").data_ptr() != address
    assert torch.empty(1000, device="cuda").data_ptr() == address


def test_a_device_that_is_full_raises_torchs_error_after_its_cache_was_freed(double):
    double.set_memory(0, 64 * MB)
    cached = torch.empty(40 * MB, dtype=torch.uint8, device="cuda")
    del cached
    x = torch.empty(50 * MB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["num_alloc_retries"] >= 1
    ooms = torch.cuda.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory. Tried to allocate"):
        torch.empty(20 * MB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["num_ooms"] == ooms + 1
    assert torch.cuda.mem_get_info() == (14 * MB, 64 * MB)
    double.set_memory(0, 64 * MB, taken_bytes=10 * MB)
    assert torch.cuda.mem_get_info() == (4 * MB, 64 * MB)
    del x


def test_a_memory_fraction_bounds_what_is_reserved(double):
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(30 * MB / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(40 * MB, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_storages_can_be_made_smaller_and_larger(double):
    x = torch.arange(1000.0, device="cuda")
    x.resize_(2000)
    assert torch.equal(x[:1000].cpu(), torch.arange(1000.0))


def test_storages_are_copied_as_on_the_host():
    import copy

    module = nn.BatchNorm1d(4).to("cuda")
    twin = copy.deepcopy(module)
    twin.running_mean.add_(1)
    assert module.running_mean.eq(0).all() and twin.running_mean.eq(1).all()
    assert torch.UntypedStorage(16, device="cuda").device.type == "cuda"


# ---- random numbers --------------------------------------------------------------------------------


def test_the_random_state_is_seed_and_offset_and_goes_there_and_back(double):
    torch.cuda.manual_seed(7)
    state = torch.cuda.get_rng_state()
    assert state.dtype == torch.uint8 and state.tolist() == [7] + [0] * 15
    with double.stopped():
        first = torch.rand(100, device="cuda")
        assert (
            int.from_bytes(bytes(torch.cuda.get_rng_state().tolist()[8:]), "little") > 0
        )  # the offset moves before the kernel runs
    second = torch.rand(100, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(100, device="cuda"), first) and not torch.equal(first, second)


def test_each_device_has_a_state_and_the_hosts_is_another():
    torch.manual_seed(3)
    here, there, host = torch.rand(9, device="cuda:0"), torch.rand(9, device="cuda:1"), torch.get_rng_state()
    assert torch.equal(here.cpu(), there.cpu())
    torch.rand(9, device="cuda:1")
    assert torch.equal(torch.get_rng_state(), host)
    assert not torch.equal(torch.cuda.get_rng_state(0), torch.cuda.get_rng_state(1))


def test_dropout_draws_from_the_device_and_the_same_twice():
    x, drop = torch.ones(1000, device="cuda"), nn.Dropout(0.3)
    torch.manual_seed(5)
    a = drop(x)
    torch.manual_seed(5)
    torch.rand(10)  # draws from the host's generator, which must not matter
    assert torch.equal(a, drop(x)) and 600 < int((a != 0).sum()) < 800


def test_generators_of_the_host_are_refused():
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.empty(3, device="cuda").normal_(generator=torch.Generator())


# ---- two devices -------------------------------------------------------------------------------------


def test_two_devices_with_memory_and_streams_of_their_own(double):
    double.schedule(2, SLOW_NS)
    x = torch.randn(1000, device="cuda:0")
    allocated = torch.cuda.memory_allocated(0)
    y = (x * 2).to("cuda:1") + 1
    with torch.cuda.device(1):
        z = torch.ones(4, device="cuda")
        assert torch.cuda.current_device() == 1 and z.device.index == 1
    assert torch.cuda.current_device() == 0
    assert torch.cuda.memory_allocated(1) == 4096 + 512 and torch.cuda.memory_allocated(0) == allocated
    assert torch.equal(y.cpu(), x.cpu() * 2 + 1)


@pytest.mark.parametrize("other", ["cuda:1", "cpu"])
def test_tensors_of_different_devices_are_refused(other):
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(4, device="cuda:0") + torch.ones(4, device=other)


# ---- the values are the CPU's, to the bit ------------------------------------------------------------

OPERATORS = {
    "matmul": lambda x: x @ x.transpose(1, 2),
    "linear": lambda x: nn.functional.linear(x, x[0, :3], x[0, 0, :3]),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: nn.functional.layer_norm(x, x.shape[-1:]),
    "group_norm": lambda x: nn.functional.group_norm(x, 2),
    "batch_norm": lambda x: nn.functional.batch_norm(x, None, None, training=True),
    "gelu": nn.functional.gelu,
    "conv": lambda x: nn.functional.conv1d(x, x[:, :, :3]),
    "conv_transpose": lambda x: nn.functional.conv_transpose1d(x, x[:4, :, :3].contiguous()),
    "sum": lambda x: x.sum(),
    "sort": lambda x: x.sort(descending=True)[1],
    "topk": lambda x: x.topk(2)[0],
    "index": lambda x: x[torch.tensor([1, 0, 1], device=x.device)],
    "where": lambda x: torch.where(x > 0, x, 0.5),
    "cat": lambda x: torch.cat([x, x.double()], 1),
    "views": lambda x: x.permute(2, 0, 1)[:, 1:].reshape(6, -1).t(),
    "fft": lambda x: torch.fft.rfft(x).conj().abs(),
    "attention": lambda x: torch.ops.aten._scaled_dot_product_attention_math(x[None], x[None], x[None])[0],
    "cross_entropy": lambda x: nn.functional.cross_entropy(x[0], torch.tensor([0, 1, 2, 3], device=x.device)),
    "interpolate": lambda x: nn.functional.interpolate(x, scale_factor=1.7),
    "foreach": lambda x: torch._foreach_sqrt([x.abs(), x.square()])[1],
    "arange": lambda x: torch.arange(2.0, 9.0, 0.5, device=x.device),
    "unique": lambda x: torch.unique((x * 2).int()),
    "out": lambda x: torch.add(x, 1, out=torch.empty(0, device=x.device)),
    "bfloat16": lambda x: nn.functional.layer_norm(x.bfloat16(), x.shape[-1:]) @ x.bfloat16().transpose(1, 2),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_values_and_layouts_are_those_of_the_cpus_kernels(double, name):
    x = torch.randn(4, 4, 6, generator=torch.Generator().manual_seed(1))
    double.schedule(1, 50_000)
    for _ in range(2):  # learned, and known
        here, there = OPERATORS[name](x), OPERATORS[name](x.to("cuda"))
        assert there.is_cuda and there.shape == here.shape and there.dtype == here.dtype
        assert there.stride() == here.stride()
        assert torch.equal(there.cpu(), here)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_cells_that_only_cuda_has_agree_with_the_cpus(layer):
    torch.manual_seed(0)
    here = layer(6, 5, batch_first=True, dtype=torch.float64)
    there = layer(6, 5, batch_first=True, dtype=torch.float64)
    there.load_state_dict(here.state_dict())
    there.to("cuda")
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    here(x)[0].square().sum().backward()
    there(x.to("cuda"))[0].square().sum().backward()
    for a, b in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-12, atol=1e-12)


def test_a_training_step_has_the_cpus_bits(double):
    def train(device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(3):
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step)).to(device)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach().cpu() for p in model.parameters()]

    double.schedule(1, 100_000)
    assert all(torch.equal(a, b) for a, b in zip(train("cpu"), train("cuda"), strict=True))


def test_fake_tensors_of_the_device_go_through_a_whole_step():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(4, 4, device="cuda"), nn.Dropout(0.1))
        model(torch.randn(2, 4, device="cuda")).sum().backward()
        assert model[0].weight.grad.is_cuda


def test_the_profiler_records_events_around_operators():
    from torch.profiler import ProfilerActivity, profile

    x = torch.randn(8, 8, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        (x @ x).relu()
        torch.cuda.synchronize()
    times = {event.key: event.device_time_total for event in seen.key_averages()}
    assert times["aten::mm"] > 0 and times["aten::relu"] > 0
