"""Predictions never call an unsafe batch safe, the tuner survives any failure in a trial, and the caller's
model and random state stay unchanged."""

from __future__ import annotations

import json
import logging
import multiprocessing
import pathlib
import subprocess
import sys

import pytest
import torch
import tuning_support
from time_limits import HANG_SECONDS
from torch import nn

import memscale
from memscale import AutoTuner, Config, OOMPredictor, _core
from memscale.autotuning import payload, trial


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    caplog.set_level(logging.INFO, logger="memscale")


# -- OOMPredictor ----------------------------------------------------------------------------


def test_no_run_that_is_called_safe_needs_more() -> None:
    context = multiprocessing.get_context("spawn")
    false_safe, judged = [], 0
    for name in tuning_support.CASES:
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=tuning_support.measured_peak, args=(name, sender))
        child.start()
        assert receiver.poll(HANG_SECONDS), name
        predicted, measured = receiver.recv()
        child.join()
        # A prediction of up to 95 percent of the capacity counts as safe, so the peak may exceed it by that much.
        judged += 1
        if measured > predicted / 0.95:
            false_safe.append((name, predicted, measured))
        assert predicted < 2 * measured, f"{name}: {predicted} predicted, {measured} measured"
    assert judged == len(tuning_support.CASES)
    assert false_safe == []


def test_risk_follows_the_capacity_and_advice_says_what_to_change() -> None:
    model, sample = tuning_support.mlp(6, 256), torch.ones(65536, 256)
    need = OOMPredictor(model).predict(sample).need_bytes
    risks = []
    for share in (2.0, 1.1, 1.0, 0.9):
        found = OOMPredictor(model, Config(memory_budget_gb=need / 1e9 * share)).predict(sample)
        risks.append(found.risk)
        assert found.fits == (found.risk in ("low", "moderate"))
        assert bool(found.advice) == (found.risk != "low")
    assert risks[0] == "low"
    assert risks[1] in ("moderate", "high")
    assert risks[3] == "certain"
    tight = OOMPredictor(model, Config(memory_budget_gb=need / 1e9 * 0.85)).predict(sample)
    assert tight.planned_peak_bytes is not None
    assert "memscale.wrap() with memory_budget_gb=" in tight.advice[0]
    none = OOMPredictor(model, Config(memory_budget_gb=0.01)).predict(sample)
    assert none.planned_peak_bytes is None
    assert none.smallest_budget_bytes > 0.01e9
    assert "the smallest budget is" in none.advice[0]


def test_a_hugging_face_config_is_judged_without_its_weights() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=2048, n_head=4, vocab_size=50000)
    resident = _status("VmRSS:")
    small = OOMPredictor(config).predict(batch=1, sequence=16)
    large = OOMPredictor(config).predict(batch=8, sequence=256)
    assert _status("VmRSS:") < resident + 400e6  # the weights alone are 0.8 GB
    assert 4 * 0.8e9 < small.need_bytes < large.need_bytes


GPT2 = {"model_type": "gpt2", "n_layer": 4, "n_embd": 512, "n_head": 8, "vocab_size": 20000}


def test_a_configuration_file_is_judged_as_its_model_is(tmp_path: pathlib.Path) -> None:
    transformers = pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2), encoding="utf-8")
    shape = {"batch": 8, "sequence": 512}
    config = Config(memory_budget_gb=100.0)  # fixed, so that this machine's memory doesn't matter
    values = {name: value for name, value in GPT2.items() if name != "model_type"}
    model = OOMPredictor(transformers.GPT2Config(**values), config).predict(**shape)
    # For a file, the prediction assumes a fresh process with torch loaded. This process holds everything that the
    # tests have loaded, and has released some of it since.
    apart = 1.15 * abs(430e6 - _status("VmRSS:")) + 300e6
    for given in (GPT2, str(path), path, tmp_path):
        found = OOMPredictor(given, config).predict(**shape)
        assert abs(found.need_bytes - model.need_bytes) < apart
        assert found.risk == model.risk
    saved = memscale.estimate_savings(tmp_path, **shape)
    assert found.need_bytes > saved.unmodified_peak_bytes > saved.balanced["peak_bytes"] > 430e6
    with pytest.raises(TypeError, match="batch and sequence"):
        OOMPredictor(path).predict(torch.ones(1, 2, dtype=torch.long))
    with pytest.raises(TypeError, match="optimizer"):
        OOMPredictor(path, optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters()))
    with pytest.raises(memscale.MemScaleError, match="mamba"):
        OOMPredictor({"model_type": "mamba"}).predict(**shape)
    with pytest.raises(FileNotFoundError):
        OOMPredictor("gpt2")


def test_a_configuration_file_needs_neither_torch_nor_transformers() -> None:
    script = f"""
import sys
import memscale
found = memscale.OOMPredictor({GPT2}, memscale.Config(memory_budget_gb=1.5)).predict(batch=8, sequence=512)
assert found.planned_peak_bytes <= 1.5e9 < found.need_bytes, found
assert found.smallest_budget_bytes < 1.5e9 and found.advice
assert not {{"torch", "transformers", "numpy"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=HANG_SECONDS)


def _status(field: str) -> int:
    lines = pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def test_savings_grow_with_the_mode() -> None:
    saved = memscale.estimate_savings(tuning_support.mlp(6, 256), torch.ones(65536, 256))
    peaks = [saved.conservative["peak_bytes"], saved.balanced["peak_bytes"], saved.aggressive["peak_bytes"]]
    assert saved.unmodified_peak_bytes > peaks[0] >= peaks[1] >= peaks[2] > 0
    assert saved.conservative["step_ns"] >= saved.unmodified_step_ns > 0


@pytest.mark.parametrize("wrong", [None, 3, {}, nn.Linear])
def test_what_is_no_model_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"torch.nn.Module|Hugging Face"):
        OOMPredictor(wrong)
    with pytest.raises(TypeError, match=r"torch.nn.Module"):
        AutoTuner(wrong, torch.ones(2, 2))  # type: ignore[arg-type]


def test_a_shape_is_given_in_one_way() -> None:
    predictor = OOMPredictor(nn.Linear(2, 2))
    for arguments in (
        {},
        {"sample_input": torch.ones(1, 2), "batch": 1, "sequence": 1},
        {"batch": 0, "sequence": 1},
        {"batch": 1},
        {"batch": True, "sequence": 1},
    ):
        with pytest.raises(TypeError):
            predictor.predict(**arguments)


# -- trials -------------------------------------------------------------------------------------


def _trial(tmp_path: pathlib.Path, fault: str, limit_bytes: int = 2**32, timeout: float = HANG_SECONDS) -> dict:
    file = tmp_path / "payload"
    with file.open("wb") as stream:
        payload.dump((tuning_support.Misbehaves(fault), torch.optim.SGD, {"lr": 0.1}, torch.ones(2, 4), {}), stream)
    request = {"batch": 2, "accumulation": 1, "steps": 1, "wrapped": False}
    return trial.run(file, request, limit_bytes, timeout)


@pytest.mark.parametrize(
    ("fault", "outcomes"),
    [
        ("none", {"fits"}),
        ("raises", {"error"}),
        ("dies", {"killed"}),
        ("exits", {"killed"}),
        ("grows", {"killed", "out_of_memory"}),
    ],
)
def test_a_trial_ends_whatever_its_model_does(tmp_path: pathlib.Path, fault: str, outcomes: set[str]) -> None:
    answer = _trial(tmp_path, fault, limit_bytes=3 * 10**9 if fault == "grows" else 2**34)
    assert answer["outcome"] in outcomes, answer
    if fault == "raises":
        assert "no such luck" in answer["detail"]
    assert not multiprocessing.active_children()


def test_a_trial_that_hangs_is_ended(tmp_path: pathlib.Path) -> None:
    assert _trial(tmp_path, "hangs", timeout=8.0)["outcome"] == "timeout"


def test_structure_travels_and_large_weights_do_not(tmp_path: pathlib.Path) -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))
    model[1].weight = model[0].weight
    model.register_buffer("positions", torch.arange(100_000))
    with (tmp_path / "file").open("w+b") as file:
        payload.dump(model, file)
        assert file.tell() < 1_000_000
        file.seek(0)
        copy = payload.load(file)
    assert copy[1].weight is copy[0].weight
    assert isinstance(copy[0].weight, nn.Parameter)
    assert torch.equal(copy.positions, model.positions)
    assert copy[0].weight.shape == (512, 512)


# -- AutoTuner ------------------------------------------------------------------------------------


def test_the_largest_batch_is_found_kept_and_remembered(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _core.hardware_probe()
    model = tuning_support.mlp(8, 256)
    model.eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.random.get_rng_state()
    need = OOMPredictor(model).predict(torch.ones(1 << 14, 256)).need_bytes
    config = Config(memory_budget_gb=need / 1e9)

    def tuner(**changes: object) -> AutoTuner:
        return AutoTuner(
            model,
            torch.ones(4, 256),
            config,
            effective_batch=1 << 16,
            max_batch=1 << 16,
            max_trials=2,
            steps=1,
            **changes,
        )

    result = tuner().run()
    assert result.micro_batch * result.accumulation == 1 << 16
    assert result.micro_batch >= 1 << 12
    assert 1 <= len(result.trials) <= 2
    assert any(made.outcome == "fits" and made.peak_bytes <= need for made in result.trials)
    assert caplog.text.count("tuner: batch") == len(result.trials)
    again = tuner().run()
    assert again.from_cache
    assert (again.micro_batch, again.trials) == (result.micro_batch, result.trials)
    [kept] = tmp_path.glob("memscale/tuning-*.json")
    kept.write_text("{")
    assert tuner()._cache_path() == kept
    assert tuner(wrapped=False)._cache_path() != kept
    # The caller's model and random state are unchanged.
    assert not model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), random_state)
    assert "_memscale_executor" not in model.__dict__


def test_bad_arguments_are_refused() -> None:
    model, sample = nn.Linear(2, 2), torch.ones(1, 2)
    for wrong, error in (
        ({"optimizer": "adam"}, TypeError),
        ({"max_batch": 0}, ValueError),
        ({"max_trials": 1.5}, TypeError),
        ({"effective_batch": -1}, ValueError),
        ({"steps": True}, TypeError),
        ({"config": {}}, TypeError),
    ):
        with pytest.raises(error):
            AutoTuner(model, sample, **wrong)
    with pytest.raises(TypeError, match="sample_input"):
        AutoTuner(model, {"no": sample})
    local = AutoTuner(nn.Sequential(nn.Linear(2, 2), _local()), sample, cache=False, max_batch=2)
    with pytest.raises(memscale.MemScaleError, match="can't be copied into a trial"):
        local.run()


def _local() -> nn.Module:
    class Local(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    return Local()
