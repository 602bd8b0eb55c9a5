"""A plan moves as much of the optimizer's state as the budget needs, and no more: what stays takes none of the
disk's time. The bits stay the same wherever a state lies, and the budget is kept while states come and go."""

import copy
import json
import re
import textwrap

import pytest
from forked_python import run_python

torch = pytest.importorskip("torch")

import memscale  # noqa: E402
from memscale import OffloadError, _core  # noqa: E402
from memscale.optim import AdamW  # noqa: E402
from memscale.planning.execution_plan import ExecutionPlan  # noqa: E402

WIDTH, LAYERS = 256, 8


def net(dtype):
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(LAYERS)]
    return torch.nn.Sequential(torch.nn.Embedding(2000, WIDTH), *layers).to(dtype)


def step(model, optimizer, number):
    torch.manual_seed(number)
    model(torch.randint(2000, (4, 16))).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


FORMS = {
    "fp32": {},
    "amsgrad": {"amsgrad": True},
    "8 bits": {"state_bits": 8},
    "bf16 split": {"dtype": torch.bfloat16},
    "bf16 master": {"dtype": torch.bfloat16, "bf16": "master"},
}


@pytest.mark.parametrize("releases", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_the_part_on_disk_may_change_between_steps(form, releases):
    options = {"dtype": torch.float32, **FORMS[form]}
    dtype = options.pop("dtype")
    plain, model = net(dtype), net(dtype)
    reference, optimizer = AdamW(plain.parameters(), lr=1e-2, **options), AdamW(model.parameters(), lr=1e-2, **options)
    step(plain, reference, 0)
    states = [sum(v.nbytes for k, v in s.items() if k != "step") for s in reference.state.values()]
    states = [state for state, p in zip(states, plain.parameters(), strict=True) if p.dim() == 2]
    for number, sixteenths in enumerate((4, 12, 1, 9, 16, 3)):
        wanted = -(-sum(states) * sixteenths // 16)
        optimizer._arrange(True, releases, moved_bytes=wanted, directory="/var/tmp")
        step(model, optimizer, number)
        matrices = [p for p in model.parameters() if p.dim() == 2]
        is_moved = [list(optimizer.state[p]) == ["step"] for p in matrices]
        moved = sum(state for state, moves in zip(states, is_moved, strict=True) if moves)
        assert wanted <= moved < wanted + max(states)
        assert len(optimizer._place.disk) == sum(is_moved)
    for number in range(1, 6):
        step(plain, reference, number)
    assert all(map(torch.equal, plain.parameters(), model.parameters()))
    expected, found = reference.state_dict()["state"], optimizer.state_dict()["state"]
    assert all(torch.equal(expected[i][name], found[i][name]) for i in expected for name in expected[i])
    optimizer._arrange(False, False)
    assert optimizer._place.disk is None and all(len(values) > 1 for values in optimizer.state.values())


# ---- when nothing can be moved -------------------------------------------------------------------


def pair():
    plain, model = net(torch.float32), net(torch.float32)
    return plain, AdamW(plain.parameters(), lr=1e-2), model, AdamW(model.parameters(), lr=1e-2)


def failing(kind, call):
    """`call()`, of which the first read or write of the disk fails."""
    _core.fault_arm(kind, 1, 5)
    try:
        return call()
    finally:
        _core.fault_disarm_all()


def assert_same(plain, reference, model, optimizer):
    assert all(map(torch.equal, plain.parameters(), model.parameters()))
    expected, found = reference.state_dict()["state"], optimizer.state_dict()["state"]
    assert all(torch.equal(expected[i][name], found[i][name]) for i in expected for name in expected[i])


@pytest.mark.parametrize("ends_by", ["finishing", "loading"])
def test_a_plan_of_an_interrupted_step_moves_states_once_it_has_ended(ends_by):
    plain, reference, model, optimizer = pair()
    optimizer._arrange(True, False, directory="/var/tmp")
    step(model, optimizer, 0)
    step(plain, reference, 0)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    with pytest.raises(OffloadError):
        failing("read", lambda: step(model, optimizer, 1))
    before = len(optimizer._place.disk)
    optimizer._arrange(True, False, moved_bytes=1_000_000, directory="/var/tmp")
    assert len(optimizer._place.disk) == before
    if ends_by == "finishing":
        optimizer.finish_step()
    else:
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
    assert 0 < len(optimizer._place.disk) < before
    optimizer.zero_grad()
    if ends_by == "loading":
        step(model, optimizer, 1)
    step(plain, reference, 1)
    assert_same(plain, reference, model, optimizer)


def test_a_plan_in_the_middle_of_a_released_step_moves_states_at_its_end():
    plain, reference, model, optimizer = pair()
    optimizer._arrange(True, True, directory="/var/tmp")
    step(model, optimizer, 0)
    torch.manual_seed(1)
    model(torch.randint(2000, (4, 16))).float().square().mean().backward()  # updates
    before = len(optimizer._place.disk)
    optimizer._arrange(True, True, moved_bytes=1_000_000, directory="/var/tmp")
    assert len(optimizer._place.disk) == before
    optimizer.step()
    assert 0 < len(optimizer._place.disk) < before
    for number in range(2):
        step(plain, reference, number)
    assert_same(plain, reference, model, optimizer)


def test_a_state_that_cannot_come_back_stays_on_disk(caplog):
    plain, reference, model, optimizer = pair()
    optimizer._arrange(True, False, directory="/var/tmp")
    step(model, optimizer, 0)
    before = len(optimizer._place.disk)
    failing("read", lambda: optimizer._arrange(True, False, moved_bytes=1_000_000, directory="/var/tmp"))
    assert "optimizer state stays where it is" in caplog.text
    assert len(optimizer._place.disk) == before
    step(model, optimizer, 1)
    for number in range(2):
        step(plain, reference, number)
    assert_same(plain, reference, model, optimizer)


# ---- by plans ----------------------------------------------------------------------------------------

_PLANNED = textwrap.dedent(
    """
    import hashlib, json, sys
    import torch, memscale
    from memscale.optim import AdamW

    LAYERS, WIDTH, STEPS = 12, 1024, 5  # 100 MB of state
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(LAYERS)))
    optimizer = AdamW(model.parameters(), lr=1e-2)
    budget = float(sys.argv[1])
    if budget:
        config = memscale.Config(memory_budget_gb=budget / 1e9, disk_offload_dir="/var/tmp", enable_logging=False)
        memscale.apply_all_optimizations(model, optimizer, config)

    losses = []
    for number in range(STEPS):
        torch.manual_seed(number)
        loss = model(torch.randn(32, WIDTH)).square().mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with open("/proc/self/status") as file:
        most = 1024 * next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    values = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    told = {"losses": losses, "parameters": hashlib.sha256(values).hexdigest(), "peak_bytes": most}
    if budget:
        told["text"] = model._memscale_executor.plan.explain()
        told["disk_bytes"] = optimizer._place.disk.stats()["disk_bytes"]
        memscale.detach(model)
        assert optimizer._place.disk is None
    print(json.dumps(told))
    """
)


def planned(budget_bytes):
    """Runs under the budget and returns what the run printed. If the budget is refused, returns the smallest one."""
    done = run_python("-c", _PLANNED, str(budget_bytes))
    refused = re.search(r"smallest budget that would fit is .*?\((\d+) bytes", done.stderr)
    if refused:
        return int(refused[1])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_larger_budget_moves_less_with_the_same_bits():
    plain, smallest = planned(0), planned(50e6)
    runs = []
    for more in (2e6, 32e6, 62e6):
        run = planned(smallest + more)
        assert (run["losses"], run["parameters"]) == (plain["losses"], plain["parameters"])
        assert run["peak_bytes"] <= smallest + more + 2e6
        assert re.search(r"state_on_disk( \(.* of it\))? is on", run["text"])
        runs.append(run)
    assert runs[0]["disk_bytes"] > runs[1]["disk_bytes"] > runs[2]["disk_bytes"] > 0
    assert "of it) is on: optimizer state lies on disk" in runs[2]["text"]


def test_shapes_that_alternate_move_no_state():
    model = net(torch.float32)
    config = memscale.Config(force_optimize=True, enable_logging=False, disk_offload_dir="/var/tmp")
    model, optimizer = memscale.apply_all_optimizations(model, AdamW(model.parameters(), lr=1e-2), config)
    step(model, optimizer, 0)
    planner = model._memscale_executor._planner
    document = json.loads(model._memscale_executor.plan.to_json())
    for option in document["step_options"]:
        option["chosen"] = option["name"] == "state_on_disk"
    one = 8 * WIDTH * WIDTH

    def plan(states):
        parts = {} if states is None else {"state_moved_bytes": states * one}
        return ExecutionPlan(json.dumps({**document, **parts}))

    counts = []
    for mine, others in ((plan(2), 5), (plan(5), 2), (plan(2), None), (plan(6), 1), (plan(None), 3)):
        planner._plans = {"mine": mine, "another's": plan(others)}
        planner.plan_applied(mine)
        counts.append(len(optimizer._place.disk))
    memscale.detach(model)
    assert counts == [5, 5, LAYERS + 1, 6, LAYERS + 1]  # the most that any shape's plan moves
