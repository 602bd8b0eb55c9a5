"""State that a layer keeps besides parameters and buffers: a replay sees the state of its forward, and leaves the
state that an unwrapped run has."""

import contextlib
import copy
import functools
import random
from collections import Counter, defaultdict, deque

import pytest

torch = pytest.importorskip("torch")
import numpy  # noqa: E402
from execute_support import TECHNIQUES, assert_same, executing, seed_everything, uniform  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations, parametrize  # noqa: E402

import memscale  # noqa: E402

WIDTH = 12


class _Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.other = nn.Linear(WIDTH, WIDTH)

    def state(self):
        return []


class _Statistics(_Layer):
    """Keeps tensors as plain attributes; forward rebinds, writes and uses them."""

    def __init__(self):
        super().__init__()
        self.scale = None
        self.count = torch.zeros(1)

    def forward(self, x):
        y = self.linear(x)
        now = y.detach().std(0) + 0.1
        self.scale = now if self.scale is None else 0.5 * self.scale + 0.5 * now
        self.count += 1
        return x + self.other(torch.tanh(y / self.scale) * self.count)

    def state(self):
        return [self.scale, self.count]


class _Bank(_Layer):
    """Keeps a list of earlier results, which later calls use."""

    def __init__(self):
        super().__init__()
        self.bank = []

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        self.bank.append(y.detach().mean(0))
        self.bank = self.bank[-3:]
        return x + self.other(y * torch.stack(self.bank).sum(0))

    def state(self):
        return list(self.bank)


class _Meter:
    def __init__(self):
        self.count = 0


class _Containers(_Layer):
    """Keeps containers of every kind, nested and in an object."""

    def __init__(self):
        super().__init__()
        self.recent = deque(maxlen=3)
        self.seen = {"calls": []}
        self.counts, self.sums, self.meter = Counter(), defaultdict(int), _Meter()

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        self.seen["calls"].append(1)
        self.counts["calls"] += 1
        self.sums["calls"] += 2
        self.meter.count += 1
        self.recent.append(float(y.detach().mean()))  # a trace stops here
        return torch.sigmoid(self.other(y * self.sums["calls"]))  # saves a tensor at its end

    def state(self):
        return [list(self.recent), self.seen["calls"], self.counts["calls"], self.sums["calls"], self.meter.count]


def _counted(calls, more=[0]):  # noqa: B006
    calls[0] += 1
    more[0] += 1
    return float(calls[0] + more[0])


class _Nested(_Layer):
    """Keeps containers that have no name: in lists, in the arguments of a partial, as a default."""

    def __init__(self):
        super().__init__()
        self.rows = [[0], {"calls": [0]}, bytearray(1)]
        self.calls = functools.partial(_counted, [0])
        _counted.__defaults__[0][0] = 0

    def forward(self, x):
        self.rows[0][0] += 1
        self.rows[1]["calls"].append(1)
        self.rows[2][0] += 1
        scale = self.rows[0][0] + len(self.rows[1]["calls"]) + self.rows[2][0] + self.calls()
        return torch.sigmoid(self.other(torch.tanh(self.linear(x)) * scale / 9))

    def state(self):
        return [self.rows[0], self.rows[1]["calls"], list(self.rows[2]), self.calls.args[0], _counted.__defaults__[0]]


class _Drawing(_Layer):
    """Draws from Python's and NumPy's generators that the layer keeps."""

    def __init__(self):
        super().__init__()
        self.python = random.Random(3)
        self.numpys = [numpy.random.default_rng(4), numpy.random.RandomState(5)]

    def forward(self, x):
        noise = torch.from_numpy(self.numpys[0].random(WIDTH)).float() * self.python.random()
        return x + self.other(torch.tanh(self.linear(x)) * noise) * float(self.numpys[1].rand())

    def state(self):
        return [self.python.random(), self.numpys[0].random(), self.numpys[1].rand()]


class _Uncounted(_Layer):
    """Writes to buffers past their versions: by NumPy's view, by `.data`, and only the sign of a zero."""

    def __init__(self):
        super().__init__()
        self.register_buffer("viewed", torch.ones(WIDTH))
        self.register_buffer("data", torch.ones(2, WIDTH).t())
        self.register_buffer("sign", torch.zeros(WIDTH))

    def forward(self, x):
        versions = [buffer._version for buffer in self.buffers()]
        self.viewed.numpy()[:] *= 0.9
        self.data.data.mul_(0.8)
        self.sign.numpy()[:] *= -1
        assert versions == [buffer._version for buffer in self.buffers()]
        y = torch.tanh(self.linear(x)) * self.viewed * self.data[:, 0]
        return x + self.other(torch.tanh(y) * torch.ones(WIDTH).copysign(self.sign))

    def state(self):
        return [*self.buffers(), torch.ones(WIDTH).copysign(self.sign)]


class _Shadowing(_Layer):
    """Makes an attribute at its first call that hides one of its class."""

    temperature = 1.0

    def forward(self, x):
        self.temperature = self.temperature * 1.1
        return x + self.other(torch.tanh(self.linear(x) * self.temperature))

    def state(self):
        return [self.temperature]


class _Clamped(_Layer):
    """Forward writes to a parameter, so the layer can't be recomputed and isn't."""

    def forward(self, x):
        with torch.no_grad():
            self.linear.weight.mul_(0.9).clamp_(-0.2, 0.2)
        return x + self.other(torch.tanh(self.linear(x)))


class _Normed(_Layer):
    """Forward assigns a parameter's data."""

    def forward(self, x):
        self.linear.weight.data = self.linear.weight.data * 0.9
        self.other.weight.data.mul_(0.9)
        return x + self.other(torch.tanh(self.linear(x)))

    def state(self):
        return [self.linear.weight, self.other.weight]


class _Cached(_Layer):
    """Keeps tables that an evaluation before training made in inference mode."""

    def __init__(self):
        super().__init__()
        with torch.inference_mode():
            self.register_buffer("table", torch.linspace(0.1, 1.0, WIDTH))
            self.other_table = torch.linspace(1.0, 2.0, WIDTH)

    def forward(self, x):
        scaled = torch.sin(self.linear(x) * self.table.clone()) * self.other_table.clone()
        return x + self.other(torch.tanh(scaled))


KINDS = (_Statistics, _Bank, _Containers, _Nested, _Drawing, _Uncounted, _Shadowing)


def _run(kind, start):
    seed_everything(1)
    model = nn.Sequential(*(kind() for _ in range(3)), nn.Linear(WIDTH, 2))
    seen = []
    with start(model):
        for step in range(3):
            loss = model(torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(step))).square().sum()
            loss.backward()
            seen.append([loss.detach(), *(p.grad for p in model.parameters())])
            model.zero_grad()
    return [*seen, [layer.state() for layer in model[:3]]]


class _Plain:
    def __init__(self, model):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


@pytest.mark.parametrize("technique", TECHNIQUES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_sees_the_state_of_its_call_and_leaves_none(kind, technique, tmp_path):
    assert_same(_run(kind, lambda model: executing(model, uniform(model, technique), tmp_path)), _run(kind, _Plain))


@pytest.mark.parametrize("kind", (*KINDS, _Clamped, _Normed, _Cached))
def test_a_planned_step_is_the_plain_one(kind):
    """The trace draws no random number and leaves nothing behind."""
    config = memscale.Config(force_optimize=True, mode="aggressive")
    assert_same(_run(kind, lambda model: memscale.optimize(model, config=config)), _run(kind, _Plain))


def test_a_part_that_was_put_into_a_layer_later_updates_its_statistics_once(tmp_path):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2)))
    with executing(model, uniform(model, "recompute"), tmp_path) as executor:
        model[1][1] = nn.BatchNorm1d(WIDTH)
        model(torch.randn(4, WIDTH, requires_grad=True)).sum().backward()
        assert executor.counters()["recomputed_layers"] == 2
        assert model[1][1].num_batches_tracked == 1


def test_buffers_that_were_made_in_inference_mode_do_no_harm(tmp_path):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2)))
    with torch.inference_mode():
        for layer in model:
            layer.register_buffer("cache", torch.ones(3))
            layer.table = torch.ones(3)
    with executing(model, uniform(model, "recompute"), tmp_path) as executor:
        model(torch.randn(4, WIDTH, requires_grad=True)).sum().backward()
        assert executor.counters()["recomputed_layers"] == 2


class _Parametrized(nn.Module):
    """Layers with weight norm and spectral norm, each called twice."""

    def __init__(self):
        super().__init__()
        norms = (parametrizations.weight_norm, parametrizations.spectral_norm)
        self.layers = nn.ModuleList(
            nn.Sequential(norms[index % 2](nn.Linear(WIDTH, WIDTH)), nn.Tanh()) for index in range(4)
        )

    def forward(self, x):
        for layer in (*self.layers, *self.layers):
            x = x + layer(x)
        return x.square().mean()


def _cached_steps(model):
    """Steps whose forward, backward or both run under `parametrize.cached()`; some read a weight before forward."""
    results = []
    for step in range(8):
        x = torch.randn(6, WIDTH)
        in_forward, in_backward, used_before = step % 4 in (0, 1, 3), step % 4 in (1, 2, 3), step % 4 == 3
        with parametrize.cached() if in_forward else contextlib.nullcontext():
            penalty = model.layers[1][0].weight.square().sum() if used_before else 0.0
            loss = model(x) + penalty
            if in_forward and in_backward:
                loss.backward()
        if not in_forward:
            with parametrize.cached():
                loss.backward()
        elif not in_backward:
            loss.backward()
        results.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
        model.zero_grad()
    return results + [[buffer.clone() for buffer in model.buffers()]]


@pytest.mark.parametrize("technique", [*TECHNIQUES, "selective_4"])
def test_weights_that_a_context_caches_are_those_of_the_call(technique, tmp_path):
    """This holds even if a layer's second call writes to buffers that its first call read."""
    plain = _Parametrized()
    model = copy.deepcopy(plain)
    seed_everything(3)
    expected = _cached_steps(plain)
    with executing(model, uniform(model, technique), tmp_path):
        seed_everything(3)
        assert_same(_cached_steps(model), expected)
    assert parametrize._cache_enabled == 0 and not parametrize._cache


def test_a_step_under_cached_weights_can_be_traced_and_verified():
    plain = _Parametrized()
    model = memscale.wrap(copy.deepcopy(plain), memscale.Config(force_optimize=True, verify_correctness=True))
    seed_everything(3)
    expected = _cached_steps(plain)
    seed_everything(3)
    assert_same(_cached_steps(model), expected)
    assert model._memscale_executor._planner.documents[0] is not None
    assert not model._memscale_executor._planner._warm_up.is_untraceable
    memscale.detach(model)
