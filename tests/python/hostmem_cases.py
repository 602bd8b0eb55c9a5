"""hostmem under real torch: every CPU storage of 128 KiB and more is counted to the page, results don't change, and
resident memory follows the live bytes."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from time_limits import HANG_SECONDS

torch = pytest.importorskip("torch")
nn = torch.nn

from memscale import _core  # noqa: E402

MIB = 1 << 20
SMALLEST = 128 << 10  # bytes of the smallest storage that hostmem maps (MS_HOSTMEM_MIN_BYTES)
PAGE = os.sysconf("SC_PAGESIZE")


def whole_pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def counted(storages: dict[int, int]) -> int:
    """The live bytes that hostmem must report for storages {address: bytes}."""
    return sum(whole_pages(size) for size in storages.values() if size >= SMALLEST)


def storages_of(*tensors) -> dict[int, int]:
    storages = (tensor.untyped_storage() for tensor in tensors if tensor is not None)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def live_bytes() -> int:
    return _core.hostmem_stats()["live_bytes"]


def is_ours(tensor) -> bool:
    found = _core.hostmem_find(tensor.untyped_storage().data_ptr())
    return found is not None and found[1] == whole_pages(tensor.untyped_storage().nbytes())


@pytest.fixture(autouse=True)
def _nothing_of_other_tests():
    """A failed backward holds its graph's tensors until the thread's next backward, so this fixture runs one."""
    torch.ones(1, requires_grad=True).sum().backward()
    gc.collect()


@pytest.fixture
def hostmem():
    gc.collect()
    assert live_bytes() == 0
    means = _core.hostmem_install()
    if means != "slots":
        _core.hostmem_uninstall()
        pytest.skip(f"torch's allocator has no slots to take here: {_core.log_drain()}")
    yield _core
    _core.hostmem_uninstall()
    gc.collect()
    stats = _core.hostmem_stats()
    assert stats["live_bytes"] == 0 and stats["live_blocks"] == 0
    assert stats["cached_bytes"] == 0 and stats["means"] == "none"


# ---- models ---------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(512, 1536)
        self.out = nn.Linear(512, 512)

    def forward(self, x):
        shape = (x.shape[0], x.shape[1], 3, 8, 64)
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) / 8.0, dim=-1)
        weights = nn.functional.dropout(weights, 0.1, self.training)
        return self.out((weights @ v).transpose(1, 2).reshape(x.shape))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(256, 512, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 512, 3, stride=2, padding=1),
        nn.GELU(),
    )


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.LayerNorm(3072), nn.Linear(3072, 768))


CASES = {
    "linear": (linear, (512, 768)),
    "convolution": (convolutional, (8, 3, 64, 64)),
    "attention": (Attention, (4, 256, 512)),
    "attention of torch": (
        lambda: nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True),
        (4, 256, 512),
    ),
    "recurrent": (Recurrent, (16, 32, 256)),
}


def build(name: str):
    make, shape = CASES[name]
    torch.manual_seed(5)
    return make(), torch.randn(shape, requires_grad=True)


def train_once(name: str):
    model, x = build(name)
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach(), x.grad, [p.grad for p in model.parameters()], list(model.buffers())


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in tensors_of(part)]


# ---- counting ---------------------------------------------------------------


def test_storages_from_128_kib_on_are_ours(hostmem):
    for size in (SMALLEST, SMALLEST + 1, MIB, 5 * MIB + 123):
        tensor = torch.empty(size, dtype=torch.uint8)
        assert is_ours(tensor)
        inside = _core.hostmem_find(tensor.data_ptr() + size - 1)
        assert inside == _core.hostmem_find(tensor.data_ptr())
        assert inside[0] == tensor.data_ptr()
        assert live_bytes() == whole_pages(size)
        del tensor
        assert live_bytes() == 0
    small = torch.empty(SMALLEST - 1, dtype=torch.uint8)
    assert _core.hostmem_find(small.data_ptr()) is None
    assert live_bytes() == 0


def test_a_tensor_from_before_stays_foreign():
    before = torch.ones(MIB)
    _core.hostmem_install()
    try:
        assert _core.hostmem_find(before.data_ptr()) is None
        assert before.sum().item() == MIB
        del before
        assert live_bytes() == 0
    finally:
        _core.hostmem_uninstall()


@pytest.mark.parametrize("name", CASES)
def test_live_bytes_are_exact_after_forward_and_after_backward(hostmem, name):
    model, x = build(name)
    held = storages_of(x, *model.parameters(), *model.buffers())
    assert live_bytes() == counted(held)

    saved: list[torch.Tensor] = []

    def pack(tensor):
        saved.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = model(x)
    assert counted(storages_of(*saved)) > 2 * MIB
    assert live_bytes() == counted(held | storages_of(y, *saved))

    saved.clear()
    y.backward(torch.ones_like(y))
    gc.collect()
    held |= storages_of(y, x.grad, *(p.grad for p in model.parameters()))
    assert live_bytes() == counted(held)
    assert hostmem.hostmem_stats()["peak_live_bytes"] > counted(held)


@pytest.mark.parametrize("ceiling", [0, 1 << 40])
@pytest.mark.parametrize("name", CASES)
def test_results_do_not_change(hostmem, name, ceiling):
    hostmem.hostmem_uninstall()
    expected = tensors_of(train_once(name))
    again = tensors_of(train_once(name))
    hostmem.hostmem_install()
    hostmem.hostmem_set_ceiling(ceiling)
    train_once(name)  # in the next call, blocks from the cache have old contents
    actual = tensors_of(train_once(name))
    assert all(torch.equal(a, b) for a, b in zip(expected, again, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))


def test_operators_allocate_through_the_slots(hostmem):
    made = {
        "fft": torch.fft.rfft(torch.randn(1024, 1024)),
        "linalg": torch.linalg.qr(torch.randn(768, 768))[0],
        "sort": torch.sort(torch.randn(1 << 20)).indices,
        "index": torch.randn(4096, 256)[torch.randperm(4096)],
        "cat": torch.cat([torch.randn(256, 1024)] * 3),
        "bfloat16": torch.randn(1024, 1024).bfloat16(),
    }
    assert {name: is_ours(tensor) for name, tensor in made.items()} == dict.fromkeys(made, True)


def test_threads_make_and_free_each_others_tensors(hostmem):
    hostmem.hostmem_set_ceiling(64 * MIB)
    shelf: list[torch.Tensor | None] = [None] * 8
    wrong: list[str] = []

    def work(number: int) -> None:
        for i in range(100):
            value = number * 1000 + i
            size = MIB // 4 + (i % 5) * 50_000
            old, shelf[(i * 7 + number) % 8] = (
                shelf[(i * 7 + number) % 8],
                torch.full((size,), value),
            )
            if old is not None and not torch.equal(old, old[:1].expand_as(old)):
                wrong.append(f"thread {number}, round {i}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert live_bytes() == counted(storages_of(*shelf))
    shelf.clear()
    stats = hostmem.hostmem_stats()
    assert stats["live_bytes"] == 0
    assert 0 < stats["cached_bytes"] <= 64 * MIB
    assert stats["reused_count"] > 100


# ---- neighbours -------------------------------------------------------------


def test_numpy_shares_blocks_both_ways(hostmem):
    numpy = pytest.importorskip("numpy")
    foreign = numpy.arange(MIB, dtype=numpy.float32)
    tensor = torch.from_numpy(foreign)
    assert _core.hostmem_find(tensor.data_ptr()) is None
    del foreign
    assert tensor[-1].item() == MIB - 1
    del tensor

    tensor = torch.arange(MIB, dtype=torch.float32)
    array = tensor.numpy()
    del tensor
    assert live_bytes() == 4 * MIB
    assert array[-1] == MIB - 1
    del array
    assert live_bytes() == 0


def test_save_and_load(hostmem, tmp_path):
    tensor = torch.randn(3, MIB)
    torch.save({"tensor": tensor}, tmp_path / "file.pt")
    loaded = torch.load(tmp_path / "file.pt")["tensor"]
    assert is_ours(loaded)
    assert torch.equal(tensor, loaded)
    mapped = torch.load(tmp_path / "file.pt", mmap=True)["tensor"]
    assert _core.hostmem_find(mapped.data_ptr()) is None
    assert torch.equal(tensor, mapped)


def test_shared_memory_tensors_are_foreign(hostmem):
    tensor = torch.randn(MIB)
    copy = tensor.clone()
    tensor.share_memory_()
    assert _core.hostmem_find(tensor.data_ptr()) is None
    assert torch.equal(tensor, copy)
    assert live_bytes() == 4 * MIB


class Blocks(torch.utils.data.Dataset):
    """Its items are parts of a tensor that workers inherit."""

    def __init__(self):
        self.source = torch.randn(12, 512, 1024)

    def __len__(self):
        return len(self.source)

    def __getitem__(self, i):
        scratch = torch.empty(2 * MIB).fill_(float(i))
        assert _core.hostmem_find(scratch.data_ptr()) is not None
        assert _core.hostmem_stats()["cached_bytes"] == 0
        return self.source[i] * 2.0 + (scratch[-1] - float(i))


def test_loader_workers_use_what_they_inherit(hostmem):
    hostmem.hostmem_set_ceiling(1 << 30)
    dataset = Blocks()
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=3, num_workers=2, multiprocessing_context="fork", timeout=HANG_SECONDS
    )
    for _ in range(2):
        batches = list(loader)
        assert torch.equal(torch.cat(batches), dataset.source * 2.0)
    del batches, loader
    gc.collect()
    assert live_bytes() == counted(storages_of(dataset.source))


def test_a_child_counts_its_own_blocks(hostmem):
    hostmem.hostmem_set_ceiling(1 << 30)
    kept = torch.full((MIB,), 3.0)
    torch.empty(5 * MIB)  # into the cache
    assert hostmem.hostmem_stats()["cached_bytes"] == 20 * MIB
    child = os.fork()
    if child == 0:
        signal.alarm(int(HANG_SECONDS))  # a lock left behind would hang
        own = torch.empty(2 * MIB)
        own[-1] = 1.0  # one thread: OpenMP's do not survive a fork
        good = (
            kept[0].item() == 3.0
            and live_bytes() == 12 * MIB
            and own[-1].item() == 1.0
            and hostmem.hostmem_stats()["cached_bytes"] == 0
        )
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert hostmem.hostmem_stats()["cached_bytes"] == 20 * MIB
    assert live_bytes() == 4 * MIB


# ---- installing and uninstalling --------------------------------------------


def slot_values() -> dict[str, int]:
    """The contents of libc10's slots, found through pyelftools instead of the library's own code."""
    elffile = pytest.importorskip("elftools.elf.elffile")
    path = Path(torch.__file__).parent / "lib" / "libc10.so"
    if not path.exists():
        pytest.skip(f"no {path}")
    maps = Path("/proc/self/maps").read_text().splitlines()
    base = min(int(line.split("-")[0], 16) for line in maps if line.endswith(str(path)))
    values = {}
    with path.open("rb") as file:
        elf = elffile.ELFFile(file)
        symbols = elf.get_section_by_name(".dynsym")
        for relocation in elf.get_section_by_name(".rela.plt").iter_relocations():
            name = symbols.get_symbol(relocation["r_info_sym"]).name
            if name in ("posix_memalign", "free"):
                values[name] = ctypes.c_uint64.from_address(base + relocation["r_offset"]).value
    assert len(values) == 2
    return values


def test_slots_are_given_back_when_the_last_tensor_dies():
    torch.empty(2 * MIB)  # both slots are bound from here on
    before = slot_values()
    assert _core.hostmem_install() == "slots"
    _core.hostmem_set_ceiling(1 << 30)
    taken = slot_values()
    assert taken["free"] != before["free"]
    assert taken["posix_memalign"] != before["posix_memalign"]
    tensors = [torch.full((MIB,), float(i)) for i in range(4)]
    del tensors[0]
    assert _core.hostmem_stats()["cached_bytes"] == 4 * MIB

    _core.hostmem_uninstall()
    assert slot_values() == {"posix_memalign": before["posix_memalign"], "free": taken["free"]}
    assert _core.hostmem_stats()["cached_bytes"] == 0
    later = torch.ones(MIB)
    assert _core.hostmem_find(later.data_ptr()) is None
    assert [tensor[0].item() for tensor in tensors] == [1.0, 2.0, 3.0]
    assert live_bytes() == 12 * MIB
    tensors.clear()
    assert live_bytes() == 0
    assert slot_values() == before
    del later


def test_bad_arguments_are_named():
    with pytest.raises(TypeError, match="library"):
        _core.hostmem_install(3)
    with pytest.raises(TypeError, match="ceiling_bytes"):
        _core.hostmem_set_ceiling("much")
    with pytest.raises(OverflowError, match="ceiling_bytes"):
        _core.hostmem_set_ceiling(-1)
    with pytest.raises(OverflowError, match="address"):
        _core.hostmem_find(1 << 64)
    with pytest.raises(TypeError):
        _core.hostmem_trim(keep=0, glibc=True)


# ---- resident memory, in processes of their own -----------------------------


def run_script(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


RESIDENT = """
    import torch
    from memscale import _core
    torch.set_num_threads(1)
    assert _core.hostmem_install() == "slots"
    _core.hostmem_set_ceiling({ceiling})
    def file_bytes():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssFile:"))
    (torch.randn(1 << 18) * 2).sin()  # the operators' code and scratch
    files = file_bytes()
    base = _core.process_memory()["rss_bytes"]
    _core.reset_peak_rss()
    _core.hostmem_reset_peak()
    for step in range(3):
        chain = [torch.ones((8 << 20) + 12345)]
        for i in range(1, 12):
            chain.append(chain[-1][: -40000 * (i % 3 + 1)].clone().sin_())
        while chain:
            chain.pop()
    stats = _core.hostmem_stats()
    resident = _core.process_memory()
    peak = resident["peak_rss_bytes"] - base
    now = resident["rss_bytes"] - base
    taken_back = max(files - file_bytes(), 0)  # by the system: pages of libraries
    print(peak, now, stats["peak_live_bytes"], stats["peak_held_bytes"], stats["cached_bytes"], taken_back)
"""


@pytest.mark.parametrize("ceiling", [0, 200 << 20, 1 << 40])
def test_peak_resident_memory_follows_live_bytes_and_ceiling(ceiling):
    out = run_script(RESIDENT.format(ceiling=ceiling))
    peak, now, peak_live, peak_held, cached, taken_back = map(int, out.split())
    assert peak_live > 300 * MIB
    slack = peak_live // 100 + 4 * MIB + taken_back
    assert abs(peak - peak_held) <= slack
    assert abs(now - cached) <= slack
    assert peak_held <= max(ceiling, peak_live)
    if ceiling == 0:
        assert peak_held == peak_live and cached == 0
    elif ceiling > peak_live:
        assert cached > 300 * MIB
    else:
        assert 0 < cached <= ceiling


FALLEN_BACK = """
    import torch
    from memscale import _core
    {before}
    print(_core.hostmem_install("libnot_there.so"))
    print(_core.log_drain()[-1][1])
    for _ in range(8):
        torch.ones(6 << 20)  # raises glibc's own threshold to 24 MiB, unless it was told
    base = _core.process_memory()["rss_bytes"]
    keep = []
    for i in range(60):
        keep.append((torch.ones(1 << 20), torch.ones(100)))
    keep = [small for _, small in keep]
    print((_core.process_memory()["rss_bytes"] - base) >> 20)
"""


def test_without_slots_glibc_is_told_to_map_big_blocks():
    means, line, grown_mib = run_script(FALLEN_BACK.format(before="")).splitlines()
    assert means == "mallopt"
    assert "libnot_there.so is not loaded" in line and "instead glibc maps" in line
    assert int(grown_mib) < 30
