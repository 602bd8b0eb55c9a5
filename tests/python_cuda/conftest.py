"""Tests on the double of torch's CUDA (tests/torch_double). The double acts on its whole process, so these tests run in
processes without other tests.

TORCH_DOUBLE names the folder of the double; by default it is build/test/tests. If the double isn't there, no test runs.
With MEMSCALE_TESTS_ON=gpu the tests run on a GPU instead (see card.py).
"""

import gc
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path(os.environ.get("TORCH_DOUBLE", ROOT / "build" / "test" / "tests"))
ON_GPU = os.environ.get("MEMSCALE_TESTS_ON") == "gpu"
IS_BUILT = ON_GPU or (FOLDER / "torch_double" / "libtorch_double.so").exists()

# Rates that were measured on the double must not reach the user's cache.
os.environ["XDG_CACHE_HOME"] = str(FOLDER / "cache")

sys.path[:0] = [str(ROOT / "tests" / "torch_double"), str(ROOT / "tests" / "python")]
if ON_GPU:
    import card

    sys.modules["torch_double"] = card
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch's deterministic algorithms need it
if IS_BUILT:
    import torch_double

    torch_double.load(str(FOLDER))
    gc.collect()
    gc.freeze()  # collections leave out the objects of torch; see tests/python/conftest.py


@pytest.fixture(autouse=True)
def double(request):
    """The double, reset before and after each test. A test that broke a rule of order fails, unless it is marked
    `breaks_rules`."""
    import torch

    torch.set_num_threads(1)  # two processes on two cores
    torch_double.reset()
    torch.cuda.empty_cache()
    yield torch_double
    for index in range(torch.cuda.device_count()):
        torch.cuda.synchronize(index)
    count, first = torch_double.violations()
    torch_double.reset()
    if request.node.get_closest_marker("breaks_rules") is None:
        assert count == 0, first


def pytest_collection_modifyitems(items):
    """On a GPU leaves out what needs the double: what breaks a device, loads the double in a process of its own, or
    has a budget below the workspaces of a GPU's libraries."""
    for item in items:
        if ON_GPU and item.get_closest_marker("double") is not None:
            item.add_marker(pytest.mark.skip(reason="needs the double"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Skips tests of two devices on a machine with one."""
    try:
        return (yield)
    except RuntimeError as error:
        if ON_GPU and "invalid device ordinal" in str(error):
            pytest.skip("this machine has one GPU")
        raise


def pytest_configure(config: pytest.Config) -> None:
    if not IS_BUILT:
        pytest.exit(f"skipped: there is no double of torch's CUDA in {FOLDER}", returncode=0)
    config.addinivalue_line("markers", "double: is left out on a GPU")
    config.addinivalue_line("markers", "breaks_rules: breaks a rule of order on purpose")


def pytest_ignore_collect(collection_path: pathlib.Path) -> bool | None:
    """On a GPU leaves out the tests of the double itself, and those whose processes load it."""
    return True if ON_GPU and collection_path.name in ("test_double.py", "test_ranks.py") else None
