"""A step's memory is measured at its boundary and compared with the plan. The kernel's high-water mark belongs to the
user and is never reset."""

import json
import textwrap

import pytest
from forked_python import run_python

CHILD = textwrap.dedent(
    """
    import json, sys
    import torch, memscale
    from memscale import _core

    resets = sys.argv[1] == "reset"
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
              for _ in range(6)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    memscale.wrap(model, memscale.Config(memory_budget_gb=64.0, force_optimize=True, enable_offloading=False))
    planner = model._memscale_executor._planner
    seen, observe = [], planner.step_finished

    def step_finished(observation):
        seen.append(observation)
        return observe(observation)

    planner.step_finished = step_finished

    def mark():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

    marks = []
    for rows in (8192, 8192, 8192, 2048, 8192):
        _core.hostmem_trim(0, True)  # what is cached would count in the step after
        _core.hostmem_reset_peak()
        if resets:
            open("/proc/self/clear_refs", "w").write("5")
        model(torch.randn(rows, 256)).pow(2).mean().backward()
        optimizer.step()
        marks.append(mark())
        optimizer.zero_grad()
    print(json.dumps({"seen": seen, "marks": marks}))
    """
)


def steps(mode: str) -> tuple[list[dict], list[int]]:
    done = run_python("-c", CHILD, mode, check=True)
    report = json.loads(done.stdout)
    lines = [line for line in done.stderr.splitlines() if "memscale: step 2: peak " in line]
    assert len(lines) == 1 and " measured, " in lines[0]
    return report["seen"], report["marks"]


def test_a_step_s_peak_is_the_high_water_mark_of_that_step():
    seen, marks = steps("reset")
    assert [observation["step"] for observation in seen] == [1, 2, 3, 4, 5]
    for observation, mark in zip(seen, marks, strict=False):
        assert observation["peak_bytes"] == pytest.approx(mark, rel=0.03, abs=8e6)
        assert observation["held_bytes"] <= observation["peak_held_bytes"] <= observation["peak_bytes"]
        assert observation["resident_bytes"] <= observation["peak_bytes"]


def test_the_mark_is_left_alone_and_smaller_steps_are_still_told():
    seen, marks = steps("leave")
    assert marks == sorted(marks)
    assert seen[2]["peak_bytes"] == pytest.approx(marks[2], rel=0.03, abs=8e6)
    # A quarter of the batch: the step stays far below the mark of the earlier steps.
    assert seen[3]["peak_bytes"] < 0.9 * marks[3]
    assert seen[4]["peak_bytes"] == pytest.approx(seen[2]["peak_bytes"], rel=0.03, abs=8e6)


HOLDING = textwrap.dedent(
    """
    import copy, sys
    import torch, memscale

    how = sys.argv[1]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    MEGABYTE = 1_000_000

    class Pair(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024)

        def forward(self, x, both):
            return self.second(self.first(x)) if both else self.second(x)

    model = Pair()
    of_first, of_second = (torch.optim.Adam(part.parameters()) for part in (model.first, model.second))

    def iteration():
        for optimizer, both in ((of_second, False), (of_first, True)):
            model.zero_grad()
            model(torch.randn(64, 1024), both).square().mean().backward()
            optimizer.step()

    if how != "begun":
        iteration()
    memscale.wrap(model, memscale.Config(memory_budget_gb=16.0))
    planner = model._memscale_executor._planner
    told, holds_more = [], planner.holds_more
    planner.holds_more = lambda more_bytes, pending: told.append(more_bytes) or holds_more(more_bytes, pending)
    if how == "loaded":
        for optimizer in (of_first, of_second):
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for number in range(4):
        iteration()
        if number == 2:
            script = torch.zeros(20 * MEGABYTE // 4)
    print(sum(told) // MEGABYTE)
    """
)


@pytest.mark.parametrize("how", ["begun", "resumed", "loaded"])
def test_optimizers_state_is_not_what_the_script_holds(how: str) -> None:
    """Each optimizer's state takes 8.4 MB, and the plan counts it. Only the script's own tensor is told."""
    assert run_python("-c", HOLDING, how, check=True).stdout.strip() == "20"


REPLACED = textwrap.dedent(
    """
    import json
    import torch, memscale
    from memscale.tracing.profiler import load_tracer

    torch.set_num_threads(1)
    load_tracer()
    for fold in range(3):
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)])
        memscale.wrap(model, memscale.Config(memory_budget_gb=16.0))
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(3):
            loss = model(torch.randn(256, 1024)).square().mean()
            if step == 0:
                hardware = json.loads(model._memscale_executor._planner.documents[1])
                print(hardware["process"]["baseline_bytes"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        del loss  # its graph holds the parameters
    """
)


def test_a_model_that_another_replaces_is_no_part_of_the_process() -> None:
    """At the wrap, the last fold's parameters and its optimizer's state live (50 MB), and the cache is full."""
    first, *later = map(int, run_python("-c", REPLACED, check=True).stdout.split())
    assert all(baseline < first + 12e6 for baseline in later)  # a step loads libraries
