"""The exceptions: the base classes and the attributes of each."""

import copy
import pickle

import pytest

from memscale import errors

LEAVES = [
    errors.ConfigError,
    errors.ProfileError,
    errors.BudgetInfeasibleError,
    errors.OffloadError,
    errors.IntegrationError,
    errors.PolicyFallbackNeeded,
]


@pytest.mark.parametrize("kind", LEAVES)
def test_every_error_is_a_memscale_error(kind):
    assert issubclass(kind, errors.MemScaleError)
    assert set(LEAVES) | {errors.MemScaleError} == {getattr(errors, name) for name in errors.__all__}


def test_only_config_error_is_a_value_error():
    assert [kind for kind in LEAVES if issubclass(kind, ValueError)] == [errors.ConfigError]
    assert not issubclass(errors.MemScaleError, ValueError)


@pytest.mark.parametrize("kind", [errors.MemScaleError, *LEAVES])
def test_code_errno_and_hint_are_carried(kind):
    error = kind("what happened", code=-9, system_errno=28, hint_bytes=7)
    assert (str(error), error.code, error.system_errno, error.hint_bytes) == ("what happened", -9, 28, 7)
    plain = kind("what happened")
    assert (plain.code, plain.system_errno, plain.hint_bytes) == (None, 0, 0)


@pytest.mark.parametrize("clone", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize("kind", [errors.MemScaleError, *LEAVES])
def test_copies_keep_everything(kind, clone):
    error = kind("warmup_steps: 0 is not allowed", code=-5, system_errno=28, hint_bytes=7)
    again = clone(error)
    assert type(again) is kind
    assert (again.args, again.__dict__) == (error.args, error.__dict__)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("memory_budget_gb: -1.0 is not allowed; give a positive number", "memory_budget_gb"),
        ("async_config.num_streams: 0 is not allowed", "async_config.num_streams"),
        ("not a field: 3", None),
        ("no colon", None),
        ("", None),
    ],
)
def test_config_error_names_its_field(message, field):
    assert errors.ConfigError(message).field == field
    assert errors.ConfigError(message, field="given").field == "given"


def test_budget_error_names_the_smallest_budget():
    error = errors.BudgetInfeasibleError("too small", hint_bytes=3_000_000_000)
    assert error.smallest_budget_bytes == 3_000_000_000


def test_offload_error_names_tier_file_and_errno():
    error = errors.OffloadError("full", tier="disk", file="/scratch", system_errno=28)
    assert (error.tier, error.file, error.errno) == ("disk", "/scratch", 28)
    unknown = errors.OffloadError("full")
    assert (unknown.tier, unknown.file, unknown.errno) == (None, None, None)
