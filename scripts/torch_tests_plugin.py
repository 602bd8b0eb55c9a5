"""A pytest plugin that wraps every module which a test calls; `scripts/torch_tests.py` starts pytest with it.

With `--technique T`, the first outermost call of a module with gradients enabled wraps it, under plans that use T for
every layer that admits it. A module without layers becomes the one layer of a holder, which is called in its place.
Wraps end with the test's method. With `--technique held`, modules are put into holders and not wrapped. Without
`--technique`, such calls are only counted.

Each test adds two lines of JSON to the file of `--record`: its name when it begins; then its outcome, the error, the
number of calls, and what plans did (layers run again, tensors recomputed, storages offloaded). Tests with a line in
the file are left out, so a run that a test has killed goes on behind that test.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import importlib.util
import json
import logging
import pathlib
import tempfile
import threading
import unittest
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import memscale
from memscale import Config, MemScaleError, _core
from memscale.base.aside import is_replaying, is_tracing
from memscale.config import OptimizationMode
from memscale.model.layers import find_layers
from memscale.session.session import Session

# Names that the tests import and that later versions of torch lack; they come from the tests' own tree.
_GONE = (
    ("torch.autograd._functions.utils", "check_onnx_broadcast"),
    ("torch.testing._internal.common_cuda", "tf32_is_not_fp32"),
    ("torch.testing._internal.common_mkldnn", "bf32_on_and_off"),
    ("torch.testing._internal.common_nn", "new_module_tests"),
)
_SECONDS_MOST = 600  # for hangs only: on a busy machine the first test's imports may take minutes
HELD = "held"
_WRAPS_MOST = 20  # in one test; some tests call thousands of modules
_ACTS = ("recomputed_layers", "remade_tensors", "offloaded_storages")


class Holder(torch.nn.ModuleList):
    """A model whose one layer is the module of a test."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self[0](*args, **kwargs)


def is_lazy(module: torch.nn.Module) -> bool:
    return any(torch.nn.parameter.is_lazy(parameter) for parameter in module.parameters())


class Wrapper:
    """Replaces `Module.__call__`, and holds the modules that were called since `begin()`."""

    def __init__(self, technique: str) -> None:
        self._technique = technique
        self._thread = threading.local()
        self._config = Config(
            mode=OptimizationMode.AGGRESSIVE,
            force_optimize=True,
            enable_logging=False,
            disk_offload_dir=tempfile.gettempdir(),
        )
        self.begin()

    def install(self) -> None:
        usual: Any = torch.nn.Module.__call__

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._is_outermost():
                return usual(module, *args, **kwargs)
            self._thread.is_inside = True
            self._calls += 1
            try:
                return usual(self._stand_in(module), *args, **kwargs)
            finally:
                self._thread.is_inside = False

        def plan(session: Session, graph: str) -> str:
            return _core.plan_uniform(graph, session.hardware_json, session.config_json, self._technique)

        torch.nn.Module.__call__ = call
        Session._make_plan = plan  # type: ignore[method-assign]

    def begin(self) -> None:
        self._calls = 0
        self._models: dict[torch.nn.Module, torch.nn.Module] = {}
        self._refused: list[str] = []

    def end(self) -> dict[str, Any]:
        """Unwraps all modules; returns what plans did to them."""
        wrapped = [model for model in self._models.values() if "_memscale_executor" in model.__dict__]
        counters = [model._memscale_executor.counters() for model in wrapped]
        for model in wrapped:
            memscale.detach(model)
        acts = {name: sum(counter[name] for counter in counters) for name in _ACTS}
        return {"calls": self._calls, "wrapped": len(wrapped), "refused": self._refused, **acts}

    def _is_outermost(self) -> bool:
        is_apart = is_replaying() or is_tracing() or torch.compiler.is_compiling() or torch.jit.is_tracing()
        return torch.is_grad_enabled() and not is_apart and not getattr(self._thread, "is_inside", False)

    def _stand_in(self, module: torch.nn.Module) -> torch.nn.Module:
        """The wrapped module to call in place of `module`."""
        has_hooks = "__prepare_scriptable__" in module.__dict__  # of memscale's
        if has_hooks or not self._technique or len(self._models) == _WRAPS_MOST:
            return self._models.get(module, module)
        known = self._models.get(module)
        if known is not None and (self._technique == HELD or "_memscale_executor" in known.__dict__):
            return known
        try:
            model = module if is_lazy(module) or find_layers(module) else Holder([module])
            if self._technique != HELD:
                memscale.wrap(model, self._config)
        except (MemScaleError, RecursionError) as error:
            self._refused.append(str(error))
            return module
        self._models[module] = model
        return model


class Recorder:
    """Writes down the outcome of each test; modules are wrapped from the beginning to the end of its method."""

    def __init__(self, path: pathlib.Path, only: set[str], wrapper: Wrapper) -> None:
        self._path = path
        self._only = only
        self._found: dict[str, Any] = {}
        self._surround_methods(wrapper)

    def _surround_methods(self, wrapper: Wrapper) -> None:
        usual: Any = unittest.TestCase._callTestMethod  # type: ignore[attr-defined]

        def call(case: unittest.TestCase, method: Any) -> None:
            wrapper.begin()
            try:
                usual(case, method)
            finally:
                self._found |= wrapper.end()  # before torch's test case looks for modes that are left

        unittest.TestCase._callTestMethod = call  # type: ignore[attr-defined]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        known = {json.loads(line)["test"] for line in lines}
        items[:] = [i for i in items if i.nodeid not in known and (not self._only or i.nodeid in self._only)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._found = {"outcome": "skipped"}
        self._write({"test": item.nodeid})
        gc.freeze()  # every wrap collects garbage
        faulthandler.dump_traceback_later(_SECONDS_MOST, exit=True)
        result = yield
        faulthandler.cancel_dump_traceback_later()
        self._write({"test": item.nodeid, **self._found})
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._found |= {"outcome": "failed", "error": report.longreprtext}
        elif report.when == "call" and report.passed and self._found["outcome"] == "skipped":
            self._found["outcome"] = "passed"

    def _write(self, entry: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def _take_from_tree(tree: pathlib.Path) -> None:
    for name, attribute in _GONE:
        module = importlib.import_module(name)
        if hasattr(module, attribute):
            continue
        spec = importlib.util.spec_from_file_location(f"tree.{name}", tree / f"{name.replace('.', '/')}.py")
        if spec is not None and spec.loader is not None:
            old = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(old)
            setattr(module, attribute, getattr(old, attribute))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--technique", default="", help="wrap every module, and use this technique where it is admitted")
    parser.addoption("--record", type=pathlib.Path, required=True, help="file to add the outcomes to")
    parser.addoption("--only", type=pathlib.Path, help="file with the names of the tests to run, one a line")
    parser.addoption("--tree", type=pathlib.Path, required=True, help="source tree of torch, with the tests")


def pytest_configure(config: pytest.Config) -> None:
    _take_from_tree(config.getoption("--tree"))
    logger = logging.getLogger("memscale")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    wrapper = Wrapper(config.getoption("--technique"))
    wrapper.install()
    only = config.getoption("--only")
    names = set(only.read_text(encoding="utf-8").splitlines()) if only else set()
    config.pluginmanager.register(Recorder(config.getoption("--record"), names, wrapper))
