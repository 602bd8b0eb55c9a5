"""Parts that all files of the extension share: errors, numbers, fault points."""

import importlib.util
import inspect
import pathlib

import pytest

import memscale
from memscale import _core, errors


def test_every_code_of_the_library_has_its_exception_class():
    table = _core.error_table()
    assert len(table) >= 19
    for code, name, exception, text in table:
        assert code < 0
        assert name.startswith("MS_E")
        assert issubclass(getattr(errors, exception), errors.MemScaleError)
        assert text


def test_every_exception_class_is_raised_by_some_code():
    classes = {name for name in errors.__all__ if inspect.isclass(getattr(errors, name))}
    assert classes == {exception for _, _, exception, _ in _core.error_table()}


def test_the_stub_file_says_what_the_extension_says():
    place = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "core_stubs.py"
    spec = importlib.util.spec_from_file_location("core_stubs", place)
    core_stubs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core_stubs)
    assert core_stubs.stubs(_core) == core_stubs.PATH.read_text(encoding="utf-8")


def test_errors_carry_code_and_text():
    with pytest.raises(memscale.ConfigError) as caught:
        _core.config_validate('{"version": 1, "memory_budget_gb": -1}')
    assert caught.value.code == -5
    assert "memory_budget_gb" in str(caught.value)


def test_versions_agree():
    assert memscale.__version__ == _core.version()


def test_fault_points_are_armed_and_counted():
    with pytest.raises(ValueError, match="no fault kind"):
        _core.fault_arm("nothing", 1)
    blocks = _core.memory_live()[1]
    _core.fault_arm("alloc", 1, 12)
    try:
        with pytest.raises(memscale.MemScaleError):
            _core.config_validate('{"version": 1}')
        assert _core.fault_passed("alloc") >= 1
    finally:
        _core.fault_disarm_all()
    assert _core.memory_live()[1] == blocks


def test_the_clock_moves_forward():
    assert _core.now_ns() <= _core.now_ns()
