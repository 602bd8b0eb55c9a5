"""Training loops over models with streamed parameters. As a script it prints one JSON line.

Usage: python streamed_cases.py CASE plain|streamed
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch

import memscale
from memscale import _core
from memscale.tracing.profiler import load_tracer

WIDTH, BLOCKS, STEPS = 512, 10, 3


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))


def blocks() -> torch.nn.Module:
    return torch.nn.Sequential(*(Block() for _ in range(BLOCKS)))


class Run:
    """One run of a case: makes and wraps the model, notes results."""

    def __init__(self, is_streamed: bool, room_mb: int) -> None:
        self.is_streamed = is_streamed
        self._room_bytes = room_mb * 1_000_000
        self._hash = hashlib.sha256()
        self.budget_bytes = self._trained_peak_bytes = 0

    def make(self, build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
        torch.manual_seed(0)
        with memscale.stream() if self.is_streamed else nullcontext():
            self._model = build()  # until the report
        return self._model

    def wrap(self, model: Any, optimizer: torch.optim.Optimizer | None = None) -> None:
        if not self.is_streamed:
            return
        load_tracer()
        _core.streamed_drop()
        self.budget_bytes = resident("VmRSS") + self._room_bytes
        pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        config = memscale.Config(memory_budget_gb=self.budget_bytes / 1e9, mode="aggressive")
        if optimizer is None:
            memscale.wrap(model, config)
        else:
            memscale.apply_all_optimizations(model, optimizer, config)

    def trained(self) -> None:
        """The training is over: what the script reads afterwards is no part of its peak."""
        self._trained_peak_bytes = resident("VmHWM")

    def note(self, *tensors: Any) -> None:
        for tensor in tensors:
            self._hash.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())

    def note_model(self, model: torch.nn.Module) -> None:
        self.note(*model.parameters(), *(value.grad for value in model.parameters() if value.grad is not None))

    def report(self) -> dict[str, Any]:
        stats = _core.streamed_stats()
        return {
            "digest": self._hash.hexdigest(),
            "peak_bytes": self._trained_peak_bytes or resident("VmHWM"),
            "budget_bytes": self.budget_bytes,
            **stats,
        }


def resident(field: str) -> int:
    for line in pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


def batches(count: int = STEPS) -> Iterable[torch.Tensor]:
    for step in range(count):
        yield torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(step))


def all_trained(run: Run) -> None:
    """State on disk, gradients released: 84 MB of parameters, 84 MB of gradients, 168 MB of state."""
    model = run.make(blocks)
    optimizer = memscale.optim.AdamW(model.parameters(), lr=1e-3)
    run.wrap(model, optimizer)
    for x in batches():
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.note(loss)
    run.note_model(model)


def with_neighbours(run: Run) -> None:
    """Torch's own optimizer, clipping, an average of the weights, evaluation, a saved state, detach."""
    model = run.make(blocks)
    average = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    run.wrap(model)
    for x in batches():
        for half in x.chunk(2):
            model(half).square().mean().backward()
        run.note(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for name, value in model.named_parameters():
                average[name].lerp_(value, 0.1)
            run.note(model.eval()(x))
        model.train()
    run.note(*average.values(), *model.state_dict().values())
    memscale.detach(model) if run.budget_bytes else None
    loss = model(x).square().mean()
    loss.backward()
    run.note(loss)
    run.note_model(model)


def adapters(run: Run) -> None:
    """A frozen Llama with trained adapters of its projections, and generation between steps."""
    import peft
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8, vocab_size=1000
    )
    model = run.make(lambda: transformers.LlamaForCausalLM(config))
    model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=4))
    optimizer = torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=1e-3)
    run.wrap(model)
    for step in range(STEPS):
        tokens = torch.randint(1000, (2, 64), generator=torch.Generator().manual_seed(step))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.note(loss, model.generate(input_ids=tokens[:1, :8], max_new_tokens=4, do_sample=False))
    run.note(*(value for value in model.parameters() if value.requires_grad))


class Adapted(torch.nn.Module):
    """A block of a checkpoint with a small trained part beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Block()
        self.down = torch.nn.Linear(WIDTH, 8)
        self.up = torch.nn.Linear(8, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.base(x) + self.up(self.down(x))
        return y


def adapted() -> torch.nn.Module:
    return torch.nn.Sequential(*(Adapted() for _ in range(BLOCKS)))


def save_shards(model: torch.nn.Module, folder: pathlib.Path, count: int = 2) -> None:
    """A checkpoint of several files with an index, as transformers writes them."""
    from safetensors.torch import save_file

    state = list(model.state_dict().items())
    weight_map = {}
    for number in range(count):
        name = f"model-{number + 1:05}-of-{count:05}.safetensors"
        shard = dict(state[number::count])
        save_file(shard, folder / name, metadata={"format": "pt"})
        with open(folder / name, "rb+") as file:
            os.fsync(file)  # the kernel reclaims no page that is still to be written
        weight_map.update(dict.fromkeys(shard, name))
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def checkpoint(run: Run) -> None:
    """A frozen base from the shards of a checkpoint; the adapters and the base of the last block are trained."""
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = pathlib.Path(name)
        torch.manual_seed(0)
        save_shards(adapted(), folder)
        if run.is_streamed:
            with torch.device("meta"):
                model = adapted()
            memscale.load_checkpoint(model, folder)
        else:
            model = adapted()
            model.load_state_dict({k: v for file in folder.glob("*.safetensors") for k, v in load(file).items()})
    torch.manual_seed(1)  # only one of the two models was initialised
    for block in list(model)[:-1]:  # type: ignore[call-overload]
        block.base.requires_grad_(False)
    optimizer = memscale.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=1e-3)
    run.wrap(model, optimizer)
    for x in batches():
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.note(loss)
    run.trained()
    run.note_model(model)


def load(file: pathlib.Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(file)


CASES: dict[str, tuple[Callable[[Run], None], int]] = {
    "all_trained": (all_trained, 140),
    "with_neighbours": (with_neighbours, 370),
    "adapters": (adapters, 140),
    "checkpoint": (checkpoint, 115),
}


def main() -> None:
    torch.set_num_threads(1)
    case, room_mb = CASES[sys.argv[1]]
    run = Run(sys.argv[2] == "streamed", room_mb)
    case(run)
    print(json.dumps(run.report()))


if __name__ == "__main__":
    main()
