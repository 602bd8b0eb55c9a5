"""An operator that takes memory of its own, which no trace shows: the first run corrects its plan, and later runs of
the same step on this machine plan for that memory from their first step on."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

from process_support import environment_of_tests
from time_limits import HANG_SECONDS

# Trains under a budget that has no room for the operator's own 150 MB. Prints losses and the lines about steps over it.
_TRAINING = """
    import json, logging, sys
    import torch
    import memscale

    lines = []

    class Heard(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    log = logging.getLogger("memscale")
    log.addHandler(Heard(logging.DEBUG))
    log.setLevel(logging.DEBUG)
    torch.set_num_threads(1)
    torch.manual_seed(1)

    @torch.library.custom_op("tests::wasteful", mutates_args=())
    def wasteful(x: torch.Tensor) -> torch.Tensor:
        own = bytearray(150_000_000)
        own[::4096] = b"1" * len(own[::4096])
        return x * 2

    wasteful.register_fake(lambda x: torch.empty_like(x))
    wasteful.register_autograd(lambda ctx, gradient: wasteful(gradient))

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(512, 512)

        def forward(self, x):
            return torch.sigmoid(torch.nn.functional.gelu(wasteful(self.inner(x))))

    model = torch.nn.Sequential(*[Layer() for _ in range(8)])
    rows = torch.randn(4096, 512)
    from memscale import _core
    from memscale.tracing.profiler import load_tracer
    load_tracer()
    budget = _core.memory_beside_tensors() + 260_000_000
    memscale.wrap(model, memscale.Config(memory_budget_gb=budget / 1e9))
    optimizer = torch.optim.SGD(model.parameters())
    losses = []
    for _ in range(2):
        loss = model(rows).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    print(json.dumps({"losses": losses, "over": [line for line in lines if "over the budget" in line]}))
"""


def _run(cache: Path) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(_TRAINING)],
        env=environment_of_tests(XDG_CACHE_HOME=str(cache)),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_later_run_plans_for_what_an_unknown_operator_took(tmp_path: Path) -> None:
    first, second = _run(tmp_path), _run(tmp_path)
    assert first["over"]
    assert not second["over"]
    assert second["losses"] == first["losses"]
