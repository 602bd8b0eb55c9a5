"""Trains small Llamas whose layers are divided among the ranks of this process's group, and prints what tensors take.

`python parallel_case.py CONFIG CASE...` in each rank, with torchrun's variables: the configuration's file, and names of
`CASES` with that many ranks. Rank 0 prints one line a case, a JSON list with one object a rank: bytes of parameters and
state, and the peak of a step of all tensors, which torch's profiler sees. For test_parallel.py.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


@dataclass(frozen=True)
class Case:
    tensor: int = 1
    stages: int = 1
    data: int = 1
    by_sequence: bool = False
    microbatches: int = 1

    @property
    def ranks(self) -> int:
        return self.tensor * self.stages * self.data


CASES = {
    "tp2": Case(tensor=2),
    "tp2-sp": Case(tensor=2, by_sequence=True),
    "pp2": Case(stages=2, microbatches=4),
    "tp4-sp": Case(tensor=4, by_sequence=True),
    "pp4": Case(stages=4, microbatches=6),
    "tp2-sp-fsdp2": Case(tensor=2, data=2, by_sequence=True),
    "tp2-sp-pp2": Case(tensor=2, stages=2, by_sequence=True, microbatches=4),
    "fsdp2-pp2": Case(stages=2, data=2, microbatches=4),
}
BATCH, TOKENS, WORDS = 2, 256, 4000  # of one microbatch


class Stage(nn.Module):
    """Some layers of a Llama, with the embedding if they are the first and the head if they are the last."""

    def __init__(self, whole: Any, first: int, end: int) -> None:
        super().__init__()
        count = len(whole.model.layers)
        self.embed_tokens = whole.model.embed_tokens if first == 0 else None
        self.layers = whole.model.layers[first:end]
        self.rotary_emb = whole.model.rotary_emb
        self.norm = whole.model.norm if end == count else None
        self.lm_head = whole.lm_head if end == count else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(TOKENS).unsqueeze(0)
        if self.embed_tokens is not None:
            x = self.embed_tokens(x)
        rotations = self.rotary_emb(x, positions)
        for layer in self.layers:
            x = layer(x, attention_mask=None, position_ids=positions, position_embeddings=rotations)
        if self.norm is not None and self.lm_head is not None:
            x = self.lm_head(self.norm(x))
        return x


def split_of(layers: int, stages: int) -> list[int]:
    """Where each stage begins, and the end: as torchtitan does it, stages between the ends get the odd layers."""
    least, more = divmod(layers, stages)
    ends = [0, least]
    for _ in range(stages - 2):
        ends.append(ends[-1] + least + (more > 0))
        more -= more > 0
    return [*ends[:stages], layers]


def tensor_parallel(stage: Stage, mesh: DeviceMesh, by_sequence: bool) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    between = Shard(1) if by_sequence else Replicate()
    plan: dict[str, Any] = {
        **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
        "self_attn.o_proj": RowwiseParallel(output_layouts=between),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=between),
    }
    root: dict[str, Any] = {
        "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "lm_head": ColwiseParallel(input_layouts=between, use_local_output=False),
    }
    if by_sequence:
        root["norm"] = SequenceParallel()
        plan |= {
            "input_layernorm": SequenceParallel(),
            "post_attention_layernorm": SequenceParallel(),
            "self_attn": PrepareModuleInput(
                input_kwarg_layouts={"hidden_states": Shard(1)},
                desired_input_kwarg_layouts={"hidden_states": Replicate()},
            ),
            "mlp": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        }
    for layer in stage.layers:
        parallelize_module(layer, mesh, plan)
    parallelize_module(stage, mesh, {name: style for name, style in root.items() if getattr(stage, name) is not None})


def fully_sharded(stage: Stage, mesh: DeviceMesh, is_piped: bool) -> None:
    from torch.distributed.fsdp import fully_shard

    for layer in stage.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=not is_piped)
    fully_shard(stage, mesh=mesh, reshard_after_forward=not is_piped)


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    following = nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    return nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())


class Rank:
    """One rank's part of the model and its step."""

    def __init__(self, case: Case, path: str, prepare: Callable[[Stage], Any] = lambda stage: None) -> None:
        """`prepare` is called before the layers are divided."""
        from transformers import AutoConfig, LlamaForCausalLM

        self.case = case
        mesh = init_device_mesh(
            "cpu", (case.stages, case.data, case.tensor), mesh_dim_names=("stage", "data", "tensor")
        )
        whole = LlamaForCausalLM(AutoConfig.from_pretrained(path))
        self.width = whole.config.hidden_size
        self.number = mesh["stage"].get_local_rank()
        ends = split_of(len(whole.model.layers), case.stages)
        self.stage = Stage(whole, ends[self.number], ends[self.number + 1])
        prepare(self.stage)
        if case.tensor > 1:
            tensor_parallel(self.stage, mesh["tensor"], case.by_sequence)
        if case.data > 1:
            fully_sharded(self.stage, mesh["data"], case.stages > 1)
        self.optimizer = torch.optim.AdamW(self.stage.parameters())
        self.ids = torch.randint(0, WORDS, (BATCH * case.microbatches, TOKENS))
        self.schedule = self._schedule(mesh["stage"]) if case.stages > 1 else None

    def _schedule(self, mesh: DeviceMesh) -> Any:
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        case, last = self.case, self.number == self.case.stages - 1
        tokens = TOKENS // case.tensor if case.by_sequence else TOKENS
        stream = torch.empty(BATCH, tokens, self.width, device="meta", requires_grad=True)
        stage = PipelineStage(
            self.stage,
            self.number,
            case.stages,
            torch.device("cpu"),
            input_args=torch.empty(BATCH, TOKENS, dtype=torch.int64, device="meta") if self.number == 0 else stream,
            output_args=torch.empty(BATCH, TOKENS, WORDS, device="meta", requires_grad=True) if last else stream,
            group=mesh.get_group(),
        )
        return Schedule1F1B(stage, case.microbatches, loss_fn=loss_of)

    def step(self) -> None:
        """Holds gradients through the next forward, as predictions assume. A schedule adds to those that it finds."""
        if self.schedule is None:
            logits = self.stage(self.ids)
            loss = loss_of(logits, self.ids)
            self.optimizer.zero_grad()
            loss.backward()
        else:
            self.optimizer.zero_grad()
            given = (self.ids,) if self.number == 0 else ()
            target = self.ids if self.number == self.case.stages - 1 else None
            self.schedule.step(*given, target=target, return_outputs=False)
        self.optimizer.step()


def bytes_of(tensors: Any) -> int:
    local = (t.to_local() if hasattr(t, "to_local") else t for t in tensors)
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in local}.values())


def living_bytes() -> int:
    """The bytes of tensors that have a Python object. Buffers of past collectives have none; torch frees them late."""
    gc.collect()
    return bytes_of(t for t in gc.get_objects() if type(t) in (torch.Tensor, nn.Parameter) and t.device.type == "cpu")


def growth_of(profile: Any) -> int:
    """The most bytes of tensors that lived at once after the mark, beyond those that lived at the mark."""
    events = profile.profiler.kineto_results.events()
    begin = next(event.start_ns() for event in events if event.name() == "judged step")
    grown = most = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        if event.start_ns() >= begin:
            grown += event.nbytes()
            most = max(most, grown)
    return most


def judge(name: str, path: str) -> dict[str, int]:
    """What this rank's tensors take in a case."""
    from torch.distributed.tensor.parallel import loss_parallel

    before = living_bytes()
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile,
        loss_parallel(),
    ):
        part = Rank(CASES[name], path)
        part.step()
        gradients = [p.grad for p in part.stage.parameters()]  # Python objects
        stays = living_bytes() - before
        del gradients
        with torch.profiler.record_function("judged step"):
            part.step()
    state = part.optimizer.state.values()
    return {
        "stage": part.number,
        "parameter_bytes": bytes_of(part.stage.parameters()),
        "optimizer_state_bytes": bytes_of(t for entry in state for t in entry.values() if t.dim() > 0),
        "peak_bytes": stays + growth_of(profile),
    }


def main() -> None:
    dist.init_process_group("gloo")
    for name in sys.argv[2:]:
        answers: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(answers, judge(name, sys.argv[1]))
        if dist.get_rank() == 0:
            print(json.dumps(answers), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
