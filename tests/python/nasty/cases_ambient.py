"""Process-wide state that operators or layers read. Cases change it around forward only, around backward only, or
inside a layer. A recomputed layer must compute what it computed in forward."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import decimal
import gc
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from subjects import ROWS, WIDTH, Body, Context, Subject, case, floats, stack
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

# ---- bodies whose results depend on a setting ------------------------------------------------


def _convolve(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x + self.conv(x.view(1, 8, 8, 8)).reshape(x.shape)


def _with_conv(self: Any) -> None:
    self.conv = torch.nn.Conv2d(8, 8, 3, padding=1)


def _attend(self: Any, x: torch.Tensor) -> torch.Tensor:
    heads = x.view(1, ROWS, 4, WIDTH // 4).transpose(1, 2)
    return functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).reshape(x.shape)


def _multiply(self: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x @ self.inner.weight @ self.outer.weight)


def _denormal(self: Any, x: torch.Tensor) -> torch.Tensor:
    small = x * 1e-20
    return small * 3e-20 * 1e20 * 1e20


def _constants(self: Any, x: torch.Tensor) -> torch.Tensor:
    return (x * torch.full((WIDTH,), 0.1) + torch.tensor(0.3).sqrt()).float()


def _einsum(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ri,ij,jk->rk", x, self.inner.weight, self.outer.weight)


def _sums(self: Any, x: torch.Tensor) -> torch.Tensor:
    index = torch.arange(ROWS, device=x.device) % 3
    pooled = torch.zeros(3, WIDTH, dtype=x.dtype, device=x.device).index_add(0, index, x)
    return pooled[index] + x.cumsum(0)


class _Flag:
    """A setting: how to read and to set it, and a value other than the usual one."""

    def __init__(self, read: Callable[[], Any], put: Callable[[Any], None], other: Any) -> None:
        self.read, self.put, self.other = read, put, other

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        before = self.read()
        self.put(self.other)
        try:
            yield
        finally:
            self.put(before)


def _attribute(holder: Any, name: str, other: Any) -> _Flag:
    return _Flag(lambda: getattr(holder, name), lambda value: setattr(holder, name, value), other)


_BACKENDS = torch.backends

# Settings that a layer's code may read, or that change how its kernels compute.
FLAGS: dict[str, _Flag] = {
    "default_dtype": _Flag(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic": _Flag(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    "deterministic_debug_mode": _Flag(torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 1),
    "fill_uninitialized": _attribute(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "matmul_precision": _Flag(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    "fp32_precision": _attribute(_BACKENDS, "fp32_precision", "tf32"),
    "mkldnn_matmul_precision": _attribute(_BACKENDS.mkldnn.matmul, "fp32_precision", "bf16"),
    "mkldnn_conv_precision": _attribute(_BACKENDS.mkldnn.conv, "fp32_precision", "bf16"),
    "mkldnn_rnn_precision": _attribute(_BACKENDS.mkldnn.rnn, "fp32_precision", "bf16"),
    "cudnn_conv_precision": _attribute(_BACKENDS.cudnn.conv, "fp32_precision", "ieee"),
    "cuda_matmul_precision": _attribute(_BACKENDS.cuda.matmul, "fp32_precision", "tf32"),
    "cudnn_benchmark": _attribute(_BACKENDS.cudnn, "benchmark", True),
    "cudnn_deterministic": _attribute(_BACKENDS.cudnn, "deterministic", True),
    "cudnn_enabled": _attribute(_BACKENDS.cudnn, "enabled", False),
    "cuda_fp16_reduction": _attribute(_BACKENDS.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
    "cuda_bf16_reduction": _attribute(_BACKENDS.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    "mkldnn_enabled": _Flag(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, False),
    "mkldnn_deterministic": _Flag(torch._C._get_mkldnn_deterministic, torch._C._set_mkldnn_deterministic, True),
    "opt_einsum": _attribute(_BACKENDS.opt_einsum, "enabled", False),
    "mha_fastpath": _Flag(_BACKENDS.mha.get_fastpath_enabled, _BACKENDS.mha.set_fastpath_enabled, False),
    "nnpack": _Flag(torch._C._get_nnpack_enabled, torch._C._set_nnpack_enabled, False),
    "flash_sdp": _Flag(_BACKENDS.cuda.flash_sdp_enabled, _BACKENDS.cuda.enable_flash_sdp, False),
    "math_sdp": _Flag(_BACKENDS.cuda.math_sdp_enabled, _BACKENDS.cuda.enable_math_sdp, False),
    "mem_efficient_sdp": _Flag(
        _BACKENDS.cuda.mem_efficient_sdp_enabled, _BACKENDS.cuda.enable_mem_efficient_sdp, False
    ),
    "autocast_cuda": _Flag(
        lambda: torch.is_autocast_enabled("cuda"), lambda value: torch.set_autocast_enabled("cuda", value), True
    ),
    "autocast_cpu_dtype": _Flag(
        lambda: torch.get_autocast_dtype("cpu"), lambda value: torch.set_autocast_dtype("cpu", value), torch.float16
    ),
    "autocast_cache": _Flag(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, False),
    "anomaly": _Flag(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, True),
    "threads": _Flag(torch.get_num_threads, torch.set_num_threads, 2),
    "numpy_errors": _Flag(lambda: numpy.geterr()["over"], lambda value: numpy.seterr(over=value) and None, "ignore"),
    "print_options": _Flag(
        lambda: torch._tensor_str.PRINT_OPTS.precision, lambda value: torch.set_printoptions(precision=value), 7
    ),
    "environment": _Flag(
        lambda: os.environ.get("NASTY", ""), lambda value: os.environ.__setitem__("NASTY", value), "yes"
    ),
}
_CONTEXT: contextvars.ContextVar[float] = contextvars.ContextVar("nasty", default=1.0)
_LOCAL = threading.local()
_SCALE = 1.0


def _local_scale() -> float:
    return getattr(_LOCAL, "scale", 1.0)


def _set_scale(value: float) -> None:
    global _SCALE
    _SCALE = value


# Python state that a layer may read.
READ: dict[str, _Flag] = {
    "context_variable": _Flag(_CONTEXT.get, lambda value: _CONTEXT.set(value) and None, 1.25),
    "thread_local": _Flag(_local_scale, lambda value: setattr(_LOCAL, "scale", value), 1.25),
    "global_number": _Flag(lambda: _SCALE, _set_scale, 1.25),
}


def _factor(read: Callable[[], Any]) -> Body:
    """A body that computes something else if `read()` returns another value than it does now."""
    usual = read()
    return lambda self, x: functional.gelu(x) * (1.0 if read() == usual else 1.5)


def _around(name: str, context: Context, where: str, body: Callable[[], Body], prepare: Any = None) -> None:
    """Enters a case with `context` around a part of the step. `body` is called for each run, outside of `context`."""

    @case("ambient", f"{name}_around_{where}")
    def make() -> Subject:
        return Subject(stack(body(), prepare), **{f"{where}_in": context})


def _reading(name: str, flag: _Flag, where: str) -> None:
    _around(f"read_{name}", flag, where, lambda: _factor(flag.read))


for _name, _flag in {**FLAGS, **READ}.items():
    _reading(_name, _flag, "forward")
for _name in ("deterministic", "autocast_cache", "threads", "default_dtype", "matmul_precision"):
    _reading(_name, FLAGS[_name], "backward")
for _name, _flag in READ.items():
    _reading(_name, _flag, "backward")

# ---- kernels that a setting changes ------------------------------------------------------


@contextlib.contextmanager
def _flushing() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def _rounding_up() -> Iterator[None]:
    libm = ctypes.CDLL("libm.so.6")
    libm.fesetround(0x800)
    try:
        yield
    finally:
        libm.fesetround(0)


@contextlib.contextmanager
def _bf16(**options: Any) -> Iterator[None]:
    with torch.autocast("cpu", torch.bfloat16, **options):
        yield


KERNELS: dict[str, tuple[Context, Any, Any]] = {
    "flush_denormal": (_flushing, _denormal, None),
    "rounding_upward": (_rounding_up, _multiply, None),
    "mkldnn_off": (lambda: torch.backends.mkldnn.flags(enabled=False), _convolve, _with_conv),
    "mkldnn_off_linear": (FLAGS["mkldnn_enabled"], _multiply, None),
    "mkldnn_bf16_matmul": (FLAGS["mkldnn_matmul_precision"], _multiply, None),
    "mkldnn_bf16_conv": (FLAGS["mkldnn_conv_precision"], _convolve, _with_conv),
    "medium_matmul": (FLAGS["matmul_precision"], _multiply, None),
    "nnpack_off": (FLAGS["nnpack"], _convolve, _with_conv),
    "math_attention": (lambda: sdpa_kernel([SDPBackend.MATH]), _attend, None),
    "flash_attention_off": (FLAGS["flash_sdp"], _attend, None),
    "sdpa_priority": (
        lambda: sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True),
        _attend,
        None,
    ),
    "double_constants": (FLAGS["default_dtype"], _constants, None),
    "default_device": (lambda: torch.device("cpu"), _constants, None),
    "einsum_without_path": (FLAGS["opt_einsum"], _einsum, None),
    "deterministic_sums": (FLAGS["deterministic"], _sums, None),
    "autocast": (_bf16, _multiply, None),
    "autocast_uncached": (lambda: _bf16(cache_enabled=False), _multiply, None),
    "autocast_fp16": (lambda: torch.autocast("cpu", torch.float16), _multiply, None),
    "anomaly_mode": (torch.autograd.detect_anomaly, _multiply, None),
    "two_threads": (FLAGS["threads"], _multiply, None),
}
for _name, (_context, _body, _prepare) in KERNELS.items():
    for _where in ("forward", "backward"):
        _around(_name, _context, _where, lambda body=_body: body, _prepare)


@case("ambient")
def autocast_around_the_step() -> Subject:
    return Subject(stack(_multiply), step_in=_bf16)


@case("ambient")
def autocast_left_on_by_the_first_layer() -> Subject:
    """A layer switches autocast on by hand; the loop switches it off."""

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        torch.set_autocast_enabled("cpu", True)
        return functional.linear(x, self.inner.weight).float()

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        yield
        torch.set_autocast_enabled("cpu", False)
        torch.clear_autocast_cache()

    return Subject(stack(body), forward_in=around)


@case("ambient")
def a_layer_that_leaves_autocast_for_a_part() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return functional.linear(x.float(), self.inner.weight).float()

    return Subject(stack(body), forward_in=_bf16)


@case("ambient")
def a_layer_that_enters_autocast_for_a_part() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with _bf16():
            return functional.linear(x, self.inner.weight).float() + functional.linear(x, self.outer.weight).float()

    return Subject(stack(body))


@case("ambient")
def a_layer_that_changes_the_default_dtype_for_good() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        scale = torch.tensor(1.0)
        torch.set_default_dtype(torch.float64 if scale.dtype == torch.float32 else torch.float32)
        return (x * torch.full((WIDTH,), 0.1).sqrt()).float()

    return Subject(stack(body), watch=torch.get_default_dtype)


@case("ambient")
def a_layer_that_flushes_denormals_and_leaves_it_on() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        before = _denormal(self, x)
        torch.set_flush_denormal(True)
        return before + _denormal(self, x)

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        yield
        torch.set_flush_denormal(False)

    return Subject(stack(body), forward_in=around)


@case("ambient")
def threads_changed_in_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        y = _multiply(self, x)
        torch.set_num_threads(before)
        return y

    return Subject(stack(body))


@case("ambient")
def mkldnn_off_from_before_the_wrap_to_the_end() -> Subject:
    return Subject(stack(_convolve, _with_conv), step_in=lambda: torch.backends.mkldnn.flags(enabled=False))


@case("ambient")
def mkldnn_off_in_every_second_step() -> Subject:
    turns = iter(range(100))
    return Subject(
        stack(_convolve, _with_conv),
        forward_in=lambda: torch.backends.mkldnn.flags(enabled=next(turns) % 2 == 0),
    )


@case("ambient")
def flush_denormal_in_every_second_step() -> Subject:
    turns = iter(range(100))
    return Subject(stack(_denormal), forward_in=lambda: _flushing() if next(turns) % 2 else contextlib.nullcontext())


@case("ambient")
def no_grad_in_a_part_of_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.std() + functional.linear(x, self.inner.weight).abs().mean()
        return x / scale

    return Subject(stack(body))


@case("ambient")
def inference_mode_in_a_part_of_a_layer() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            scale = x.detach().abs().mean().item()
        return x / scale

    return Subject(stack(body))


@case("ambient")
def gradients_switched_on_inside_no_grad() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.enable_grad():
            return functional.gelu(x)

    return Subject(stack(body))


@case("ambient")
def gradients_off_in_backward() -> Subject:
    return Subject(stack(_multiply), backward_in=torch.no_grad)


@case("ambient")
def inference_mode_in_backward() -> Subject:
    return Subject(stack(_multiply), backward_in=torch.inference_mode)


@case("ambient")
def backward_on_one_thread() -> Subject:
    return Subject(stack(_multiply), backward_in=lambda: torch.autograd.set_multithreading_enabled(False))


@case("ambient")
def warnings_are_errors_in_forward() -> Subject:
    @contextlib.contextmanager
    def strict() -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield

    return Subject(stack(_multiply), step_in=strict)


@case("ambient")
def warnings_that_a_layer_counts() -> Subject:
    heard: list[int] = []

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            warnings.warn("nasty", stacklevel=1)
        heard[:] = [len(told)]
        return x * len(told)

    return Subject(stack(body), watch=lambda: list(heard))


@case("ambient")
def a_function_patched_for_the_forward() -> Subject:
    """Replaces a function during forward, as unittest.mock.patch and some libraries' context managers do."""

    @contextlib.contextmanager
    def patched() -> Iterator[None]:
        usual = functional.silu
        functional.silu = functional.relu
        try:
            yield
        finally:
            functional.silu = usual

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.silu(x)

    return Subject(stack(body), forward_in=patched)


@case("ambient")
def a_batch_that_is_not_contiguous_under_a_default_device() -> Subject:
    return Subject(
        stack(_constants), batch=lambda seed: floats(seed, WIDTH, ROWS).t(), step_in=lambda: torch.device("cpu")
    )


# ---- state of Python itself, changed around a part of the step ------------------------------


@contextlib.contextmanager
def _with(change: Callable[[], Any], back: Callable[[], Any]) -> Iterator[None]:
    change()
    try:
        yield
    finally:
        back()


@case("ambient")
def a_default_device_that_a_layer_sets_for_good() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        before = torch.empty(()).device
        torch.set_default_device("cpu")
        return x * (1.0 if before == torch.empty(()).device else 2.0)

    return Subject(stack(body), watch=torch._C._len_torch_function_stack)


@case("ambient")
def a_default_dtype_that_the_second_step_sets_for_good() -> Subject:
    calls = 0

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        y = (x * torch.full((WIDTH,), 0.1).sqrt()).float()
        if calls == 6:
            torch.set_default_dtype(torch.float64)
        return y

    return Subject(stack(body), watch=lambda: (calls, torch.get_default_dtype()))


@case("ambient")
def deterministic_algorithms_that_each_layer_toggles() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        is_on = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(not is_on, warn_only=True)
        return functional.gelu(x) * (1.25 if is_on else 1.0)

    return Subject(stack(body), batch=lambda seed: floats(seed), watch=torch.are_deterministic_algorithms_enabled)


@case("ambient")
def a_precision_that_a_layer_sets_for_good() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if before == "highest" else "highest")
        return functional.gelu(x) * (1.25 if before == "high" else 1.0)

    return Subject(stack(body), watch=torch.get_float32_matmul_precision)


@case("ambient")
def print_options_that_a_layer_sets_for_good() -> Subject:
    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        digits = len(str(torch.tensor(1.0) / 3))
        torch.set_printoptions(precision=5 if digits < 15 else 4)
        return functional.gelu(x) * (digits / 14)

    return Subject(stack(body), watch=lambda: str(torch.tensor(1.0) / 3))


@case("ambient")
def another_decimal_precision_around_forward() -> Subject:
    def one_third() -> str:
        return str(decimal.Decimal(1) / 3)

    return Subject(stack(_factor(one_third)), forward_in=lambda: decimal.localcontext(decimal.Context(prec=5)))


@case("ambient")
def another_working_directory_around_forward() -> Subject:
    home = os.getcwd()
    return Subject(
        stack(_factor(os.getcwd)), forward_in=lambda: _with(lambda: os.chdir("/"), lambda: os.chdir(home)), steps=3
    )


@case("ambient")
def another_recursion_limit_around_backward() -> Subject:
    usual = sys.getrecursionlimit()
    return Subject(
        stack(_factor(sys.getrecursionlimit)),
        backward_in=lambda: _with(lambda: sys.setrecursionlimit(4321), lambda: sys.setrecursionlimit(usual)),
    )


@case("ambient")
def no_garbage_collection_in_forward() -> Subject:
    return Subject(stack(_factor(gc.isenabled)), forward_in=lambda: _with(gc.disable, gc.enable))


@case("ambient")
def numpy_raises_in_forward() -> Subject:
    def divides() -> bool:
        try:
            numpy.ones(1) / numpy.zeros(1)
        except FloatingPointError:
            return False
        return True

    with numpy.errstate(divide="ignore"):
        body = _factor(divides)
    return Subject(
        stack(body), step_in=lambda: numpy.errstate(divide="ignore"), forward_in=lambda: numpy.errstate(divide="raise")
    )


@case("ambient")
def a_variable_read_by_getenv_around_forward() -> Subject:
    return Subject(stack(_factor(lambda: os.getenv("NASTY", ""))), forward_in=FLAGS["environment"])


class _Settings:
    """A class used as a namespace for settings, as libraries do."""

    scale = 1.0
    stack: list[float] = []


@case("ambient")
def a_setting_in_a_class_around_forward() -> Subject:
    @contextlib.contextmanager
    def scaled() -> Iterator[None]:
        _Settings.scale = 1.25
        try:
            yield
        finally:
            _Settings.scale = 1.0

    return Subject(stack(lambda self, x: functional.gelu(x) * _Settings.scale), forward_in=scaled)


@case("ambient")
def a_stack_of_settings_in_a_class_around_forward() -> Subject:
    def push() -> contextlib.AbstractContextManager[None]:
        return _with(lambda: _Settings.stack.append(1.25), _Settings.stack.pop)

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(x) * (_Settings.stack[-1] if _Settings.stack else 1.0)

    return Subject(stack(body), forward_in=push, watch=lambda: list(_Settings.stack))


@case("ambient")
def a_layer_that_reads_its_threads_name() -> Subject:
    """The layer reads the current thread's name; backward runs in another thread."""

    def step(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss = model(batch).square().mean()
        raised: list[Exception] = []

        def backward() -> None:
            try:
                loss.backward()
            except Exception as error:
                raised.append(error)

        worker = threading.Thread(target=backward, name="nasty")
        worker.start()
        worker.join()
        for error in raised:
            raise error
        return loss

    return Subject(stack(_factor(lambda: threading.current_thread().name)), step=step)


@case("ambient")
def a_layer_frozen_by_grad_mode_and_thawed_before_backward() -> Subject:
    def prepare(block: Any) -> None:
        block.is_frozen = False

    def body(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(not self.is_frozen):
            return functional.gelu(functional.linear(x, self.inner.weight))

    model = stack(body, prepare)

    def thaw(_: torch.nn.Module) -> None:
        model.blocks[0].is_frozen = not model.blocks[0].is_frozen

    return Subject(model, before_backward=thaw)
