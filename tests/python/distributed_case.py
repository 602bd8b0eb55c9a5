"""Trains with and without memscale. test_distributed.py runs it on every rank. Each rank writes its
results to a file, one JSON document a line. Not a test by itself."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import memscale

RANK = int(os.environ["RANK"])


def tell(what: str, value: Any) -> None:
    with open(f"{sys.argv[2]}/{RANK}", "a") as file:
        file.write(json.dumps({"what": what, "value": value}) + "\n")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)) for _ in range(4)]
    return nn.Sequential(*layers)


def distribute(model: nn.Sequential, kind: str) -> nn.Module:
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    types = (torch.bfloat16, torch.float32, torch.float32) if kind == "mixed" else ()
    policy = MixedPrecisionPolicy(*types)
    reshards = None if kind != "stays" else False
    for layer in model if kind != "one_group" else ():
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshards)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshards)
    if kind == "stays":
        with torch.no_grad():
            model(batch(0))  # an evaluation leaves everything gathered
    return model


def batch(step: int, rows: int = 8) -> torch.Tensor:
    return torch.randn(rows, 64, generator=torch.Generator().manual_seed(100 * RANK + step))


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def train(model: nn.Sequential, kind: str, steps: int = 3, micro: int = 1, rows: int = 8) -> list[Any]:
    trained = distribute(model, kind)
    optimizer = torch.optim.AdamW(model.parameters())
    seen: list[Any] = []
    torch.manual_seed(RANK)
    for step in range(steps):
        for part in range(micro):
            loss = trained(batch(10 * step + part, rows)).square().mean()
            loss.backward()
            seen.append(loss.item())
        seen.append([local(p.grad).clone() for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    return [*seen, [local(p).detach().clone() for p in model.parameters()]]


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        x == y if isinstance(x, float) else all(map(torch.equal, x, y)) for x, y in zip(a, b, strict=True)
    )


def compare(kind: str, micro: int, sample: bool, rows: int = 8, **options: Any) -> None:
    expected = train(net(), kind, micro=micro, rows=rows)
    config = memscale.Config(force_optimize=True, enable_logging=False, **options)
    model = memscale.wrap(net(), config, sample_input=batch(0) if sample else None)
    found = train(model, kind, micro=micro, rows=rows)
    executor = model._memscale_executor
    tell("equal", same(found, expected))
    tell("recomputed", executor.counters()["recomputed_layers"])
    tell("moved", [executor.counters()[name] for name in ("offloaded_bytes", "fetched_bytes")])
    tell("plan", executor.plan.to_json())
    memscale.detach(model)


def budgets() -> None:
    """The ranks ask for different budgets; the smaller one applies to both."""
    model = memscale.wrap(net(), memscale.Config(memory_budget_gb=4.0 - RANK, enable_logging=False))
    train(model, "ddp", steps=1)
    plan = json.loads(model._memscale_executor.plan.to_json())
    tell("allowed", plan["pressure"]["allowed_bytes"])
    memscale.detach(model)


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def shards() -> None:
    """Sharded models without a sample are planned at the first forward, within the budget."""
    expected = train(net(), "fsdp")
    logger, kept = logging.getLogger("memscale"), Kept()
    logger.addHandler(kept)
    logger.setLevel(logging.WARNING)
    for what, options in (("comfortable", {}), ("tight", {"memory_budget_gb": 0.01})):
        model = memscale.wrap(net(), memscale.Config(enable_logging=False, **options))
        found = train(model, "fsdp")
        executor = model._memscale_executor
        memscale.detach(model)
        tell(
            what,
            {
                "equal": same(found, expected),
                "told": kept.texts,
                "plan": json.loads(executor.plan.to_json()),
                "recomputed": executor.counters()["recomputed_layers"],
                "hooks": all(len(layer._forward_pre_hooks) == len(layer._forward_hooks) > 0 for layer in model),
            },
        )
        kept.texts = []
    logger.removeHandler(kept)
    logger.setLevel(logging.ERROR)


def mixed() -> None:
    """FSDP computes in BF16. What a step holds at most, by the plan, beside the same step in FP32."""
    expected = train(net(), "mixed", rows=1000)
    live = []
    for kind in ("fsdp", "mixed"):
        model = memscale.wrap(net(), memscale.Config(force_optimize=True, enable_logging=False))
        found = train(model, kind, rows=1000)
        plan = json.loads(model._memscale_executor.plan.to_json())
        live.append(plan["unoptimized"]["peak_live_bytes"])
        memscale.detach(model)
    tell("mixed", {"equal": same(found, expected), "live": live})


def refused() -> None:
    """Rank 1 alone asks for a directory that can't be created, then for a budget that no plan meets."""
    for config in (
        {"disk_offload_dir": "/proc/nowhere"} if RANK else {},
        {"memory_budget_gb": 0.001} if RANK else {},
    ):
        try:
            train(memscale.wrap(net(), memscale.Config(enable_logging=False, **config)), "ddp", steps=1)
            tell("error", None)
        except memscale.MemScaleError as error:
            tell("error", [type(error).__name__, str(error)])


def dies() -> None:
    """Rank 1 fails in its second step, while rank 0 waits for its gradients."""
    model = memscale.wrap(net(), memscale.Config(force_optimize=True, enable_logging=False))
    if RANK == 1:
        model[2].register_forward_hook(lambda *_: 1 / 0 if model._memscale_executor.counters()["steps"] else None)
    train(model, "ddp")


SCHEDULES = (
    "ScheduleGPipe",
    "Schedule1F1B",
    "ScheduleLoopedBFS",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleZBVZeroBubble",
    "ScheduleDualPipeV",
)


def run_schedule(schedule: Any, stages_per_rank: int, wraps: bool) -> tuple[list[Any], list[int]]:
    """Gradients of this rank's stages over three steps, and how many layers each recomputed."""
    from torch.distributed.pipelining import PipelineStage

    world = dist.get_world_size()
    count = world * stages_per_rank
    is_v = schedule.__name__ in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
    numbers = [RANK, count - 1 - RANK if is_v else RANK + world][:stages_per_rank]
    models = [net() for _ in numbers]
    if wraps:
        for model in models:
            memscale.wrap(model, memscale.Config(force_optimize=True, enable_logging=False))
    stages = [PipelineStage(m, number, count, torch.device("cpu")) for m, number in zip(models, numbers, strict=True)]
    given = stages if stages_per_rank > 1 else stages[0]
    run = schedule(given, 8, loss_fn=lambda made, wanted: (made - wanted).square().mean())
    rows = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(RANK)
    seen: list[Any] = []
    for _ in range(3):
        run.step(*((rows,) if 0 in numbers else ()), target=rows if count - 1 in numbers else None)
        for model in models:
            seen.append([p.grad.clone() for p in model.parameters()])
            model.zero_grad()
    recomputed = []
    for model in models if wraps else ():
        counters = model._memscale_executor.counters()
        recomputed.append(counters["recomputed_layers"] + counters["remade_tensors"])
        memscale.detach(model)
    return seen, recomputed


def pipelines(names: tuple[str, ...] = SCHEDULES) -> None:
    from torch.distributed.pipelining import schedules

    for name in names:
        schedule = getattr(schedules, name, None)
        if schedule is None:  # an earlier torch
            continue
        per_rank = 2 if issubclass(schedule, schedules.PipelineScheduleMulti) else 1
        expected, _ = run_schedule(schedule, per_rank, False)
        found, recomputed = run_schedule(schedule, per_rank, True)
        tell("schedule", [name, same(found, expected), min(recomputed)])


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("memscale").setLevel(logging.ERROR)
    dist.init_process_group("gloo")
    case = sys.argv[1]
    if case == "train":
        compare("ddp", 1, False)
        compare("ddp", 2, True)
        compare("fsdp", 1, False)
        compare("fsdp", 1, True)
        compare("one_group", 1, False)
        compare("stays", 1, False)
        compare("fsdp", 1, False, rows=60_000, enable_checkpointing=False)
        shards()
        mixed()
        budgets()
    elif case == "hosts":
        compare("ddp", 1, False)
        compare("fsdp", 1, False)
        budgets()
        pipelines(("Schedule1F1B",))
    elif case == "refused":
        refused()
    elif case == "pipelines":
        pipelines()
    else:
        dies()
    # Gloo's threads release the Python objects of the last collectives, such as contexts of torch.autograd. They need
    # the interpreter for that; torch aborts if the interpreter is already exiting.
    time.sleep(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
