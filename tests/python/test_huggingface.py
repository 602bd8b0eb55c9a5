"""Hugging Face Trainer: recognised by type, trained to the same bits, unchanged after detach()."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from execute_support import few_threads  # noqa: F401
from trainer_support import Sentences, arguments, gpt2, llama, losses, same_parameters, trainer, worked

import memscale
from memscale import Config

pytestmark = pytest.mark.usefixtures("few_threads")

FORCED = Config(force_optimize=True, enable_logging=False)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5, "lr_scheduler_type": "cosine"},
        {"bf16": True},
        {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True},
    ],
    ids=["plain", "accumulation", "bf16", "eval"],
)
@pytest.mark.parametrize("model", [gpt2, llama])
def test_training_is_equal_to_the_bit(tmp_path: Path, model: Any, options: dict[str, Any]) -> None:
    plain = trainer(tmp_path, model(), **options)
    plain.train()
    wrapped = trainer(tmp_path, model(), **options)
    assert memscale.wrap(wrapped, FORCED) is wrapped
    wrapped.train()
    assert worked(wrapped.model._memscale_executor)
    evaluated = [entry["eval_loss"] for entry in wrapped.state.log_history if "eval_loss" in entry]
    assert losses(wrapped) == losses(plain)
    assert evaluated == [entry["eval_loss"] for entry in plain.state.log_history if "eval_loss" in entry]
    assert same_parameters(wrapped.model, plain.model)
    memscale.detach(wrapped)


def test_predict_between_two_trainings_changes_nothing(tmp_path: Path) -> None:
    def run(subject: transformers.Trainer) -> list[Any]:
        subject.train()
        predictions = subject.predict(Sentences(2)).predictions
        subject.train()
        return [losses(subject), predictions.tolist()]

    expected = run(trainer(tmp_path))
    assert run(memscale.wrap(trainer(tmp_path), FORCED)) == expected


def test_a_resumed_training_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    plain = trainer(tmp_path / "plain", **options)
    plain.train()
    whole = memscale.wrap(trainer(tmp_path / "whole", **options), FORCED)
    whole.train()
    resumed = memscale.wrap(trainer(tmp_path / "whole", **options), FORCED)
    for parameter in resumed.model.parameters():
        parameter.data.zero_()  # shows any parameter that the checkpoint doesn't restore
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert worked(resumed.model._memscale_executor)
    assert losses(resumed) == losses(whole) == losses(plain)
    assert same_parameters(resumed.model, plain.model)


def test_a_model_made_by_model_init_is_wrapped(tmp_path: Path) -> None:
    def made() -> transformers.Trainer:
        return transformers.Trainer(model_init=lambda: gpt2(), args=arguments(tmp_path), train_dataset=Sentences())

    plain = made()
    plain.train()
    wrapped = memscale.wrap(made(), FORCED)
    before = wrapped.model
    wrapped.train()
    assert wrapped.model is not before
    assert "_memscale_executor" not in before.__dict__
    assert worked(wrapped.model._memscale_executor)
    assert losses(wrapped) == losses(plain)
    memscale.detach(wrapped)
    assert "_memscale_executor" not in wrapped.model.__dict__


def test_throughput_and_memory_are_in_the_log(tmp_path: Path) -> None:
    subject = memscale.wrap(trainer(tmp_path, gradient_accumulation_steps=2), FORCED)
    output = subject.train()
    lines = [entry for entry in subject.state.log_history if "loss" in entry]
    assert len(lines) == 3
    for line in lines:
        assert line["samples_per_second"] > 0
        assert 0.05 < line["memory_peak_gb"] < 50
    assert lines[-1]["memory_predicted_gb"] > 0
    assert output.metrics["train_memory_peak_gb"] == max(line["memory_peak_gb"] for line in lines)
    assert 0 < sum(4 / line["samples_per_second"] for line in lines) <= output.metrics["train_runtime"]


# ---- checkpointing and the cache ------------------------------------------------------------


def test_checkpointing_in_the_arguments_is_taken_over_and_given_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="memscale")
    subject = trainer(tmp_path, gradient_checkpointing=True)
    memscale.wrap(subject, FORCED)
    assert not subject.args.gradient_checkpointing
    assert not getattr(subject.args, "activation_checkpointing", False)
    assert "taken over" in caplog.text
    subject.train()
    assert worked(subject.model._memscale_executor)
    assert not subject.model.is_gradient_checkpointing
    assert "saved-tensor hooks of someone else" not in caplog.text
    memscale.detach(subject)
    assert subject.args.gradient_checkpointing is True


def test_checkpointing_on_the_model_is_taken_over_and_given_back(tmp_path: Path) -> None:
    model = gpt2()
    model.gradient_checkpointing_enable()
    before = {name: getattr(m, "gradient_checkpointing", None) for name, m in model.named_modules()}
    subject = memscale.wrap(trainer(tmp_path, model), FORCED)
    subject.train()
    assert worked(model._memscale_executor)
    memscale.detach(subject)
    assert {name: getattr(m, "gradient_checkpointing", None) for name, m in model.named_modules()} == before
    assert any(before.values())


def test_the_cache_is_off_in_training_and_as_before_afterwards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="memscale")
    subject = memscale.wrap(trainer(tmp_path, use_cache=True), Config(force_optimize=True))
    seen: list[bool] = []
    subject.model.transformer.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["use_cache"]), with_kwargs=True
    )
    subject.train()
    assert seen and not any(seen)
    assert "use_cache=False is passed" in caplog.text
    assert subject.model.config.use_cache is True  # checkpoints save this value
    memscale.detach(subject)
    assert "decides on use_cache again" in caplog.text
    subject.model.train()
    assert subject.model(input_ids=torch.ones(1, 4, dtype=torch.long)).past_key_values is not None


# ---- refusals and failures --------------------------------------------------------------------


def _state(subject: Any) -> Any:
    def of(module: torch.nn.Module) -> Any:
        hooks = {key: list(value) for key, value in module.__dict__.items() if key.endswith("_hooks")}
        return sorted(module.__dict__.keys() - {"_is_accelerate_prepared"}), hooks

    return sorted(subject.__dict__), {name: of(module) for name, module in subject.model.named_modules()}


def test_detach_leaves_the_trainer_as_it_was(tmp_path: Path) -> None:
    subject = trainer(tmp_path)
    before = _state(subject)
    memscale.wrap(subject, FORCED)
    assert _state(subject) != before
    assert memscale.detach(subject) is subject
    assert _state(subject) == before


class _Fails(transformers.TrainerCallback):
    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [ValueError("of the callback"), KeyboardInterrupt()])
def test_after_an_exception_nothing_is_left_and_training_can_begin_again(tmp_path: Path, error: BaseException) -> None:
    def break_off(subject: transformers.Trainer) -> transformers.Trainer:
        subject.add_callback(_Fails(error))
        with pytest.raises(type(error)):
            subject.train()
        return subject

    plain = break_off(trainer(tmp_path))
    plain.train()
    subject = trainer(tmp_path)
    modules = _state(subject)[1]
    break_off(memscale.wrap(subject, FORCED))
    assert _state(subject)[1] == modules
    subject.train()
    assert worked(subject.model._memscale_executor)
    assert losses(subject) == losses(plain)
    assert same_parameters(subject.model, plain.model)


def test_an_exception_in_a_layer_leaves_nothing(tmp_path: Path) -> None:
    subject = trainer(tmp_path)
    layer, calls = subject.model.transformer.h[1], []

    def fail(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("in the layer")

    layer.register_forward_hook(fail)
    modules = _state(subject)[1]
    memscale.wrap(subject, FORCED)
    with pytest.raises(RuntimeError, match="in the layer"):
        subject.train()
    assert _state(subject)[1] == modules
    assert not any(module._forward_pre_hooks for module in subject.model.modules())


def test_wrapping_twice_replaces_the_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="memscale")
    subject = trainer(tmp_path)
    before = _state(subject)
    memscale.wrap(subject, FORCED)
    memscale.wrap(subject, FORCED)
    assert "already wrapped" in caplog.text
    memscale.detach(subject)
    assert _state(subject) == before


def test_torch_compile_compiles_the_layers(tmp_path: Path) -> None:
    """The result is that of the layers compiled one by one, and torch's compiler sees no frame more."""
    from torch._dynamo.utils import counters

    def model() -> Any:
        made = gpt2(2)
        made.config.use_cache = False  # as wrapped models train
        return made

    plain = trainer(tmp_path, model())
    for block in plain.model.transformer.h:
        block.compile()
    plain.train()
    before = dict(counters["frames"])
    eager = trainer(tmp_path, model())  # seeds
    eager.train()
    subject = trainer(tmp_path, model(), torch_compile=True)
    memscale.wrap(subject, FORCED)
    subject.train()
    assert same_parameters(subject.model, plain.model)
    assert not same_parameters(eager.model, plain.model)
    assert dict(counters["frames"]) == before and worked(subject.model._memscale_executor)


def test_a_budget_that_cannot_be_met_ends_training_and_leaves_nothing(tmp_path: Path) -> None:
    subject = trainer(tmp_path)
    modules = _state(subject)[1]
    memscale.wrap(subject, Config(memory_budget_gb=0.001, enable_logging=False))
    with pytest.raises(memscale.BudgetInfeasibleError):
        subject.train()
    assert _state(subject)[1] == modules


@pytest.mark.parametrize("model", [gpt2, llama])
def test_a_model_that_looks_like_a_trainer_is_a_model(model: Any) -> None:
    looks = model()
    looks.args, looks.optimizer = None, None
    assert hasattr(looks, "train")
    assert memscale.wrap(looks, FORCED) is looks
    assert "_memscale_executor" in looks.__dict__
    memscale.detach(looks)


class _Subclass(transformers.Trainer):
    def compute_loss(self, model: Any, inputs: Any, **kwargs: Any) -> Any:
        return 2 * super().compute_loss(model, inputs, **kwargs)


def test_a_subclass_is_a_trainer(tmp_path: Path) -> None:
    def made() -> _Subclass:
        return _Subclass(model=gpt2(), args=arguments(tmp_path), train_dataset=Sentences())

    plain = made()
    plain.train()
    wrapped = memscale.wrap(made(), FORCED)
    wrapped.train()
    assert worked(wrapped.model._memscale_executor)
    assert losses(wrapped) == losses(plain)
