"""A script's training loop for the launchers that people use. test_launchers.py runs it on two workers, with and
without the one line of memscale. Not a test by itself."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import memscale


def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1), nn.Tanh()) for _ in range(4)]
    return nn.Sequential(*layers)


def train(
    rank: int,
    is_wrapped: bool,
    prepare: Callable[[Any, Any], tuple[Any, Any]],
    backward: Callable[[torch.Tensor], None],
) -> dict[str, Any]:
    """Trains for four steps. The answer has the losses and a digest of the parameters, and a wrapped run's plan."""
    model = net()
    if is_wrapped:
        memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False))
    prepared, optimizer = prepare(model, torch.optim.AdamW(model.parameters()))
    torch.manual_seed(rank)
    losses = []
    for step in range(4):
        rows = torch.randn(64, 256, generator=torch.Generator().manual_seed(100 * rank + step))
        loss = prepared(rows).square().mean()
        backward(loss)
        nn.utils.clip_grad_norm_(prepared.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    answer: dict[str, Any] = {"losses": losses, "parameters": digest}
    if is_wrapped:
        executor = model._memscale_executor  # type: ignore[attr-defined]
        answer |= {"plan": executor.plan.to_json(), "recomputed": executor.counters()["recomputed_layers"]}
        memscale.detach(model)
    return answer


def with_accelerate(folder: str) -> None:
    """What `accelerate launch` runs on each process."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    for is_wrapped in (False, True):
        answer = train(accelerator.process_index, is_wrapped, accelerator.prepare, accelerator.backward)
        with open(f"{folder}/{accelerator.process_index}", "a") as file:
            file.write(json.dumps(answer) + "\n")
    accelerator.end_training()


def with_ray(folder: str) -> None:
    """What each worker of Ray Train runs: a loop that reports its answers."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
    TorchTrainer(
        ray_loop,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=f"{folder}/results"),
    ).fit()


def ray_loop(config: dict[str, str]) -> None:
    """One worker's loop."""
    import ray.train
    import ray.train.torch

    rank = ray.train.get_context().get_world_rank()
    for is_wrapped in (False, True):
        answer = train(
            rank,
            is_wrapped,
            lambda model, optimizer: (ray.train.torch.prepare_model(model), optimizer),
            torch.Tensor.backward,
        )
        with open(f"{config['folder']}/{rank}", "a") as file:
            file.write(json.dumps(answer) + "\n")
        ray.train.report({"loss": float.fromhex(answer["losses"][-1])})


if __name__ == "__main__":
    {"accelerate": with_accelerate, "ray": with_ray}[sys.argv[1]](sys.argv[2])
