"""Memory that torch's CPU kernels take beside their operands and results, measured and bounded.

`python bench/workspaces.py` runs each case in a process of its own: forward and backward, operator by operator as the
tracer sees them. It compares the growth of the process's peak with the bytes of new results, and prints a table in
Markdown: the operator that took most in each case, what it took, and the bound of `src/trace/workspace.c`. The table of
one run is docs/results/workspaces.md. The program fails if a bound is exceeded by more than the tolerance.

Freed memory goes back to the system at once (MALLOC_MMAP_THRESHOLD_), so that one operator's memory does not hide
another's. Figures are those of one thread.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from child import in_child
from torch.nn import functional
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from memscale import _core
from memscale.tracing import tracer

_TOLERANCE_BYTES = 4_000_000
"""A measurement varies by this much, with pages of library code and of the heap."""

_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}

Made = tuple[Callable[..., Any], list[torch.Tensor]]
CASES: dict[str, Callable[[], Made]] = {}


def _floats(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_(grad)


def _case(name: str, make: Callable[[], Made]) -> None:
    CASES[name] = make


def _conv(name: str, size: tuple[int, ...], weight: tuple[int, ...], transposed: bool = False, **options: Any) -> None:
    dimensions = len(size) - 2
    suffix = f"conv{'_transpose' if transposed else ''}{dimensions}d"
    for kind in (torch.float32, torch.float64, torch.bfloat16):

        def make(kind: torch.dtype = kind) -> Made:
            function = getattr(functional, suffix)
            return (
                lambda x, w: function(x, w, **options),
                [_floats(*size, dtype=kind), _floats(*weight, dtype=kind)],
            )

        _case(f"{suffix} {name} {str(kind)[6:]}", make)


_conv("5", (8, 32, 20000), (32, 32, 5), padding=2)
_conv("3x3", (4, 32, 192, 192), (32, 32, 3, 3), padding=1)
_conv("3x3 wide", (2, 512, 14, 14), (1024, 512, 3, 3), padding=1)
_conv("7x7", (4, 32, 96, 96), (32, 32, 7, 7), padding=3)
_conv("1x1", (8, 128, 64, 64), (64, 128, 1, 1))
_conv("3x3 stride 2", (4, 32, 192, 192), (64, 32, 3, 3), padding=1, stride=2)
_conv("3x3 dilated", (4, 32, 128, 128), (32, 32, 3, 3), padding=2, dilation=2)
_conv("3x3 4 groups", (4, 64, 128, 128), (64, 16, 3, 3), padding=1, groups=4)
_conv("depthwise", (4, 64, 128, 128), (64, 1, 3, 3), padding=1, groups=64)
_conv("3x3x3", (2, 16, 32, 64, 64), (16, 16, 3, 3, 3), padding=1)
_conv("3x3x3 dilated", (2, 16, 24, 48, 48), (16, 16, 3, 3, 3), padding=2, dilation=2)
_conv("2x2 stride 2", (4, 64, 96, 96), (64, 32, 2, 2), transposed=True, stride=2)
_conv("3x3", (4, 32, 128, 128), (32, 32, 3, 3), transposed=True, padding=1)
_conv("2x2x2 stride 2", (2, 32, 16, 32, 32), (32, 16, 2, 2, 2), transposed=True, stride=2)


def _layer(name: str, make: Callable[[], torch.nn.Module], *shape: int, dtype: torch.dtype = torch.float32) -> None:
    def made() -> Made:
        layer = make().to(dtype)
        return (lambda x, *_: layer(x)[0]), [_floats(*shape, dtype=dtype), *layer.parameters()]

    _case(f"{name} {str(dtype)[6:]}", made)


for _dtype in (torch.float32, torch.float64):
    for _kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
        _layer(_kind.__name__, lambda kind=_kind: kind(256, 256), 128, 32, 256, dtype=_dtype)
    _layer("wide LSTM", lambda: torch.nn.LSTM(512, 1024), 64, 4, 512)
    _layer("LSTM of two layers and ways", lambda: torch.nn.LSTM(256, 128, 2, bidirectional=True), 128, 32, 256)


def _function(name: str, function: Callable[..., Any], *tensors: Callable[[], torch.Tensor]) -> None:
    _case(name, lambda: (function, [make() for make in tensors]))


_rows = lambda: _floats(1024, 4096)  # noqa: E731
_square = lambda: _floats(8, 512, 512)  # noqa: E731
_indices = lambda: torch.randint(0, 4096, (1024, 4096), generator=torch.Generator().manual_seed(1))  # noqa: E731


def _positive(x: torch.Tensor) -> torch.Tensor:
    return x @ x.mT + 1000 * torch.eye(x.shape[-1])


_function("fft", lambda x: torch.fft.fft(x).abs(), _rows)
_function("rfft", lambda x: torch.fft.rfft(x).abs(), _rows)
_function("rfft of an odd length", lambda x: torch.fft.rfft(x).abs(), lambda: _floats(1024, 4093))
_function("irfft", lambda x: torch.fft.irfft(torch.complex(x, x)), _rows)
_function("fft2", lambda x: torch.fft.fft2(x).abs(), _square)
_function("fft along the first dimension", lambda x: torch.fft.fft(x, dim=0).abs(), _rows)
_function("stft", lambda x: torch.stft(x, 512, return_complex=True).abs(), lambda: _floats(64, 60000))
_function("inv", torch.linalg.inv, _square)
_function("solve", torch.linalg.solve, _square, _square)
_function("cholesky", lambda x: torch.linalg.cholesky(_positive(x)), _square)
_function("qr", lambda x: torch.linalg.qr(x)[1], _square)
_function("svd", lambda x: torch.linalg.svd(x)[1], _square)
_function("svdvals", torch.linalg.svdvals, _square)
_function("eigh", lambda x: torch.linalg.eigh(_positive(x))[0], _square)
_function("eig", lambda x: torch.linalg.eig(x)[0].abs(), lambda: _floats(4, 256, 256))
_function("det", torch.linalg.det, _square)
_function("slogdet", lambda x: torch.linalg.slogdet(x)[1], _square)
_function("lstsq", lambda x, y: torch.linalg.lstsq(x, y).solution, _square, _square)
_function("matrix_exp", torch.linalg.matrix_exp, lambda: _floats(8, 256, 256))
_function("pinv", torch.linalg.pinv, lambda: _floats(4, 256, 256))
_function("triangular solve", lambda x, y: torch.linalg.solve_triangular(x, y, upper=True), _square, _square)
_function("sort", lambda x: torch.sort(x)[0], _rows)
_function("sort of one row", lambda x: torch.sort(x)[0], lambda: _floats(1 << 22))
_function("sort along the first dimension", lambda x: torch.sort(x, dim=0)[0], _rows)
_function("stable sort of numbers", lambda x: torch.sort(x, stable=True)[0].float(), _indices)
_function("topk", lambda x: torch.topk(x, 64)[0], _rows)
_function("topk of one row", lambda x: torch.topk(x, 64)[0], lambda: _floats(1 << 22))
_function("kthvalue", lambda x: torch.kthvalue(x, 64)[0], _rows)
_function("median", lambda x: torch.median(x, dim=1)[0], _rows)
_function("quantile", lambda x: torch.quantile(x, 0.3, dim=1), lambda: _floats(256, 4096))
_function("unique", lambda x: torch.unique(x)[0].float(), _indices)
_function("unique of rows", lambda x: torch.unique(x, dim=0).float(), lambda: _indices() % 2)
_function("cumsum", lambda x: torch.cumsum(x, 1), _rows)
_function("cumprod", lambda x: torch.cumprod(x, 1), _rows)
_function("logcumsumexp", lambda x: torch.logcumsumexp(x, 1), _rows)
_function("gather", lambda x, i: torch.gather(x, 1, i), _rows, _indices)
_function("scatter_add", lambda x, i: torch.zeros(1024, 4096).scatter_add(1, i, x), _rows, _indices)
_function(
    "scatter_add of rows",
    lambda x, i: torch.zeros(4096, 4096).scatter_add(0, i[:, :1].expand(-1, 4096), x),
    *(_rows, _indices),
)
_function("scatter_reduce", lambda x, i: torch.zeros(1024, 4096).scatter_reduce(1, i, x, "amax"), _rows, _indices)
_function("index_add", lambda x, i: torch.zeros(4096, 4096).index_add(0, i[:, 0], x), _rows, _indices)
_function("index of rows", lambda x, i: x[i[:, 0] % 1024], _rows, _indices)
_function("index of elements", lambda x, i: x[i[:512] % 1024, i[512:]], _rows, _indices)
_function("masked_select", lambda x: torch.masked_select(x, x > 0), _rows)
_function("nonzero", lambda x: torch.nonzero(x).float(), lambda: _indices() % 2)
_function("embedding", lambda w, i: functional.embedding(i[:64], w), lambda: _floats(4096, 64), _indices)
_function(
    "embedding_bag",
    lambda w, i: functional.embedding_bag(i[:64], w, mode="max"),
    *(lambda: _floats(4096, 64), _indices),
)
_function("bincount", lambda i: torch.bincount(i.view(-1)).float(), _indices)
_function("histc", lambda x: torch.histc(x), lambda: _floats(1024, 4096, grad=False))


def _sparse() -> torch.Tensor:
    dense = _floats(2048, 2048, grad=False)
    return torch.where(dense > 1, dense, 0).to_sparse()


_function("sparse product", torch.sparse.mm, _sparse, lambda: _floats(2048, 512))
_function("to_sparse", lambda x: (x * (x > 1)).to_sparse().coalesce().values(), lambda: _floats(2048, 2048))
_image = lambda: _floats(4, 32, 96, 96)  # noqa: E731
for _mode in ("nearest", "bilinear", "bicubic", "area"):
    _function(
        f"interpolate {_mode}", lambda x, mode=_mode: functional.interpolate(x, scale_factor=2, mode=mode), _image
    )
_function(
    "interpolate bilinear, antialiased",
    lambda x: functional.interpolate(x, scale_factor=0.4, mode="bilinear", antialias=True),
    _image,
)
_function(
    "interpolate trilinear",
    lambda x: functional.interpolate(x, scale_factor=2, mode="trilinear"),
    lambda: _floats(2, 16, 24, 48, 48),
)
_function(
    "grid_sample",
    lambda x, g: functional.grid_sample(x, torch.tanh(g), align_corners=False),
    *(_image, lambda: _floats(4, 192, 192, 2)),
)
_function("max_pool2d", lambda x: functional.max_pool2d(x, 3, 1, 1), _image)
_function("avg_pool3d", lambda x: functional.avg_pool3d(x, 3, 1, 1), lambda: _floats(2, 16, 24, 48, 48))
_function("unfold", lambda x: functional.unfold(x, 3), _image)
_function("cdist", lambda x, y: torch.cdist(x, y), lambda: _floats(2048, 256), lambda: _floats(2048, 256))
_function("ctc_loss", lambda x: _ctc(x), lambda: _floats(400, 32, 128))
_half = lambda: _floats(1024, 4096, dtype=torch.float16)  # noqa: E731
_double = lambda: _floats(1024, 4096, dtype=torch.float64)  # noqa: E731
for _name, _operator in {
    "sum": torch.add,
    "difference": torch.sub,
    "product": torch.mul,
    "quotient": torch.div,
}.items():
    _function(f"{_name} of float16 and float32", _operator, _half, _rows)
    _function(f"{_name} of float32 and float64", _operator, _rows, _double)
    _function(f"{_name} of integers and float32", _operator, _indices, _rows)
_function("quotient of integers", torch.div, _indices, _indices)
_function("integers plus a number", lambda i: i + 0.5, _indices)
_function("power of integers", lambda i, x: torch.pow(i, x), _indices, _rows)
_function("maximum of float16 and float32", torch.maximum, _half, _rows)
_function("sum of float32 in place into float16", lambda x, y: (x * 1).add_(y), _half, _rows)
_numbers = lambda: torch.randint(0, 9, (1024, 4096), dtype=torch.int32)  # noqa: E731
for _name, _operator in (("sum", torch.add), ("product", torch.mul), ("maximum", torch.maximum), ("power", torch.pow)):
    _function(f"{_name} of int32 and float32", _operator, _numbers, _rows)
_function("float32 compared with int32", lambda x, i: x > i, _rows, _numbers)
_function("float32 compared with integers", lambda x, i: x > i, _rows, _indices)
_function("einsum", lambda x, y: torch.einsum("bij,bjk->ik", x, y), _square, _square)


def _ctc(x: torch.Tensor) -> torch.Tensor:
    targets = torch.randint(1, 128, (32, 60), generator=torch.Generator().manual_seed(2))
    return functional.ctc_loss(x.log_softmax(2), targets, torch.full((32,), 400), torch.full((32,), 60))


# ---- measuring ---------------------------------------------------------------------------------


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _bound(func: Any, args: Any, result: Any, inputs: Any, outputs: Any) -> int:
    operator = tracer._describe(func, func)
    copied = tracer._copied(operator, args, result) if operator.takes_workspace else None
    return 0 if copied is None else _core.workspace_bytes(str(func), tuple(inputs), tuple(outputs), copied)


def _operands(values: Any) -> list[tuple[tuple[int, ...], int]]:
    found = []
    for value in _pytree.tree_leaves(values):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            found.append((tuple(value.shape), value.numel() * value.element_size()))
    return found


class Watch(TorchDispatchMode):
    """Notes for each operator what it took beside new results, and the bound for it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = _resident_bytes()
        _core.reset_peak_rss()
        result = func(*args, **(kwargs or {}))
        peak = int(_core.process_memory()["peak_rss_bytes"])
        old = {storage for value in _pytree.tree_leaves((args, kwargs)) for storage in _storages(value)}
        fresh = {storage for value in _pytree.tree_leaves(result) for storage in _storages(value)} - old
        inputs, outputs = _operands((args, kwargs)), _operands(result)
        self.rows.append(
            {
                "operator": str(func),
                "took": peak - before - sum(size for _, size in fresh),
                "operands": sum(size for _, size in inputs),
                "results": sum(size for _, size in outputs),
                "bound": _bound(func, args, result, inputs, outputs),
            }
        )
        return result


def _storages(value: Any) -> set[tuple[int, int]]:
    if not isinstance(value, torch.Tensor):
        return set()
    if value.layout is torch.sparse_coo:
        return _storages(value._indices()) | _storages(value._values())
    storage = value.untyped_storage()
    return {(storage.data_ptr(), storage.nbytes())}


def _measure(name: str) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    function, tensors = CASES[name]()

    def step() -> None:
        result = function(*tensors)
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        if result.requires_grad and wanted:
            torch.autograd.grad(result, wanted, torch.ones_like(result), allow_unused=True)

    with Watch():
        step()  # loads what the operators load once
    with Watch() as watch:
        step()
    return watch.rows


def _most(name: str) -> dict[str, Any]:
    """The operator of one case whose bytes exceed its bound most, else the one that took most."""
    rows = in_child(lambda: _measure(name))
    if rows is None:
        raise SystemExit(f"{name} could not be measured")
    over = [row for row in rows if row["took"] > row["bound"] + _TOLERANCE_BYTES]
    return max(over or rows, key=lambda row: row["took"] - (row["bound"] if over else 0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    options = parser.parse_args()
    if _ENVIRONMENT.items() - os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **_ENVIRONMENT})
    print("| case | operator | operands MB | results MB | taken beside MB | bound MB |")
    print("|---|---|---|---|---|---|")
    exceeded = 0
    for name in CASES:
        if options.only in name:
            row = _most(name)
            is_over = row["took"] > row["bound"] + _TOLERANCE_BYTES
            exceeded += is_over
            numbers = [f"{row[key] / 1e6:.1f}" for key in ("operands", "results", "took", "bound")]
            print(f"| {name} | {row['operator']} | {' | '.join(numbers)} |{' **over**' if is_over else ''}", flush=True)
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
