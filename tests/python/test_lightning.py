"""Lightning, under both import names: trained to the same bits, unchanged after detach(). Skipped if it is not
installed; `make test` installs it."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from execute_support import few_threads, hook_tables  # noqa: F401
from torch import nn
from trainer_support import same_parameters, worked

import memscale
from memscale import Config, IntegrationError

pytestmark = [
    pytest.mark.usefixtures("few_threads"),
    pytest.mark.filterwarnings("ignore"),  # Lightning's advice on workers and loggers
]

FORCED = Config(force_optimize=True, enable_logging=False)
PACKAGES = ("lightning.pytorch", "pytorch_lightning")
WIDTH = 32


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param)
    return importlib.import_module(request.param)


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1)) for _ in range(4)])


def _data() -> torch.utils.data.DataLoader:
    rows = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(3))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=4)


def _module(package: Any, manual: bool = False, split: bool = False, through_forward: bool = True) -> Any:
    class Module(package.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            net = _net()
            if split:
                self.first, self.second = net[:2], net[2:]
            else:
                self.net = net
            self.automatic_optimization = not manual
            self.seen: list[float] = []

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(rows)) if split else self.net(rows)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            output = self(batch[0]) if through_forward else self.forward(batch[0])
            loss = output.square().mean()
            self.seen.append(loss.item())
            self.log("loss", loss)
            if manual:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val_loss", self(batch[0]).square().mean())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    return Module()


def _fit(package: Any, folder: Path, module: Any, callbacks: list[Any], ckpt_path: Any = None, **options: Any) -> Any:
    package.seed_everything(5, verbose=False)
    defaults = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = package.Trainer(default_root_dir=str(folder), callbacks=callbacks, **{**defaults, **options})
    trainer.fit(module, _data(), _data(), ckpt_path=ckpt_path)
    return trainer


def _callback(**options: Any) -> Any:
    from memscale.integrations.lightning import MemScaleCallback

    return MemScaleCallback(FORCED, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}, {"precision": "bf16-mixed"}],
    ids=["plain", "accumulation", "bf16"],
)
def test_fitting_is_equal_to_the_bit(package: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    plain, wrapped, callback = _module(package), _module(package), _callback()
    expected = _fit(package, tmp_path, plain, [], **options)
    before = hook_tables(wrapped)
    trained = _fit(package, tmp_path, wrapped, [callback], **options)
    assert worked(callback.executor)
    assert isinstance(callback, package.Callback)
    assert wrapped.seen == plain.seen
    assert trained.callback_metrics["val_loss"] == expected.callback_metrics["val_loss"]
    assert same_parameters(wrapped, plain)
    after = hook_tables(wrapped)
    assert {name: hooks for name, (_, hooks) in after.items()} == {name: hooks for name, (_, hooks) in before.items()}
    assert not any("_memscale_executor" in keys for keys, _ in after.values())


def test_a_resumed_fit_goes_on_to_the_same_bits(package: Any, tmp_path: Path) -> None:
    def in_two_parts(callbacks: list[Any]) -> Any:
        first, second = _module(package), _module(package)
        half = _fit(package, tmp_path, first, callbacks, max_epochs=1)
        half.save_checkpoint(tmp_path / "half.ckpt")
        for parameter in second.parameters():
            parameter.data.zero_()  # shows any parameter that the checkpoint doesn't restore
        _fit(package, tmp_path, second, callbacks, ckpt_path=tmp_path / "half.ckpt")
        assert len(first.seen) == len(second.seen) == 4
        return second

    callback = _callback()
    plain, wrapped = in_two_parts([]), in_two_parts([callback])
    assert worked(callback.executor)
    assert wrapped.seen == plain.seen
    assert same_parameters(wrapped, plain)


def test_manual_optimization_is_supported(package: Any, tmp_path: Path) -> None:
    plain, wrapped, callback = _module(package, manual=True), _module(package, manual=True), _callback()
    _fit(package, tmp_path, plain, [])
    _fit(package, tmp_path, wrapped, [callback])
    assert worked(callback.executor)
    assert wrapped.seen == plain.seen
    assert same_parameters(wrapped, plain)


@pytest.mark.parametrize("named", [False, True])
def test_several_parts_are_wrapped_as_one_or_by_name(package: Any, tmp_path: Path, named: bool) -> None:
    plain, wrapped = _module(package, split=True), _module(package, split=True)
    callback = _callback(module="second") if named else _callback()
    _fit(package, tmp_path, plain, [])
    _fit(package, tmp_path, wrapped, [callback])
    assert worked(callback.executor)
    assert wrapped.seen == plain.seen
    assert same_parameters(wrapped, plain)


def test_a_callback_serves_modules_whose_parts_have_other_names(package: Any, tmp_path: Path) -> None:
    callback = _callback()
    for split in (False, True):
        _fit(package, tmp_path, _module(package, split=split), [callback], max_epochs=1)
        assert worked(callback.executor)


def test_validation_alone_is_left_alone(package: Any, tmp_path: Path) -> None:
    module, callback = _module(package), _callback()
    trainer = package.Trainer(
        accelerator="cpu",
        logger=False,
        callbacks=[callback],
        enable_progress_bar=False,
        default_root_dir=str(tmp_path),
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.validate(module, _data(), verbose=False)
    assert callback.executor is None


@pytest.mark.parametrize("error", [ValueError("of the step"), KeyboardInterrupt()])
def test_an_exception_leaves_nothing_on_the_module(package: Any, tmp_path: Path, error: BaseException) -> None:
    class Fails(package.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            assert "_memscale_executor" in pl_module.net.__dict__
            raise error

    module, callback = _module(package), _callback()
    before = {name: hooks for name, (_, hooks) in hook_tables(module).items()}
    with pytest.raises((ValueError, SystemExit)):
        _fit(package, tmp_path, module, [callback, Fails()])
    after = hook_tables(module)
    assert {name: hooks for name, (_, hooks) in after.items()} == before
    assert not any("_memscale_executor" in keys for keys, _ in after.values())


def test_a_trainer_can_be_wrapped_and_given_back(package: Any, tmp_path: Path) -> None:
    plain, wrapped = _module(package), _module(package)
    _fit(package, tmp_path, plain, [])
    package.seed_everything(5, verbose=False)
    trainer = package.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(tmp_path),
    )
    before = list(trainer.callbacks)
    assert memscale.wrap(trainer, FORCED) is trainer
    trainer.fit(wrapped, _data(), _data())
    assert worked(trainer.callbacks[0].executor)
    assert same_parameters(wrapped, plain)
    assert memscale.detach(trainer) is trainer
    assert trainer.callbacks == before


def test_a_step_that_goes_past_the_wrapped_module_is_said(
    package: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = _module(package)
    module.unused = torch.nn.Linear(2, 2)
    _fit(package, tmp_path, module, [_callback(module="unused")], max_epochs=1)
    assert "training_step of Module did not call the forward" in caplog.text


def test_a_step_that_goes_past_the_forward_is_planned_by_its_layers(
    package: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = _callback()
    _fit(package, tmp_path, _module(package, split=True, through_forward=False), [callback], max_epochs=1)
    assert callback.executor.plan is not None
    assert "did not call" not in caplog.text


def test_a_module_that_is_not_there_is_named(package: Any, tmp_path: Path) -> None:
    with pytest.raises(IntegrationError, match="has no module 'generator'; it has net"):
        _fit(package, tmp_path, _module(package), [_callback(module="generator")])


def test_wrong_arguments_are_named(package: Any) -> None:
    from memscale.integrations.lightning import MemScaleCallback

    with pytest.raises(TypeError, match="config must be"):
        MemScaleCallback({"memory_budget_gb": 4})
    with pytest.raises(TypeError, match="module must be"):
        MemScaleCallback(FORCED, module=nn.Linear(1, 1))


def test_a_callback_can_be_pickled(package: Any) -> None:
    copy = pickle.loads(pickle.dumps(_callback(module="net")))
    assert isinstance(copy, package.Callback)
    assert copy._module == "net"


def test_importing_the_callback_imports_no_lightning() -> None:
    code = (
        "import sys, memscale.integrations.lightning; "
        "sys.exit(any(name.split('.')[0] in ('lightning', 'pytorch_lightning', 'torch') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
