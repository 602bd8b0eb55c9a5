"""The table of settings: a change of any of them is seen and put back, probes tell of every change that getters tell
of, and nothing is read by getters while nothing has changed."""

from __future__ import annotations

import textwrap

import pytest
import torch
from forked_python import run_python

from memscale import _core
from memscale.base import settings

HEAD = """
import itertools, warnings
import torch
from memscale import _core
from memscale.base import settings

NAMES = {"tf32", "bf16", "ieee", "none"}


def name_of(row):
    _, writers, probes = row
    return repr(writers[0][0]), probes


def others(value):
    "Other values that a setting of this value might take."
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, tuple):
        return [one for one in itertools.product(*([part, *others(part)] for part in value)) if one != value]
    if isinstance(value, str):
        return sorted({"tf32", "bf16", "ieee", "none", "high", "medium", "highest", "greedy", "optimal"} - {value})
    if isinstance(value, torch.dtype):
        return [one for one in (torch.float64, torch.bfloat16, torch.float16, torch.float32) if one != value]
    if isinstance(value, dict):
        return [{**value, "precision": value["precision"] + 1}]
    if isinstance(value, list):
        return [value[::-1], [*value]]
    if isinstance(value, int):
        return [value + 1, 0, value ^ 0x8000]
    return []


def changed(table, rows, at):
    "Sets another value in one row, by its writers; yields the row's value each time that its getters tell another."
    before = table.read()[at]
    for other in others(before):
        read, writers, probes = rows[at]
        try:
            with warnings.catch_warnings(record=True):
                _core.put_settings(_core.settings((rows[at],)), (other,))
        except (RuntimeError, TypeError, ValueError, KeyError):
            continue
        now = _core.settings(((read, writers, ()),)).read()[0]
        if now != before:
            yield before, now
"""


def run(code: str) -> str:
    """Runs the code in a new process, because some settings can't be undone."""
    code = HEAD + textwrap.dedent(code)
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_setting_is_seen_to_change_and_put_back():
    out = run(
        """
        rows = settings._rows()
        table, seen = _core.settings(tuple(rows)), 0
        for at, row in enumerate(rows):
            count = 0
            for before, now in changed(table, rows, at):
                taken = table.read()
                assert taken[at] == now, (row, taken[at], now)
                assert table.read() is taken
                count += 1
            if not count:
                print("not changed:", name_of(row)[0])
        """
    )
    # What this build can't set: no other engine is compiled in, and flags of hardware that isn't there.
    left = [line for line in out.splitlines() if "filters" not in line]
    assert len(left) <= 3, out


def test_only_settings_that_torch_may_refuse_to_read_have_no_probe():
    rows = settings._rows()
    plain = [rows[at][0] for at in _core.settings(tuple(rows)).plain_rows()]
    names = [getattr(read, "__name__", None) or (read[1] if isinstance(read, tuple) else "printing") for read in plain]
    known = {
        "_get_cudnn_allow_tf32", "_get_float32_matmul_precision", "printing", "filters",
        "_is_fastpath_enabled", "enabled", "strategy",
    }  # fmt: skip
    assert set(names) <= known


@pytest.mark.parametrize(
    "probes", [(("_no_such_symbol", 1, ()),), (("_ZN2at15get_num_threadsEv", 4, (("_none", "a"),)),)]
)
def test_a_setting_whose_function_this_torch_lacks_is_read_by_its_getter(probes):
    values = [1]
    table = _core.settings(((values.copy, (), probes),))
    assert table.plain_rows() == [0] and table.read() == ([1],)
    values[0] = 2
    assert table.read() == ([2],)


def test_a_probed_setting_is_not_read_again_while_its_probe_is_the_same():
    calls = []
    probe = ("_ZN2at8autocast25is_autocast_cache_enabledEv", 1, ())
    table = _core.settings((((lambda: calls.append(1)), (), (probe,)),))
    first = table.read()
    assert table.read() is first and len(calls) == 1
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(not before)
    try:
        table.read()
        assert len(calls) == 2
    finally:
        torch.set_autocast_cache_enabled(before)
    assert table.read() is first and len(calls) == 2  # the last few readings are remembered


def test_rows_that_share_a_probe_are_read_again_together():
    calls = []
    probe = ("_ZN2at8autocast25is_autocast_cache_enabledEv", 1, ())
    reads = [lambda: calls.append("first"), lambda: calls.append("second")]
    table = _core.settings(tuple((read, (), (probe, probe)) for read in reads))
    table.read()
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(not before)
    try:
        table.read()
    finally:
        torch.set_autocast_cache_enabled(before)
    assert calls == ["first", "second"] * 2 and not table.plain_rows()


@pytest.mark.skipif(
    not hasattr(torch._C, "_get_fp32_precision_getter"),
    reason=f"torch {torch.__version__} has no precisions that another setting changes",
)
def test_what_one_setting_changes_in_another_is_put_back():
    run(
        """
        table = settings.settings()
        before = table.read()
        torch.set_float32_matmul_precision("medium")
        after = table.read()
        assert sum(a != b for a, b in zip(before, after)) > 1
        _core.put_settings(table, before)
        assert table.read() == before
        _core.put_settings(table, after)
        assert table.read() == after
        """
    )


def test_a_writer_that_fails_leaves_the_others_set():
    at = {"a": 1, "b": 2}

    def fails(value):
        raise ValueError("no")

    good = (at, "b"), ((at.__setitem__, (), True),), ()
    table = _core.settings((((at, "a"), ((fails, (), True),), ()), good))
    wanted = table.read()
    at.update(a=5)
    with pytest.raises(ValueError, match="no"):
        _core.put_settings(table, wanted)


@pytest.mark.parametrize(
    "row", [1, (), (1, 2), (len, (), (1,)), (len, (), (("f", 9, ()),)), (len, (), (("f", 1, (1, 2)),))]
)
def test_wrong_rows_are_refused(row):
    with pytest.raises((TypeError, ValueError)):
        _core.settings((row,))


def test_wrong_values_and_ranges_are_refused():
    table = settings.settings()
    for wrong in (None, (), [1]):
        with pytest.raises(ValueError, match="as read"):
            _core.put_settings(table, wrong)
    for first, end in ((-1, 2), (0, 999)):
        with pytest.raises(ValueError, match="no such rows"):
            _core.put_settings(table, table.read(), first, end)
    with pytest.raises(TypeError, match="rows"):
        _core.settings([])
