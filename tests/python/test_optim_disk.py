"""State on disk has the bits of a state in memory, in every form and after every exchange. After a failure, the step
can be finished, or the incomplete state is refused."""

import copy
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from forked_python import run_python

torch = pytest.importorskip("torch")

from optim_support import new_gradients, parameters, small_task, train  # noqa: E402

import memscale  # noqa: E402
from memscale import _core  # noqa: E402
from memscale.optim import AdamW, AdamW8bit  # noqa: E402

# The first and third are streamed; the second is small enough to stay in memory.
SHAPES = [(150, 130), (7,), (40, 500)]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def disk(tmp_path):
    # tmp_path may lie on a memory file system, which is refused.
    directory = os.environ.get("MEMSCALE_TEST_DISK", "/var/tmp")
    return {"state": "disk", "disk_offload_dir": directory}


def equal_states(a, b):
    return all(
        torch.equal(a["state"][i][name], b["state"][i][name])
        for i in a["state"]
        for name in a["state"][i].keys() | b["state"][i].keys()
    )


def twins(disk, shapes=SHAPES, dtype=torch.float32, **kwargs):
    memory, streamed = parameters(shapes, dtype), parameters(shapes, dtype)
    return memory, streamed, AdamW(memory, lr=1e-2, **kwargs), AdamW(streamed, lr=1e-2, **kwargs, **disk)


FORMS = [
    {},
    {"amsgrad": True},
    {"maximize": True, "weight_decay": 0.3},
    {"dtype": torch.bfloat16},
    {"dtype": torch.bfloat16, "bf16": "master"},
    {"state_bits": 8},
    {"state_bits": 8, "dtype": torch.bfloat16},
]


@pytest.mark.parametrize("kwargs", FORMS, ids=str)
def test_parameters_and_state_have_the_bits_of_memory(disk, kwargs):
    memory, streamed, a, b = twins(disk, **kwargs)
    for step in range(4):
        new_gradients(memory, streamed, seed=step)
        a.step()
        b.step()
    assert all(torch.equal(p, q) for p, q in zip(memory, streamed, strict=True))
    assert list(b.state[streamed[0]]) == ["step"]
    assert "exp_avg" in b.state[streamed[1]]
    assert equal_states(a.state_dict(), b.state_dict())
    assert b.state_dict()["state"].keys() == a.state_dict()["state"].keys()


def test_strides_groups_schedulers_and_missing_gradients(disk):
    shapes = [(64, 30, 3, 3), (200, 100)]

    def make(**kwargs):
        ps = parameters(shapes)
        ps[0] = ps[0].detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        ps.append(ps[1].detach().t().contiguous().t().requires_grad_())
        optimizer = AdamW([{"params": ps[:1], "lr": 0.1}, {"params": ps[1:]}], **kwargs)
        return ps, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    (memory, a, s), (streamed, b, t) = make(), make(**disk)
    for step in range(4):
        new_gradients(memory, streamed, seed=step)
        if step == 2:
            memory[1].grad = streamed[1].grad = None
        for each in (a, b, s, t):
            each.step()
    assert all(torch.equal(p, q) for p, q in zip(memory, streamed, strict=True))
    assert equal_states(a.state_dict(), b.state_dict())
    assert b.state_dict()["state"][0]["exp_avg"].stride() == streamed[0].stride()


@pytest.mark.parametrize("kwargs", FORMS, ids=str)
def test_a_resumed_run_is_the_uninterrupted_one(disk, tmp_path, kwargs):
    memory, streamed, a, b = twins(disk, **kwargs)
    kwargs = {name: value for name, value in kwargs.items() if name != "dtype"}
    for step in range(2):
        new_gradients(memory, streamed, seed=step)
        a.step()
        b.step()
    torch.save(b.state_dict(), tmp_path / "o.pt")
    again = [p.detach().clone().requires_grad_() for p in streamed]
    c = AdamW(again, lr=1e-2, **kwargs, **disk)
    c.load_state_dict(torch.load(tmp_path / "o.pt", mmap=True))
    new_gradients(memory, again, seed=9)
    a.step()
    c.step()
    assert all(torch.equal(p, q) for p, q in zip(memory, again, strict=True))
    assert equal_states(a.state_dict(), c.state_dict())


def test_states_go_to_and_come_from_torch_and_memory(disk):
    memory, streamed, a, b = twins(disk)
    new_gradients(memory, streamed, seed=1)
    a.step()
    b.load_state_dict(a.state_dict())
    assert equal_states(a.state_dict(), b.state_dict())
    theirs = torch.optim.AdamW([p.detach().clone().requires_grad_() for p in streamed], lr=1e-2)
    theirs.load_state_dict(b.state_dict())
    assert equal_states(theirs.state_dict(), b.state_dict())
    b.load_state_dict(theirs.state_dict())
    assert equal_states(theirs.state_dict(), b.state_dict())


def test_a_state_dict_is_a_snapshot(disk):
    _, streamed, _, b = twins(disk)
    b.step()
    before = b.state_dict()["state"][0]["exp_avg"]
    value = before.clone()
    new_gradients(streamed, seed=3)
    b.step()
    assert torch.equal(before, value)


def test_copies_have_a_file_of_their_own(disk):
    memory, streamed, a, b = twins(disk)
    b.step()
    a.step()
    c = copy.deepcopy(b)
    assert equal_states(b.state_dict(), c.state_dict())
    copies = c.param_groups[0]["params"]
    new_gradients(memory, streamed, copies, seed=2)
    a.step()
    c.step()
    assert all(torch.equal(p, q) for p, q in zip(memory, copies, strict=True))
    b.step()
    assert equal_states(b.state_dict(), c.state_dict())


@pytest.mark.parametrize("fused", [False, True])
def test_a_grad_scaler_works(disk, fused):
    results = []
    for kwargs in ({}, disk):
        torch.manual_seed(0)
        model = torch.nn.Linear(200, 150)
        optimizer = AdamW(model.parameters(), lr=0.1, fused=fused, **kwargs)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(5, 200)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append([model.weight.detach(), model.bias.detach(), model.weight.grad])
    assert all(torch.equal(p, q) for p, q in zip(*results, strict=True))


def test_8_bit_state_may_lie_on_disk_and_take_the_place_of_another(disk):
    model, batch = small_task()
    old = AdamW(model.parameters(), **disk)
    train(model, batch, old, 5)
    expected = old.state_dict()
    _, new = memscale.apply_all_optimizations(
        model, old, memscale.Config(use_8bit_optimizer=True, enable_logging=False)
    )
    assert isinstance(new, AdamW8bit) and not old.state
    twin = AdamW8bit([p.detach().clone().requires_grad_() for p in model.parameters()])
    twin.load_state_dict(expected)
    assert equal_states(twin.state_dict(), new.state_dict())
    memscale.detach(model)


# ---- memory -------------------------------------------------------------------------------------


def test_state_takes_no_memory(disk):
    script = """
        import os, sys, torch, memscale
        def resident(name):
            line = next(l for l in open("/proc/self/status") if l.startswith(name))
            return int(line.split()[1]) * 1024
        torch.set_num_threads(1)
        p = torch.nn.Parameter(torch.zeros(6000, 4096))  # 98 MB, its state 197 MB
        p.grad = torch.ones_like(p)
        optimizer = memscale.optim.AdamW([p], state="disk", disk_offload_dir=sys.argv[1])
        open("/proc/self/clear_refs", "w").write("5")
        before = resident("VmRSS")
        optimizer.step()
        optimizer.step()
        state = optimizer.state_dict()
        again = memscale.optim.AdamW([p], state="disk", disk_offload_dir=sys.argv[1])
        again.load_state_dict(state)
        print((resident("VmHWM") - before) / 1e6)
    """
    answer = run_script(script, disk["disk_offload_dir"], check=True)
    # Two sets of buffers, and the pages read from the mapped file: one tensor's two moments.
    assert float(answer.stdout) < 2 * 34 + 200 + 30


def run_script(script, *args, **kwargs):
    return run_python("-c", textwrap.dedent(script), *args, **kwargs)


# ---- failures --------------------------------------------------------------------------------------


def test_a_full_disk_is_told_nothing_goes_on_and_the_step_can_be_finished(disk):
    shapes = [(1200, 1024), (1200, 1024)]  # 9.8 MB of state each
    memory, streamed = parameters(shapes), parameters(shapes)
    a = AdamW(memory)
    b = AdamW(streamed, **disk, max_disk_offload_gb=0.014)
    a.step()
    with pytest.raises(memscale.OffloadError, match="cap of 14.00 MB") as caught:
        b.step()
    assert "finish_step" in caught.value.__notes__[0]
    done = [torch.equal(p, q) for p, q in zip(memory, streamed, strict=True)]
    assert done == [True, False]
    for refused in (b.step, b.state_dict, lambda: copy.deepcopy(b)):
        with pytest.raises(memscale.IntegrationError, match="interrupted.*finish_step"):
            refused()
    with pytest.raises(memscale.OffloadError, match="cap"):
        b.finish_step()


@pytest.mark.parametrize(("kind", "nth"), [("read", 1), ("read", 2), ("flip", 1), ("flip", 2)])
def test_a_step_that_failed_is_finished_with_the_bits_of_one_that_did_not(disk, kind, nth):
    memory, streamed, a, b = twins(disk)
    for step in range(3):
        new_gradients(memory, streamed, seed=step)
        a.step()
        if step == 1:
            _core.fault_arm(kind, nth, 5)
            try:
                with pytest.raises(memscale.OffloadError):
                    b.step()
            finally:
                _core.fault_disarm_all()
            with pytest.raises(memscale.IntegrationError, match="interrupted"):
                b.step()
            b.finish_step()
            b.finish_step()
        else:
            b.step()
    assert all(torch.equal(p, q) for p, q in zip(memory, streamed, strict=True))
    assert equal_states(a.state_dict(), b.state_dict())


def test_loading_a_checkpoint_ends_an_interruption(disk):
    shapes = [(1200, 1024), (1200, 1024)]
    streamed = parameters(shapes)
    b = AdamW(streamed, **disk, max_disk_offload_gb=0.014)
    with pytest.raises(memscale.OffloadError):
        b.step()
    saved = {"state": {}, "param_groups": AdamW(streamed).state_dict()["param_groups"]}
    b.load_state_dict(saved)
    assert not b.state and b._place.disk.stats()["disk_bytes"] == 0
    streamed[1].grad = None
    b.step()
    assert float(b.state[streamed[0]]["step"]) == 1


def test_a_state_that_can_not_be_loaded_as_a_whole_is_not_used(disk):
    shapes = [(1200, 1024), (1200, 1024)]
    source = AdamW(parameters(shapes))
    source.step()
    b = AdamW(parameters(shapes), **disk, max_disk_offload_gb=0.014)
    with pytest.raises(memscale.OffloadError, match="cap"):
        b.load_state_dict(source.state_dict())
    with pytest.raises(memscale.IntegrationError, match="only a part of its state was loaded"):
        b.step()


def test_a_kill_in_a_step_leaves_the_checkpoint_and_no_file(disk, tmp_path):
    script = """
        import sys, torch, memscale
        p = torch.nn.Parameter(torch.ones(2000, 1024))
        optimizer = memscale.optim.AdamW([p], state="disk", disk_offload_dir=sys.argv[1])
        p.grad = torch.ones_like(p)
        optimizer.step()
        torch.save({"p": p, "optimizer": optimizer.state_dict()}, sys.argv[2])
        print("saved", flush=True)
        while True:
            optimizer.step()
    """
    directory = tmp_path / "spill"
    directory.mkdir()
    where = directory if not memory_file_system(directory) else disk["disk_offload_dir"]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(where), str(tmp_path / "c.pt")], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"saved\n"
        child.send_signal(signal.SIGKILL)
    assert list(directory.iterdir()) == []
    saved = torch.load(tmp_path / "c.pt")
    p = saved["p"]
    resumed = AdamW([p], **disk)
    resumed.load_state_dict(saved["optimizer"])
    expected = torch.nn.Parameter(torch.ones(2000, 1024))
    straight = AdamW([expected])
    for q in (p, expected):
        q.grad = torch.ones_like(q)
    straight.step()
    assert torch.equal(p, expected)
    straight.step()
    resumed.step()
    assert torch.equal(p, expected)


def memory_file_system(directory):
    try:
        _core.disk_probe(str(directory))
    except memscale.ConfigError:
        return True
    return False


# ---- fork ------------------------------------------------------------------------------------------


def test_a_child_is_told_and_can_load_a_checkpoint(disk, tmp_path):
    script = """
        import os, sys, torch, memscale
        torch.set_num_threads(1)
        params = [torch.nn.Parameter(torch.ones(s)) for s in [(700, 512), (30,)]]
        for p in params:
            p.grad = torch.full_like(p, 0.5)
        optimizer = memscale.optim.AdamW(params, state="disk", disk_offload_dir=sys.argv[1])
        optimizer.step()
        saved = optimizer.state_dict()
        child = os.fork()
        if child == 0:
            before = [p.detach().clone() for p in params]
            for use in (optimizer.step, optimizer.finish_step, optimizer.state_dict):
                try:
                    use()
                    sys.exit("no error")
                except memscale.IntegrationError as error:
                    assert "process that forked" in str(error) and not getattr(error, "__notes__", None), error
            assert all(torch.equal(p, q) for p, q in zip(params, before))
            optimizer.load_state_dict(saved)
            optimizer.step()
            torch.save(params, sys.argv[2])
            sys.exit(0)  # the whole way out, destructors and all
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        optimizer.step()
        assert all(torch.equal(p, q) for p, q in zip(params, torch.load(sys.argv[2], weights_only=False)))
    """
    answer = run_script(script, disk["disk_offload_dir"], str(tmp_path / "params.pt"))
    assert answer.returncode == 0, answer.stderr


def test_children_of_a_process_that_steps_come_to_their_end(disk):
    script = """
        import os, sys, threading, torch, memscale
        torch.set_num_threads(1)
        p, q = (torch.nn.Parameter(torch.ones(1500, 1024)) for _ in range(2))
        p.grad = torch.ones_like(p)
        optimizer = memscale.optim.AdamW([p], state="disk", disk_offload_dir=sys.argv[1])
        optimizer.step()
        ends = threading.Event()
        steps = [1]
        def step_on():
            while not ends.is_set():
                optimizer.step()
                steps[0] += 1
        thread = threading.Thread(target=step_on)
        thread.start()
        data = torch.utils.data.DataLoader(torch.arange(8), num_workers=2, multiprocessing_context="fork")
        for _ in range(3):
            assert sorted(int(x) for x in data) == list(range(8))
        for _ in range(10):
            child = os.fork()
            if child == 0:
                try:
                    optimizer.step()
                except memscale.IntegrationError:
                    del optimizer
                    os._exit(0)
                os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
        ends.set()
        thread.join()
        q.grad = torch.ones_like(q)
        straight = memscale.optim.AdamW([q])
        for _ in range(steps[0]):
            straight.step()
        assert torch.equal(p, q)
    """
    answer = run_script(script, disk["disk_offload_dir"])
    assert answer.returncode == 0, answer.stderr


# ---- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"state": "ssd"}, "state: 'ssd' is not allowed; allowed are 'memory', 'host' and 'disk'"),
        ({"disk_offload_dir": "/var/tmp"}, "need state='disk'"),
        ({"state": "disk", "max_disk_offload_gb": -1.0}, "max_disk_offload_gb: -1.0 is not allowed"),
        ({"state": "disk", "max_disk_offload_gb": "4"}, "max_disk_offload_gb: '4' is not allowed"),
        ({"state": "disk", "disk_offload_dir": 3}, "disk_offload_dir: 3 is not allowed; give a path"),
        ({"state": "disk", "disk_offload_dir": "/proc/nowhere"}, "disk_offload_dir: /proc/nowhere"),
    ],
)
def test_bad_arguments_are_refused(kwargs, text):
    with pytest.raises(memscale.ConfigError, match=text):
        AdamW(parameters([(3,)]), **kwargs)


def test_a_profiled_step_leaves_no_state_in_memory(disk):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        p = torch.nn.Parameter(torch.empty(512, 512))
        p.grad = torch.empty(512, 512)
        optimizer = AdamW([p], **disk)
        optimizer.step()
    assert list(optimizer.state[p]) == ["step"]
    assert optimizer._place.disk is None


# ---- parameters that change ----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_changed_shape_is_refused_by_name(disk, place):
    p = torch.nn.Parameter(torch.ones(200, 100))
    optimizer = AdamW([p], **(disk if place == "disk" else {}))
    p.grad = torch.ones_like(p)
    optimizer.step()
    p.grad = None
    p.data = torch.ones(300, 100)
    p.grad = torch.ones_like(p)
    with pytest.raises(memscale.IntegrationError, match=r"parameter 0 of group 0 has shape \(300, 100\), its state"):
        optimizer.step()
    assert torch.equal(p, torch.ones(300, 100))


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_parameter_may_be_laid_out_otherwise_between_steps(disk, place):
    runs = []
    for moves in (False, True):
        p = parameters([(40, 20, 5, 5)])
        optimizer = AdamW(p, lr=0.1, **(disk if place == "disk" else {}))
        for step in range(3):
            if moves and step == 1:
                p[0].data = p[0].data.contiguous(memory_format=torch.channels_last)
            new_gradients(p, seed=step)
            optimizer.step()
        runs.append((p[0].detach(), optimizer.state_dict()["state"][0]["exp_avg"]))
    for straight, moved in zip(*runs, strict=True):
        assert torch.equal(straight, moved)
