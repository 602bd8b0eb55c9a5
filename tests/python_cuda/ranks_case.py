"""One of two ranks that train on the double, each on its own device. test_ranks.py starts both.

python ranks_case.py FOLDER CASE RANK PORT
"""

from __future__ import annotations

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

    def broadcast(self, tensors: list[Any], options: Any) -> Any:
        copies = [tensor.cpu() for tensor in tensors]
        return self._carry_out(self._gloo.broadcast(copies, options), tensors, copies)

    def allgather(self, results: list[list[Any]], tensors: list[Any], options: Any = None) -> Any:
        copies = [[part.cpu() for part in parts] for parts in results]
        work = self._gloo.allgather(copies, [tensor.cpu() for tensor in tensors], options or dist.AllgatherOptions())
        flat = [part for parts in results for part in parts]
        return self._carry_out(work, flat, [part for parts in copies for part in parts])


def net() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128), nn.Dropout(0.1)) for _ in range(6)]
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


def main() -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[4], LOCAL_WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    torch.cuda.set_device(DEVICE)
    dist.Backend.register_backend("double", ThroughTheHost, devices=["cuda", "cpu"])
    dist.init_process_group("double", rank=RANK, world_size=WORLD)
    {"ddp": ddp, "moved": moved}[CASE]()
    torch.cuda.synchronize()
    count, first = torch_double.violations()
    assert count == 0, first
    dist.destroy_process_group()
    print("done")


main()
