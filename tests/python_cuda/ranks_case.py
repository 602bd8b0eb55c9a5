"""One of two ranks that train on the double, each on its own device. test_ranks.py starts both.

python ranks_case.py FOLDER CASE RANK PORT
"""

from __future__ import annotations

import gc
import json
import os
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "torch_double"))

import torch_double  # noqa: E402

torch_double.load(sys.argv[1])

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import memscale  # noqa: E402

CASE, RANK, WORLD = sys.argv[2], int(sys.argv[3]), 2
DEVICE = torch.device("cuda", RANK)


class ThroughTheHost(dist.ProcessGroup):
    """Collectives of device tensors, which gloo carries out on copies in host memory."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:
        return "double"

    @property
    def group_name(self) -> str:
        name: str = dist.distributed_c10d._world.pg_names[self]  # a group in Python has none of its own
        return name

    def _carry_out(self, work: Any, results: list[Any], on_host: list[Any]) -> Any:
        work.wait()
        for result, copy in zip(results, on_host, strict=True):
            result.copy_(copy)
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(results)
        return torch._C._distributed_c10d._create_work_from_future(future)

    def allreduce(self, tensors: list[Any], options: Any = None) -> Any:
        copies = [tensor.cpu() for tensor in tensors]
        return self._carry_out(self._gloo.allreduce(copies, options or dist.AllreduceOptions()), tensors, copies)

    def _allgather_base(self, result: Any, tensor: Any, options: Any = None) -> Any:
        copy = result.cpu()
        work = self._gloo._allgather_base(copy, tensor.cpu(), options or dist.AllgatherOptions())
        return self._carry_out(work, [result], [copy])

    def _reduce_scatter_base(self, result: Any, tensor: Any, options: Any) -> Any:
        copy = result.cpu()
        work = self._gloo._reduce_scatter_base(copy, tensor.cpu(), options)
        return self._carry_out(work, [result], [copy])

    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base  # the names since torch 2.13

    def broadcast(self, tensors: list[Any], options: Any) -> Any:
        copies = [tensor.cpu() for tensor in tensors]
        return self._carry_out(self._gloo.broadcast(copies, options), tensors, copies)

    def allgather(self, results: list[list[Any]], tensors: list[Any], options: Any = None) -> Any:
        copies = [[part.cpu() for part in parts] for parts in results]
        work = self._gloo.allgather(copies, [tensor.cpu() for tensor in tensors], options or dist.AllgatherOptions())
        flat = [part for parts in results for part in parts]
        return self._carry_out(work, flat, [part for parts in copies for part in parts])


def net(hidden: int = 512) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Linear(128, hidden), nn.GELU(), nn.Linear(hidden, 128), nn.Dropout(0.1)) for _ in range(6)
    ]
    return nn.Sequential(*blocks)


def train(model: nn.Module) -> list[torch.Tensor]:
    """Gradients and losses of three steps on this rank's own batches."""
    seen: list[torch.Tensor] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(RANK)
    for step in range(3):
        x = torch.randn(2048, 128, generator=torch.Generator().manual_seed(10 * RANK + step)).to(DEVICE)
        loss = model(x).square().mean()
        loss.backward()
        seen += [loss.detach().cpu(), *(p.grad.cpu() for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    return seen


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def ddp() -> None:
    """Under DDP, memscale keeps a budget of three fifths of the plain run's peak, and the bits are equal."""
    plain = train(DistributedDataParallel(net().to(DEVICE)))
    assert same(plain, train(DistributedDataParallel(net().to(DEVICE)))), "two plain runs differ"
    torch.cuda.reset_peak_memory_stats(DEVICE)
    train(DistributedDataParallel(net().to(DEVICE)))
    budget = torch.cuda.max_memory_allocated(DEVICE) * 3 // 5 + (24 << 20)  # the second term: the reserve of a GPU
    model = memscale.wrap(net().to(DEVICE), memscale.Config(memory_budget_gb=budget / 1e9, enable_logging=False))
    before = torch.cuda.memory_allocated(DEVICE)
    trained = DistributedDataParallel(model)
    torch.cuda.reset_peak_memory_stats(DEVICE)
    assert same(plain, train(trained)), "the wrapped run differs"
    assert torch.cuda.max_memory_allocated(DEVICE) <= budget
    session = model._memscale_executor._planner
    buckets = sum(p.numel() * 4 for p in model.parameters())
    assert session._bucket_bytes == buckets
    baseline = json.loads(session.hardware_json)["process"]["baseline_bytes"]
    assert baseline >= before + buckets, (baseline, before, buckets)


def moved() -> None:
    """If models move to their ranks' devices after wrap(), both ranks get the same plan for that kind of device."""
    plain = train(net().to(DEVICE))
    model = memscale.wrap(net(), memscale.Config(force_optimize=True, enable_logging=False))
    model.to(DEVICE)
    assert same(plain, train(model)), "the wrapped run differs"
    session = model._memscale_executor._planner
    assert session._device == DEVICE
    assert '"device": -1' not in session.hardware_json, session.hardware_json
    print("plan", model._memscale_executor.plan.to_json())


def divided(hidden: int = 512) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = net(hidden).to(DEVICE)
    mesh = init_device_mesh("cuda", (WORLD,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train_divided(model: nn.Module, optimizer: torch.optim.Optimizer, rows: int, steps: int = 4) -> list[torch.Tensor]:
    """Losses and this rank's parts of gradients and parameters."""
    seen: list[torch.Tensor] = []
    torch.manual_seed(RANK)
    for step in range(steps):
        x = torch.randn(rows, 128, generator=torch.Generator().manual_seed(10 * RANK + step)).to(DEVICE)
        loss = model(x).square().mean()
        loss.backward()
        seen += [loss.detach().cpu(), *(p.grad.to_local().cpu() for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    return [*seen, *(p.to_local().detach().cpu() for p in model.parameters())]


def hosted() -> None:
    """Under FSDP2, AdamW has torch's bits with its state on the device and in host memory, and its state there is
    divided as torch's is."""
    model = divided()
    plain = train_divided(model, torch.optim.AdamW(model.parameters(), lr=1e-2), 64)
    for state in ("memory", "host"):
        model = divided()
        optimizer = memscale.optim.AdamW(model.parameters(), lr=1e-2, state=state)
        assert same(plain, train_divided(model, optimizer, 64)), f"state={state} differs"
        held = optimizer.state_dict()["state"][0]["exp_avg"]
        assert held.shape == (512, 128) and held.to_local().shape == (256, 128)
        assert held.device.type == {"memory": "cuda", "host": "cpu"}[state], held.device
        again = memscale.optim.AdamW(model.parameters(), lr=1e-2, state=state)
        again.load_state_dict(optimizer.state_dict())
        assert torch.equal(again.state_dict()["state"][0]["exp_avg"].to_local(), held.to_local())


def run_divided(hidden: int, rows: int, budget_bytes: float) -> tuple[list[torch.Tensor], int, Any, int]:
    """What `train_divided()` saw, the peak, the plan, and the bytes that left the device, under a budget."""
    gc.collect()  # FSDP's models are in cycles
    model = divided(hidden)
    optimizer = memscale.optim.AdamW(model.parameters(), lr=1e-2)
    config = memscale.Config(memory_budget_gb=budget_bytes / 1e9, enable_logging=False)
    model, optimizer = memscale.apply_all_optimizations(model, optimizer, config)
    torch.cuda.reset_peak_memory_stats(DEVICE)
    seen = train_divided(model, optimizer, rows)
    peak, executor = torch.cuda.max_memory_allocated(DEVICE), model._memscale_executor
    memscale.detach(model)
    return seen, peak, json.loads(executor.plan.to_json()), executor.counters()["offloaded_bytes"]


def fsdp() -> None:
    """Under FSDP2, budgets are kept with the plain run's bits: saved tensors move, and then the optimizer's state."""
    for hidden, rows, share, moves in ((512, 8192, 0.65, "saved tensors"), (8192, 64, 0.8, "state_on_host")):
        model = divided(hidden)
        plain = train_divided(model, torch.optim.AdamW(model.parameters(), lr=1e-2), rows)
        del model
        _, kept_peak, plan, _ = run_divided(hidden, rows, 4e9)
        budget = plan["pressure"]["need_bytes"] * share
        seen, peak, plan, moved_bytes = run_divided(hidden, rows, budget)
        assert same(plain, seen), "the wrapped run differs"
        assert peak <= budget and peak < kept_peak, (peak, budget, kept_peak)
        chosen = [option["name"] for option in plan["step_options"] if option["chosen"]]
        assert moved_bytes > 0 if moves == "saved tensors" else moves in chosen, (moved_bytes, chosen)


def main() -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[4], LOCAL_WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    torch.cuda.set_device(DEVICE)
    dist.Backend.register_backend("double", ThroughTheHost, devices=["cuda", "cpu"])
    dist.init_process_group("double", rank=RANK, world_size=WORLD)
    {"ddp": ddp, "moved": moved, "hosted": hosted, "fsdp": fsdp}[CASE]()
    torch.cuda.synchronize()
    count, first = torch_double.violations()
    assert count == 0, first
    dist.destroy_process_group()
    print("done")


main()
