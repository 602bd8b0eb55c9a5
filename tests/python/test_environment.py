"""A replay runs under the settings that chose the kernels of its layer's forward, and restores the user's settings
afterwards. That includes precision set through torch's newer interface, after which the older getters raise."""

from __future__ import annotations

import pytest
import torch
from forked_python import run_python

from memscale import _core
from memscale.base.environment import Environment, _inventory

HAS_PAIR = isinstance(torch._C._get_cublas_allow_fp16_reduced_precision_reduction(), tuple)
SETTINGS = {
    "older": "torch.set_float32_matmul_precision('high')",
    "all": "torch.backends.fp32_precision = 'tf32'",
    "matmul": "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    "conv": "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "mkldnn": "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
    "bf16": "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False",
    "fp16": "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = "
    + ("(False, False)" if HAS_PAIR else "False"),
    "accumulation": "torch.backends.cuda.matmul.allow_fp16_accumulation = True",
}

CODE = """
import torch
from memscale import _core
from memscale.base import environment, settings

def seen():
    c = torch._C
    precision = getattr(c, "_get_fp32_precision_getter", lambda *of: c._get_float32_matmul_precision())
    return [precision(*of) for of in settings._PRECISIONS] + [
        c._get_cublas_allow_bf16_reduced_precision_reduction(),
        c._get_cublas_allow_fp16_reduced_precision_reduction(),
        getattr(c, "_get_cublas_allow_fp16_accumulation", bool)()]

exec({first!r})
taken, before = environment.Environment(), seen()
exec({second!r})
after = seen()
assert (after != before) == bool({second!r})


def replay(undo):
    taken.put(undo)
    assert seen() == before, (seen(), before)


_core.guarded(replay)
assert seen() == after, (seen(), after)
"""


newer = pytest.mark.skipif(
    not hasattr(torch._C, "_get_fp32_precision_getter"),
    reason=f"torch {torch.__version__} has no newer interface to precision",
)


@pytest.mark.parametrize(
    "name", [name if name in ("older", "bf16") else pytest.param(name, marks=newer) for name in SETTINGS]
)
def test_precision_set_before_a_layer_or_after_it_is_put_back(name):
    for first, second in ((SETTINGS[name], ""), ("", SETTINGS[name])):
        run(CODE.format(first=first, second=second))


def run(code: str) -> None:
    """Runs the code in a new process, because some settings can't be undone."""
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr


@newer
def test_a_recomputed_step_goes_on_under_the_newer_switches():
    run(
        """
import torch, memscale
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(3)])
memscale.wrap(model, memscale.Config(force_optimize=True, enable_offloading=False, enable_logging=False))
torch.backends.cuda.matmul.fp32_precision = "tf32"
model(torch.randn(2, 8)).sum().backward()
assert model._memscale_executor.counters()["recomputed_layers"] > 0
"""
    )


def test_only_recomputed_layers_read_the_settings():
    run(
        """
import torch, memscale
from memscale.execution import replay
taken, usual = [], replay.Environment
replay.Environment = lambda: taken.append(1) or usual()
for is_forced in (False, True):
    taken.clear()
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(3)])
    memscale.wrap(model, memscale.Config(force_optimize=is_forced, enable_offloading=False, enable_logging=False))
    model(torch.randn(2, 8)).sum().backward()
    assert bool(taken) == is_forced, taken
    memscale.detach(model)
"""
    )


def test_an_inventory_takes_nothing_but_its_own_moments():
    moment, _ = _inventory().take()
    for wrong in (None, (), moment[:-1], (*moment, 1)):
        with pytest.raises(TypeError, match="take"):
            _core.guarded(_inventory().enter, wrong)
    for wrong in ((moment[0][1:], *moment[1:]), (*moment[:2], (), *moment[3:])):
        with pytest.raises(ValueError, match=r"read\(\)|each source"):
            _core.guarded(_inventory().enter, wrong)
    with pytest.raises(TypeError, match="Undo"):
        _inventory().enter(None, moment)
    with pytest.raises(TypeError, match="settings"):
        _core.inventory(1, 2, 3, 4)
    with pytest.raises(TypeError, match="Inventory"):
        _core.leave_inventory(*moment, None, None)


def test_a_replay_has_gradients_and_leaves_grad_mode_as_it_was():
    taken = Environment()
    seen = []

    def replay(undo):
        taken.put(undo)
        seen.append(torch.is_grad_enabled())
        torch._C._set_grad_enabled(False)  # what a layer leaves behind

    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            _core.guarded(replay)
            assert torch.is_grad_enabled() == mode
    assert seen == [True, True]
