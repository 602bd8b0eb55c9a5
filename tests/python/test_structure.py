"""scripts/check_structure.py reports each kind of violation."""

import ast
import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("check_structure", ROOT / "scripts" / "check_structure.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("place", "include", "allowed"),
    [
        ("src/base/a.c", '"memscale/base.h"', True),
        ("src/base/a.c", '"graph/graph_internal.h"', False),
        ("src/base/a.c", '"memscale/graph.h"', False),
        ("src/graph/a.c", '"base/json.h"', True),
        ("src/graph/a.c", '"memscale/plan.h"', False),
        ("src/sim/a.c", '"memscale/rules.h"', True),
        ("src/sim/a.c", '"search/search.h"', False),
        ("src/offload/a.c", '"memscale/hardware.h"', False),
        ("src/offload/a.c", '"sim/sim.h"', False),
        ("src/base/a.c", '"memscale/unheard_of.h"', False),
        ("src/execute/a.c", '"memscale/plan.h"', True),
        ("src/execute/a.c", '"memscale/pipeline.h"', False),
        ("src/pipeline/pipeline.c", '"memscale/execute.h"', True),
        ("include/memscale/graph.h", '"memscale/plan.h"', False),
        ("src/graph/a.c", "<Python.h>", False),
        ("src/hostmem/a.c", "<c10/core/Allocator.h>", False),
        ("src/graph/a.c", "<stdio.h>", True),
        ("src/core/a.c", "<stdio.h>", False),
        ("src/loose.c", "<stdio.h>", False),
        ("ext/a.c", "<Python.h>", True),
        ("cli/a.c", '"memscale/pipeline.h"', True),
    ],
)
def test_includes_go_one_way(check, place, include, allowed):
    found = list(check.check_c_includes(check.ROOT / place, f"#include {include}\n"))
    assert (found == []) == allowed


@pytest.mark.parametrize(
    ("place", "text", "found"),
    [
        ("src/device/rows.c", 'name = "cuda";', False),
        ("src/sim/a.c", 'name = "cuda";', True),
        ("src/sim/a.c", "/* as on CUDA */\nint a;", False),
        ("ext/a.c", "PyImport_ImportModule(TORCH_CUDA);", True),
        ("src/rules/a.c", "if (hardware->device < 0) {", True),
        ("src/rules/a.c", "if (!ms_hardware_host_is_device(hardware)) {", False),
        ("src/hardware/hardware.c", "if (hardware->device < 0) {", False),
        ("python/memscale/device.py", "x = 'cuda'", False),
        ("python/memscale/optim/a.py", "x = 'cuda'", True),
        ("python/memscale/optim/a.py", "x = tensor.is_cuda", True),
        ("python/memscale/optim/a.py", "from torch import cuda", True),
        ("python/memscale/optim/a.py", "x = f'cuda:{index}'", True),
        ("python/memscale/optim/a.py", '"""On CUDA too."""  # and cuda', False),
        ("tests/python/a.py", "x = 'cuda'", False),
    ],
)
def test_only_the_seam_knows_kinds_of_device(check, place, text, found):
    assert bool(list(check.check_devices(check.ROOT / place, text))) == found


@pytest.mark.parametrize(
    ("place", "line", "allowed"),
    [
        ("session/session.py", "from ..errors import MemScaleError", True),
        ("session/session.py", "from .. import _core", True),
        ("session/session.py", "from ..api import wrap", False),
        ("session/session.py", "def f():\n    from memscale.api import wrap", False),
        ("session/session.py", "import memscale.integrations.huggingface", False),
        ("session/session.py", "from .. import wrap", False),
        ("planning/planner.py", "if TYPE_CHECKING:\n    from ..session.session import Session", False),
        ("tracing/profiler.py", "def f():\n    from ..execution import executor", False),
        ("execution/executor.py", "from ..tracing.live_profile import LiveProfile", True),
        ("loose.py", "import os", False),
        ("errors.py", "from .config import Config", False),
        ("config.py", "from .errors import ConfigError", True),
        ("api.py", "from .session.session import Session", True),
        ("benchmarks/demo.py", "import memscale", True),
    ],
)
def test_imports_go_one_way(check, place, line, allowed):
    found = list(check.check_python_imports(check.ROOT / "python" / "memscale" / place, ast.parse(line)))
    assert (found == []) == allowed


@pytest.mark.parametrize(
    ("imports", "circle"),
    [
        ({"a": "from . import b", "b": "from .r import c", "r/c": "import os"}, []),
        ({"a": "from .b import x", "b": "def f():\n    from . import a"}, ["a", "b", "a"]),
        ({"a": "if TYPE_CHECKING:\n    import memscale.r.c", "r/c": "from ..a import A"}, ["a", "r.c", "a"]),
    ],
)
def test_imports_in_a_circle_are_found(check, tmp_path, imports, circle):
    for name, text in {"__init__": "", "r/__init__": "", **imports}.items():
        path = tmp_path / "memscale" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = check.import_circle(check.python_import_graph(tmp_path / "memscale"))
    assert [name.removeprefix("memscale.") for name in found] == circle


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("        goto cleanup;", True),
        ("        goto out;", False),
        ("    rc = rc == MS_OK ? f() : rc;", False),
        ("    rc = rc != MS_OK ? rc", False),
        ("    return rc == MS_OK ? 0 : -1;", True),
    ],
)
def test_errors_have_one_style(check, line, allowed):
    path = check.ROOT / "src" / "graph" / "a.c"
    assert (list(check.check_code(path, line + "\n")) == []) == allowed


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/* See a.c. */", []),
        ("/* One file, step_NAME.c, and\n * its row in gone.c. */", ["line 2: there is no file gone.c"]),
        ('call("gone.c"); /* a.c */', []),
    ],
)
def test_comments_name_files_that_exist(check, text, found):
    assert list(check.check_named_sources(text, {"a.c"})) == found


def test_files_of_the_extension_include_one_way(check, tmp_path):
    (tmp_path / "a.h").write_text('#include "b.h"\n')
    (tmp_path / "b.c").write_text('#include "c.h"\n')
    (tmp_path / "c.h").write_text("")
    (tmp_path / "b.h").write_text("")
    assert check.import_circle(check.ext_include_graph(tmp_path)) == []
    (tmp_path / "c.c").write_text('#include "a.h"\n')
    assert check.import_circle(check.ext_include_graph(tmp_path)) == ["a", "b", "c", "a"]


def test_long_functions_are_found(check):
    def function(lines):
        return "static int f(int a,\n             int b)\n{\n" + "    a++;\n" * (lines - 4) + "}\n"

    table = "static const int t[] = {\n" + "    1,\n" * 300 + "};\n"
    text = "/*\n * A comment.\n */\n#include <stdio.h>\n\n" + table + "\n" + function(100) + "\n" + function(101)
    assert [length for _, length in check.long_c_functions(text)] == [101]
    source = "def short():\n" + "    x = 1\n" * 99 + "def long():\n" + "    x = 1\n" * 100
    assert list(check.long_python_functions(ast.parse(source))) == [(101, 101)]


def test_long_files_are_found(check):
    path = check.ROOT / "src" / "graph" / "a.c"
    assert list(check.check_code(path, "\n" * 800)) == []
    assert list(check.check_code(path, "\n" * 801)) == ["801 lines, more than 800"]


def test_paths_of_one_machine_are_found(check):
    text = "a\nb = '/ho" + "me/alice/x'\nc = '/ho" + "me/me/x'\n"
    assert [line for line, _ in check.forbidden_words(text)] == [2]
