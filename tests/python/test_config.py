"""`Config`: names, defaults and order are the published ones; every bad value names its field."""

import copy
import dataclasses
import fractions
import inspect
import json
import pathlib
import pickle
import subprocess
import sys

import pytest

from memscale import _core
from memscale.config import AsyncOffloadConfig, Config, OptimizationMode
from memscale.errors import ConfigError, MemScaleError

PUBLISHED = {
    "mode": OptimizationMode.BALANCED,
    "enable_checkpointing": True,
    "enable_offloading": True,
    "enable_tiling": False,
    "use_mixed_precision": False,
    "use_8bit_optimizer": False,
    "max_cpu_offload_gb": None,
    "target_gpu_utilization": 0.85,
    "force_optimize": False,
    "use_static_profiling": True,
    "use_empirical_fallback": True,
    "warmup_steps": 2,
    "enable_logging": True,
    "log_file": None,
    "observability_port": None,
    "verify_correctness": False,
    "strict_budget": False,
    "async_offload": None,
    "async_config": None,
    "auto_policy": False,
    "memory_budget_gb": None,
    "disk_offload_dir": None,
    "max_disk_offload_gb": None,
}
BOOLS = [name for name, value in PUBLISHED.items() if isinstance(value, bool)]
GB = "max_cpu_offload_gb", "memory_budget_gb", "max_disk_offload_gb"
NAN, INF = float("nan"), float("inf")

GOOD = {
    "mode": [*OptimizationMode, "conservative", "balanced", "aggressive"],
    **{name: [True, False] for name in BOOLS},
    "max_cpu_offload_gb": [0, 0.5, 64, None],
    "max_disk_offload_gb": [0, 0.5, 1_000_000, None],
    "memory_budget_gb": [1e-9, 3.8, 4, fractions.Fraction(7, 2), 1_000_000, None],
    "target_gpu_utilization": [0.001, 0.5, 1, 1.0],
    "warmup_steps": [1, 1000],
    "log_file": ["run.log", "ä/ö.log", pathlib.Path("logs/run.log"), None],
    "disk_offload_dir": ["/scratch", pathlib.Path("/scratch/a b"), None],
    "observability_port": [1, 9090, 65535, None],
    "async_offload": [True, False, None],
    "async_config": [AsyncOffloadConfig(), AsyncOffloadConfig(pinned_pool_gb=1.5, num_streams=2), None],
}

NUMBER = [NAN, INF, -INF, "4", True, [4], {}, 10**400, fractions.Fraction(10**400), object()]
BAD = {
    "mode": ["fast", "BALANCED", "", None, 1, True, pathlib.Path("balanced")],
    **{name: [1, 0, "yes", None, 1.0] for name in BOOLS},
    "max_cpu_offload_gb": [-0.1, -1, 1e7, *NUMBER],
    "max_disk_offload_gb": [-0.1, -1, 1e7, *NUMBER],
    "memory_budget_gb": [0, 0.0, -1.0, 1e-12, 1e7, *NUMBER],
    "target_gpu_utilization": [0, 0.0, -0.5, 1.01, 85, None, *NUMBER],
    "warmup_steps": [0, -1, 1001, 2.0, None, 2**70, *NUMBER],
    "log_file": ["", 3, True, "a\0b", b"bytes", "\udcff", "x" * 5000],
    "disk_offload_dir": ["", 3, True, "a\0b", b"bytes", "\udcff", "x" * 5000],
    "observability_port": [0, -1, 65536, 9090.0, *NUMBER],
    "async_offload": [1, 0, "yes", 1.0],
    "async_config": [3, "on", {}, {"num_streams": 1}, True],
}


def test_names_order_and_defaults_are_the_published_ones():
    config = Config()
    assert {field.name: getattr(config, field.name) for field in dataclasses.fields(config)} == PUBLISHED
    assert [field.name for field in dataclasses.fields(Config)] == list(PUBLISHED)


def test_defaults_in_c_are_the_defaults_in_python():
    assert json.loads(_core.config_defaults()) == json.loads(Config().to_json())
    assert json.loads(_core.config_validate('{"version": 1}')) == json.loads(Config().to_json())


def test_async_config_has_the_published_fields():
    expected = {"pinned_pool_gb": None, "prefetch_depth": None, "num_streams": None, "debug": False}
    assert dataclasses.asdict(AsyncOffloadConfig()) == expected


def test_every_field_is_documented():
    for kind in Config, AsyncOffloadConfig:
        for field in dataclasses.fields(kind):
            assert f"\n        {field.name}: " in kind.__doc__


def test_mode_is_a_string_and_an_enum():
    assert OptimizationMode("aggressive") is OptimizationMode.AGGRESSIVE == "aggressive"
    config = Config(mode="conservative")
    assert config.mode is OptimizationMode.CONSERVATIVE


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in GOOD for value in GOOD[name]])
def test_good_values_reach_c(name, value):
    config = Config(**{name: value})
    written = json.loads(config.to_json())[name]
    if name == "async_config":
        value = dataclasses.asdict(value or AsyncOffloadConfig())
    elif isinstance(value, pathlib.Path):
        value = str(value)
        assert getattr(config, name) == value
    elif name == "async_offload":
        value = value is not False  # None means true
    assert written == value


def test_good_values_cover_every_field():
    assert set(GOOD) == set(BAD) == set(PUBLISHED)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in BAD for value in BAD[name]])
def test_bad_values_raise_and_name_the_field(name, value):
    with pytest.raises(ConfigError) as caught:
        Config(**{name: value})
    error = caught.value
    assert isinstance(error, ValueError) and isinstance(error, MemScaleError)
    assert error.field == name
    assert error.code == -5
    assert str(error).startswith(f"{name}: ") and " is not allowed; give " in str(error)
    if type(value) in (int, bool, type(None), list, dict) and value != 10**400:
        assert f"{name}: {value!r} is not allowed" in str(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pinned_pool_gb", 0),
        ("pinned_pool_gb", NAN),
        ("prefetch_depth", 0),
        ("prefetch_depth", 1.0),
        ("prefetch_depth", 1025),
        ("num_streams", True),
        ("num_streams", 65),
        ("debug", 1),
    ],
)
def test_bad_async_values_name_the_nested_field(name, value):
    with pytest.raises(ConfigError) as caught:
        AsyncOffloadConfig(**{name: value})
    assert caught.value.field == f"async_config.{name}"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"memory_budget_gb": -1.0},
            "memory_budget_gb: -1.0 is not allowed; give a positive number of GB (1e9 bytes) or None",
        ),
        ({"mode": "fast"}, "mode: 'fast' is not allowed; give 'conservative', 'balanced' or 'aggressive'"),
        ({"memory_budget_gb": NAN}, "memory_budget_gb: nan is not allowed; "),
        ({"observability_port": 70000}, "70000 is not allowed; give a port from 1 to 65535 or None"),
        ({"target_gpu_utilization": 1.3}, "target_gpu_utilization: 1.3 is not allowed; "),
        ({"enable_tiling": None}, "enable_tiling: None is not allowed; give True or False"),
    ],
)
def test_messages_say_field_value_and_what_is_allowed(fields, text):
    with pytest.raises(ConfigError) as caught:
        Config(**fields)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("memory_budget", "memory_budget_gb"),
        ("enable_offload", "enable_offloading"),
        ("log_fil", "log_file"),
        ("Mode", "mode"),
        ("batch_size", None),
        ("x" * 70, None),
    ],
)
def test_unknown_fields_are_refused_and_the_nearest_is_named(given, meant):
    text = f"{given[:64]}: there is no such field" + (f"; did you mean {meant}?" if meant else "")
    with pytest.raises(TypeError) as caught:
        Config(**{given: 4.0})
    assert str(caught.value) == f"Config: {text}"
    with pytest.raises(ConfigError) as refused:
        _core.config_validate(json.dumps({"version": 1, given: 4.0}))
    assert str(refused.value) == text


def test_unknown_fields_of_the_inner_config_too():
    with pytest.raises(TypeError) as caught:
        AsyncOffloadConfig(prefetch=4)
    assert str(caught.value) == (
        "AsyncOffloadConfig: async_config.prefetch: there is no such field; did you mean prefetch_depth?"
    )
    assert list(inspect.signature(AsyncOffloadConfig).parameters) == [
        field.name for field in dataclasses.fields(AsyncOffloadConfig)
    ]


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"version": 2}', "{}", '{"version": 1, "mode": 1,}'])
def test_documents_that_are_no_config_are_refused(text):
    with pytest.raises(MemScaleError):
        _core.config_validate(text)


def test_later_assignments_are_checked_when_used():
    config = Config()
    config.warmup_steps = 0
    with pytest.raises(ConfigError) as caught:
        config.to_json()
    assert caught.value.field == "warmup_steps"
    config.warmup_steps = 3
    config.mode = "aggressive"
    config.disk_offload_dir = pathlib.Path("/scratch")
    written = json.loads(config.to_json())
    assert (written["warmup_steps"], written["mode"]) == (3, "aggressive")
    assert written["disk_offload_dir"] == "/scratch"


def test_nothing_of_the_callers_is_mutated():
    transfers = AsyncOffloadConfig(num_streams=2)
    config = Config(async_config=transfers, mode="aggressive", memory_budget_gb=4)
    before = copy.deepcopy(config)
    config.to_json()
    assert config == before
    assert config.async_config is transfers == AsyncOffloadConfig(num_streams=2)
    assert type(config.memory_budget_gb) is int


def test_configs_can_be_compared_copied_and_pickled():
    config = Config(memory_budget_gb=4.1, async_config=AsyncOffloadConfig(debug=True))
    assert pickle.loads(pickle.dumps(config)) == config == copy.deepcopy(config)
    assert dataclasses.replace(config, memory_budget_gb=5.0).memory_budget_gb == 5.0


@pytest.mark.parametrize("value", [0.1, 1.1, 3.8, 4.1, 7.236, 123456.789012345, 1e-9])
def test_the_normalised_document_is_a_fixed_point(value):
    once = Config(memory_budget_gb=value).to_json()
    assert json.loads(once)["memory_budget_gb"] == value
    assert _core.config_validate(once) == once


def test_numbers_do_not_depend_on_the_locale():
    code = (
        "import locale\n"
        "for name in 'de_DE.UTF-8', 'fr_FR.UTF-8', 'C.UTF-8':\n"
        "    try: locale.setlocale(locale.LC_ALL, name); break\n"
        "    except locale.Error: pass\n"
        "from memscale.config import Config\n"
        "print(Config(memory_budget_gb=3.8).to_json())\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(out)["memory_budget_gb"] == 3.8


def test_importing_config_does_not_import_torch():
    code = "import sys, memscale.config, memscale.errors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_misspelled_field_is_refused_also_when_it_is_assigned_or_read():
    text = "Config: memory_budget: there is no such field; did you mean memory_budget_gb?"
    config = Config()
    with pytest.raises(AttributeError) as assigned:
        config.memory_budget = 4
    with pytest.raises(AttributeError) as read:
        _ = config.memory_budget
    assert str(assigned.value) == str(read.value) == text
    with pytest.raises(AttributeError, match="did you mean num_streams"):
        AsyncOffloadConfig().num_stream = 2
    assert not hasattr(config, "__deepcopy__") and config == Config()
