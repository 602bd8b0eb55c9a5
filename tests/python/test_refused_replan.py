"""A run that needs more than its budget says so, and its results stay right."""

from __future__ import annotations

import re
import textwrap

from forked_python import run_python

_SCRIPT = textwrap.dedent(
    """
    import hashlib, logging, sys, torch
    from torch import nn
    import memscale

    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
    logging.getLogger("memscale").setLevel(logging.DEBUG)
    torch.manual_seed(0)
    torch.set_num_threads(1)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
        def forward(self, x):
            return x + self.layers(x)

    model = nn.Sequential(*[Block() for _ in range(3)])
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4000, 256, requires_grad=True)
    budget = 0
    if sys.argv[1] != "plain":
        try:
            memscale.wrap(model, memscale.Config(memory_budget_gb=0.001), (x,))
        except memscale.BudgetInfeasibleError as error:
            budget = error.smallest_budget_bytes
        memscale.wrap(model, memscale.Config(memory_budget_gb=budget / 1e9), (x,))
    for step in range(8):
        y = model(x)
        loss = y.mean()
        if sys.argv[1] == "late":
            optimizer.zero_grad()  # the last step's gradients were alive in the forward
        else:
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            loss = loss + (slope.norm(dim=1) - 1).square().mean()
        loss.backward()
        optimizer.step()
        if sys.argv[1] != "late":
            optimizer.zero_grad()
        x.grad = None
        print("loss", loss.item())
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    print("parameters", digest.hexdigest())
    with open("/proc/self/status", encoding="ascii") as status:
        peak = next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    print("over", max(0, peak - budget))
    """
)


_REFUSED = "the run goes on with the plan it has"


def _lines(how: str) -> list[str]:
    done = run_python("-c", _SCRIPT, how, check=True)
    return done.stdout.splitlines()


def _values(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("loss", "parameters"))]


def test_gradients_of_gradients_beyond_the_budget_say_so_once() -> None:
    """No trace contains the second graph, so the first step's peak exceeds the budget; no plan needs less."""
    lines = _lines("wrapped")
    assert _values(lines) == _values(_lines("plain"))
    warnings = [line for line in lines if line.startswith("WARNING")]
    assert len(warnings) == 1, warnings
    assert re.search(r"need .* MB, .* MB over the budget, and run under the smallest plan", warnings[0])


def test_a_refused_plan_is_no_matter_for_the_user_while_steps_keep_the_budget() -> None:
    """The loop holds more than assumed, so no plan fits the smallest budget; its steps keep it all the same."""
    lines = _lines("late")
    over = [int(line.split()[1]) for line in lines if line.startswith("over")]
    assert over == [0], over
    assert {line.split()[0] for line in lines if _REFUSED in line} == {"DEBUG"}
