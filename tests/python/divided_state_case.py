"""Steps `memscale.optim` on parameters that are divided among two ranks. test_divided_state.py runs it on every rank.
Each rank writes its results to a file, one JSON document a line. Not a test by itself."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from distributed_case import tell
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint import state_dict as checkpoint_state
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import memscale

RANK = int(os.environ["RANK"])
WIDTH = 259  # odd: the ranks' parts differ in size
LONG = 4100  # the last layer's one row, of which the second rank has nothing; long enough for 8-bit moments


def net(dtype: torch.dtype = torch.float32, blocks: int = 2, hidden: int = 1025) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, hidden), nn.GELU(), nn.Linear(hidden, WIDTH)) for _ in range(blocks)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, LONG), nn.Linear(LONG, 1)).to(dtype)


def divided(dtype: torch.dtype = torch.float32, computes_in: torch.dtype | None = None, **sizes: int) -> nn.Sequential:
    model = net(dtype, **sizes)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(computes_in)
    for layer in model:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def parts(model: nn.Module) -> list[torch.Tensor]:
    return [part(p).detach().clone() for p in model.parameters()]


def part(value: Any) -> Any:
    return value.to_local() if hasattr(value, "to_local") else value


def backward(model: nn.Module, step: int, rows: int = 64) -> None:
    dtype = next(model.parameters()).dtype
    batch = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(10 * RANK + step))
    model(batch.to(dtype)).float().square().mean().backward()


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, which: range) -> None:
    for step in which:
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad()


def same_state(held: dict[str, Any], plain: dict[str, Any]) -> bool:
    """Whether a divided state has the bits of that of its part. Scales are padded to the largest part's, and the
    division is told beside them."""
    held = dict(held)
    if "exp_avg_absmax" in held and held.pop("division_8bit").tolist() != [0, dist.get_world_size(), 1]:
        return False
    if all(value.numel() == 0 for name, value in plain.items() if name != "step"):  # 8 bits or not, as on other ranks
        return not any(part(value).count_nonzero() for name, value in held.items() if name != "step")
    return held.keys() == plain.keys() and all(
        torch.equal(part(value).flatten()[: plain[name].numel()], plain[name].flatten()) for name, value in held.items()
    )


FORMS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "fp32 on disk": {"state": "disk"},
    "a part on disk": {"moved_bytes": 2_000_000},  # of 5 MB a rank, by a plan
    "8 bits": {"state_bits": 8},
    "8 bits on disk": {"state_bits": 8, "state": "disk"},
    "amsgrad": {"amsgrad": True},
    "bf16 split": {"dtype": torch.bfloat16},
    "bf16 split on disk": {"dtype": torch.bfloat16, "state": "disk"},
    "bf16 master, 8 bits": {"dtype": torch.bfloat16, "bf16": "master", "state_bits": 8},
}


def bits() -> None:
    """Each form against the same optimizer of plain parameters, which are this rank's parts, with their gradients."""
    for name, given in FORMS.items():
        options = {key: value for key, value in given.items() if key not in ("dtype", "moved_bytes")}
        model = divided(given.get("dtype", torch.float32))
        optimizer = memscale.optim.AdamW(model.parameters(), lr=1e-2, **options)
        if "moved_bytes" in given:
            optimizer._arrange(True, False, moved_bytes=given["moved_bytes"])
        plain = [p.requires_grad_() for p in parts(model)]
        options.pop("state", None)
        reference = memscale.optim.AdamW(plain, lr=1e-2, **options)
        are_told = True
        for step in range(3):
            backward(model, step)
            for p, mine in zip(model.parameters(), plain, strict=True):
                mine.grad = part(p.grad).clone()
            before = [(p._version, p.to_local()._version) for p in model.parameters()]
            optimizer.step()
            after = [(p._version, p.to_local()._version) for p in model.parameters()]
            are_told &= all(a > b and c > d for (a, c), (b, d) in zip(after, before, strict=True))
            reference.step()
            optimizer.zero_grad()
        state = optimizer.state_dict()["state"]
        tell(
            name,
            {
                "parameters": all(map(torch.equal, parts(model), plain)),
                "state": all(same_state(state[index], reference.state[p]) for index, p in enumerate(plain)),
                "versions": are_told,
                "moved": optimizer._place.disk is not None and optimizer._place.disk.stats()["disk_bytes"] > 0,
            },
        )


def checkpoints(folder: str) -> None:
    """A run that is saved by torch's distributed checkpoints and goes on in new objects, in each form."""
    for name, options in (("fp32", {}), ("disk", {"state": "disk"}), ("8 bits", {"state_bits": 8, "state": "disk"})):
        model = divided()
        optimizer = memscale.optim.AdamW(model.parameters(), lr=1e-2, **options)
        steps(model, optimizer, range(2))
        saved = dict(zip(("model", "optimizer"), checkpoint_state.get_state_dict(model, optimizer), strict=True))
        checkpoint.save(saved, checkpoint_id=f"{folder}/{name}")
        steps(model, optimizer, range(2, 4))
        second = divided()
        later = memscale.optim.AdamW(second.parameters(), lr=1e-2, **options)
        blank = dict(zip(("model", "optimizer"), checkpoint_state.get_state_dict(second, later), strict=True))
        checkpoint.load(blank, checkpoint_id=f"{folder}/{name}")
        checkpoint_state.set_state_dict(
            second, later, model_state_dict=blank["model"], optim_state_dict=blank["optimizer"]
        )
        steps(second, later, range(2, 4))
        tell(f"goes on {name}", all(map(torch.equal, parts(second), parts(model))))


def whole_states() -> None:
    """A divided parameter refuses a whole state; a divided state is gathered, and loaded through torch's functions."""
    plain = net()
    theirs = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    backward(plain, 0)
    theirs.step()
    model = divided()
    optimizer = memscale.optim.AdamW(model.parameters(), lr=1e-2)
    try:
        optimizer.load_state_dict(theirs.state_dict())
    except memscale.errors.IntegrationError as error:
        tell("whole", str(error))
    steps(model, optimizer, range(2))
    options = checkpoint_state.StateDictOptions(full_state_dict=True)
    gathered = checkpoint_state.get_optimizer_state_dict(model, optimizer, options=options)["state"]
    tell("gathered", {name: [list(value["exp_avg"].shape)] for name, value in gathered.items()})
    whole = checkpoint_state.get_optimizer_state_dict(model, optimizer, options=options)
    second = divided()
    later = memscale.optim.AdamW(second.parameters(), lr=1e-2, state="disk")
    checkpoint_state.set_model_state_dict(
        second, checkpoint_state.get_model_state_dict(model, options=options), options=options
    )
    checkpoint_state.set_optimizer_state_dict(second, later, whole, options=options)
    for trained, with_optimizer in ((model, optimizer), (second, later)):
        steps(trained, with_optimizer, range(2, 4))
    tell("goes on from the whole", all(map(torch.equal, parts(second), parts(model))))
    try:
        next(model.parameters()).grad = torch.zeros(1025, WIDTH)
        optimizer.step()
    except (memscale.errors.IntegrationError, RuntimeError) as error:
        tell("plain gradient", str(error))


def other_divisions() -> None:
    """8-bit state of another division, of which sizes tell nothing; its fp32 form."""
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    values = torch.randn(128, 256, generator=torch.Generator().manual_seed(0))
    by_rows, by_columns = (nn.Parameter(distribute_tensor(values, mesh, [Shard(dim)])) for dim in (0, 1))
    optimizer = memscale.optim.AdamW8bit([by_rows], lr=1e-2)
    by_rows.grad = distribute_tensor(values * 0.01, mesh, [Shard(0)])
    optimizer.step()
    state = optimizer.state_dict()
    gathered = {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in
                state["state"][0].items()}  # fmt: skip
    said = []
    for p, held in (
        (by_columns, {**gathered, "exp_avg_8bit": distribute_tensor(gathered["exp_avg_8bit"], mesh, [Shard(1)]),
                      "exp_avg_sq_8bit": distribute_tensor(gathered["exp_avg_sq_8bit"], mesh, [Shard(1)])}),
        (nn.Parameter(values), gathered),
    ):  # fmt: skip
        try:
            memscale.optim.AdamW8bit([p]).load_state_dict({**state, "state": {0: held}})
        except memscale.errors.IntegrationError as error:
            said.append(str(error))
    tell("other division", said)
    full = optimizer.torch_state_dict()["state"][0]
    plain = memscale.optim.AdamW([nn.Parameter(values)], lr=1e-2)
    whole = {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in full.items()}
    plain.load_state_dict({**state, "state": {0: whole}})
    tell("fp32 form", sorted(full) == ["exp_avg", "exp_avg_sq", "step"] and full["exp_avg"].dtype == torch.float32)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def tensor_parallel() -> None:
    """Norms are on all ranks, and their gradients are sums that are still to be made. Against torch's AdamW."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import PrepareModuleInput, PrepareModuleOutput

    found = []
    pending = False
    for make in (torch.optim.AdamW, memscale.optim.AdamW):
        torch.manual_seed(0)
        model = nn.Sequential(Block(), Block())
        mesh = init_device_mesh("cpu", (2,))
        for block in model:
            parallelize_module(
                block,
                mesh,
                {
                    "norm": SequenceParallel(),
                    "up": ColwiseParallel(input_layouts=Shard(1)),
                    "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
                },
            )
            whole = {"input_layouts": (Shard(1),), "desired_input_layouts": (Shard(1),)}
            parallelize_module(block, mesh, PrepareModuleInput(**whole))
        parallelize_module(
            model[-1], mesh, PrepareModuleOutput(output_layouts=(Shard(1),), desired_output_layouts=(Shard(1),))
        )
        optimizer = make(model.parameters(), lr=1e-2)
        for step in range(3):
            x = torch.randn(4, 8, 64, generator=torch.Generator().manual_seed(step))
            model(x[:, 4 * RANK : 4 * RANK + 4]).square().mean().backward()
            pending |= any(p.grad.placements != p.placements for p in model.parameters())
            optimizer.step()
            optimizer.zero_grad()
        found.append(parts(model))
    tell("pending", pending)
    tell("apart", max((a - b).abs().max().item() for a, b in zip(*found, strict=True)))


def planned() -> None:
    """A plan puts the state of divided parameters on disk; the bits are those without a plan."""
    sizes = {"blocks": 12, "hidden": 4096}
    model = divided(**sizes)
    optimizer = memscale.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = apply(model, optimizer, 1000.0)
    steps(model, optimizer, range(5))
    expected, need_bytes = parts(model), plan_of(model)["pressure"]["need_bytes"]
    tell("comfortable", chosen(model))
    memscale.detach(model)
    del model, optimizer
    for what, less_gb in (("fits", 0.03), ("nothing fits", 0.15)):
        model = divided(**sizes)
        optimizer = memscale.optim.AdamW(model.parameters(), lr=1e-3)
        model, optimizer = apply(model, optimizer, need_bytes / 1e9 - less_gb)
        steps(model, optimizer, range(5))
        tell(what, {"equal": all(map(torch.equal, parts(model), expected)), "chosen": chosen(model)})
        tell("moved", optimizer._place.disk is not None)
        memscale.detach(model)
        tell("in memory again", optimizer._place.disk is None and "exp_avg" in next(iter(optimizer.state.values())))
        del model, optimizer


def resumed() -> None:
    """State that was made before the wrap is counted once, also if the optimizer is torch's."""
    model = divided()
    optimizer = torch.optim.AdamW(model.parameters())
    steps(model, optimizer, range(1))
    model = memscale.wrap(model, memscale.Config(memory_budget_gb=1000.0, enable_logging=False))
    steps(model, optimizer, range(1, 2))
    state = [part(value) for held in optimizer.state.values() for value in held.values()]
    process = json.loads(model._memscale_executor._planner.hardware_json)["process"]
    tell("made", [process.get("state_bytes", 0), sum(value.untyped_storage().nbytes() for value in state)])
    memscale.detach(model)


def traced() -> None:
    """The bytes of state that the first plan counts and those that the step makes, in kB. Layers compute in BF16."""
    for name, options in (("fp32", {}), ("amsgrad", {"amsgrad": True}), ("8 bits", {"state_bits": 8})):
        model = divided(computes_in=torch.bfloat16)
        optimizer = memscale.optim.AdamW(model.parameters(), **options)
        model, optimizer = apply(model, optimizer, 1000.0)
        backward(model, 0)
        graphs = list(model._memscale_executor._planner._graphs.values())  # the first rank's alone
        optimizer.step()
        made = [part(v).nbytes for held in optimizer.state.values() for key, v in held.items() if key != "step"]
        for graph in graphs:
            tell(f"traced {name}", [json.loads(graph)["loop"]["optimizer_state_bytes"] // 1000, sum(made) // 1000])
        memscale.detach(model)


def released() -> None:
    """Gradients of several processes are final after backward, so no plan releases them."""
    from torch.nn.parallel import DistributedDataParallel

    model = net(blocks=4)
    optimizer = memscale.optim.AdamW(model.parameters(), lr=1e-3)
    config = memscale.Config(mode="aggressive", force_optimize=True, memory_budget_gb=4.0, enable_logging=False)
    model, optimizer = memscale.apply_all_optimizations(model, optimizer, config)
    steps(DistributedDataParallel(model), optimizer, range(4))
    rules = {option["name"]: option["rule"] for option in plan_of(model)["step_options"]}
    tell("release", rules["gradient_release"])
    memscale.detach(model)


def apply(model: nn.Module, optimizer: torch.optim.Optimizer, budget_gb: float) -> Any:
    config = memscale.Config(memory_budget_gb=budget_gb, enable_logging=False)
    return memscale.apply_all_optimizations(model, optimizer, config)


def plan_of(model: nn.Module) -> Any:
    return json.loads(model._memscale_executor.plan.to_json())


def chosen(model: nn.Module) -> list[str]:
    return [option["name"] for option in plan_of(model)["step_options"] if option["chosen"]]


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("memscale").setLevel(logging.ERROR)
    dist.init_process_group("gloo")
    case = sys.argv[1]
    if case == "forms":
        bits()
        whole_states()
        other_divisions()
        tensor_parallel()
        checkpoints(sys.argv[2])
    else:
        planned()
        resumed()
        traced()
        released()
    time.sleep(1)  # as in distributed_case.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
