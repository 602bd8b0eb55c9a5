"""Tests on the double of torch's CUDA (tests/torch_double). The double acts on its whole process, so these tests run in
processes without other tests.

TORCH_DOUBLE names the folder of the double; by default it is build/test/tests. If the double isn't there, no test runs.
"""

import gc
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path(os.environ.get("TORCH_DOUBLE", ROOT / "build" / "test" / "tests"))
IS_BUILT = (FOLDER / "torch_double" / "libtorch_double.so").exists()

# Rates that were measured on the double must not reach the user's cache.
os.environ["XDG_CACHE_HOME"] = str(FOLDER / "cache")

sys.path[:0] = [str(ROOT / "tests" / "torch_double"), str(ROOT / "tests" / "python")]
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
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    count, first = torch_double.violations()
    torch_double.reset()
    if request.node.get_closest_marker("breaks_rules") is None:
        assert count == 0, first


def pytest_configure(config: pytest.Config) -> None:
    if not IS_BUILT:
        pytest.exit(f"skipped: there is no double of torch's CUDA in {FOLDER}", returncode=0)
    config.addinivalue_line("markers", "breaks_rules: breaks a rule of order on purpose")
