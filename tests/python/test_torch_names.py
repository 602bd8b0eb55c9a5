"""Names inside torch: memscale looks up every name that the sources use before it does anything else. If torch lacks
one, memscale names it in the refusal, or works without it."""

import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

import memscale  # noqa: E402
from memscale.base import torch_names  # noqa: E402
from memscale.techniques import cross_entropy  # noqa: E402

PACKAGE = pathlib.Path(memscale.__file__).parent


@pytest.fixture(autouse=True)
def asked_anew():
    torch_names.check_torch.cache_clear()
    yield
    torch_names.check_torch.cache_clear()


def names():
    return {name for group in torch_names._REQUIRED.values() for name in group} | torch_names._OPTIONAL.keys()


def test_this_torch_has_them_all(caplog):
    torch_names.check_torch()
    assert not caplog.records and all(torch_names.torch_has(name) for name in names())


@pytest.mark.parametrize(
    ("holder", "name"), [(torch._C, "_DisableAutocast"), (torch.overrides, "_push_mode"), (torch.Tensor, "_version")]
)
def test_a_missing_one_is_named_before_anything_is_done(monkeypatch, holder, name):
    model = torch.nn.Linear(3, 3)
    before = dict(model.__dict__)
    monkeypatch.setattr(holder, name, None)
    for use in (lambda: memscale.wrap(model), lambda: memscale.trace(model, torch.zeros(2, 3))):
        with pytest.raises(memscale.IntegrationError, match=f"{name}.*version of torch") as caught:
            use()
        assert torch.__version__ in str(caught.value)
    assert model.__dict__ == before


@pytest.mark.parametrize("name", ["_C._storage_Use_Count", "_C._autograd._get_current_graph_task_keep_graph"])
def test_what_can_be_done_without_has_a_notice_and_the_same_bits(monkeypatch, caplog, name):
    logits = torch.randn(40, 300, requires_grad=True)
    labels = torch.randint(0, 300, (40,))
    torch.nn.functional.cross_entropy(logits, labels).backward()
    expected, logits.grad = logits.grad, None
    holder = torch._C if name.count(".") == 1 else torch._C._autograd
    monkeypatch.delattr(holder, name.rsplit(".", 1)[1])
    torch_names.check_torch()
    assert f"has no torch.{name}: the exact loss head" in caplog.text
    cross_entropy(logits * 1, labels).backward()
    assert torch.equal(logits.grad, expected)


def test_a_torch_that_lacks_some_is_refused_with_its_version(monkeypatch):
    """What a user of torch 2.5 reads if that version lacks a name."""
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    monkeypatch.delattr(torch._C, "_DisableAutocast")
    with pytest.raises(memscale.IntegrationError) as caught:
        memscale.wrap(torch.nn.Linear(3, 3))
    assert "torch 2.5.1 does not have (making single results again: torch._C._DisableAutocast)" in str(caught.value)


def test_a_torch_that_does_not_tell_the_top_of_the_hooks_is_used_or_refused():
    """Python is told from 2.8 on. Before, a function of the library tells C, by a name that 2.8 no longer has."""
    run(
        """
        import torch, memscale
        from torch._C import _autograd
        tells = getattr(_autograd, "_top_saved_tensors_default_hooks", None)
        if tells is not None:
            del _autograd._top_saved_tensors_default_hooks
        try:
            memscale.wrap(torch.nn.Linear(3, 3))
        except memscale.IntegrationError as error:
            assert tells is not None and "_top_saved_tensors_default_hooks" in str(error), error
            assert torch.__version__ in str(error), error
        else:
            assert tells is None
        """
    )


def test_the_sources_use_no_other():
    private = re.compile(r"\btorch((?:\.\w+)*\.(?:_C|overrides|_python_dispatch|_subclasses\.fake_tensor)\.[\w.]+)")
    used = {found[1:] for path in PACKAGE.rglob("*.py") for found in private.findall(path.read_text())}
    listed = names()
    unlisted = {name for name in used if not any(name == one or name.startswith(one + ".") for one in listed)}
    # Names that listed ones contain, and public names.
    public = {"overrides.TorchFunctionMode", "_C._autograd"}
    assert {name for name in unlisted if name not in public and not name.startswith("overrides.Torch")} == set()


def run(script):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_optimizer_of_ours_may_be_the_first_to_be_traced():
    run(
        """
        import torch, memscale
        m = torch.nn.Linear(8, 8)
        memscale.trace(m, torch.zeros(2, 8), memscale.optim.AdamW(m.parameters()))
        """
    )


def test_optimizer_and_heads_need_no_name_of_tracing():
    """Functions that need no wrap() work with a torch that wrap() refuses."""
    run(
        """
        import torch, torch._subclasses.fake_tensor as fakes
        m = torch.nn.Linear(300, 300)
        torch.optim.AdamW(m.parameters())  # torch's own parts that need it are loaded
        del fakes.FakeTensor
        import memscale
        labels = torch.randint(0, 300, (9,))
        for options in ({}, {"state": "disk", "disk_offload_dir": "/var/tmp"}, {"release_gradients": True}):
            optimizer = memscale.optim.AdamW(m.parameters(), **options)
            memscale.techniques.cross_entropy(m(torch.randn(9, 300)), labels).backward()
            memscale.techniques.linear_cross_entropy(torch.randn(9, 300), m.weight, labels).detach()
            optimizer.step()
            optimizer.zero_grad()
            optimizer.load_state_dict(optimizer.state_dict())
        try:
            memscale.wrap(m)
        except memscale.IntegrationError as error:
            assert "fake_tensor.FakeTensor" in str(error)
        else:
            raise SystemExit("no error")
        """
    )
