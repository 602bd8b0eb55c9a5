"""Random small models and loops for `soak.py`: one seed makes the same ones again.

`subject_of(seed)` may be called any number of times; the subjects that it returns share nothing.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

KINDS = ("rows", "tokens", "images")
VOCABULARY = 23


# ---- layers ------------------------------------------------------------------------------------


class Activation(nn.Module):
    NAMES = ("relu", "gelu", "silu", "tanh", "sigmoid", "elu", "softplus", "leaky_relu", "mish")

    def __init__(self, name: str, in_place: bool) -> None:
        super().__init__()
        self.name, self.in_place = name, in_place and name in ("relu", "silu", "elu", "leaky_relu", "mish")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        function = getattr(functional, self.name, None) or getattr(torch, self.name)
        # A copy, because an argument that autograd holds can't be changed.
        return function(x.clone(), inplace=True) if self.in_place else function(x)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.heads, self.causal, self.dropout = heads, causal, dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=self.causal, dropout_p=dropout)
        return self.outer(y.transpose(1, 2).flatten(2))


class TorchAttention(nn.Module):
    def __init__(self, width: int, weights: bool) -> None:
        super().__init__()
        self.attention, self.weights = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True), weights

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, weights = self.attention(x, x, x, need_weights=self.weights)
        return y if weights is None else y + weights.mean()


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.GRU(width, width, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cell(x)[0]


class Across(nn.Module):
    """A convolution or a batch norm along a sequence, which wants the channels in front."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


class Average(nn.Module):
    """A buffer that each forward changes: in place, by another tensor in its place, or by `data`."""

    def __init__(self, style: int, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(()), persistent=persistent)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.style, self.calls = style, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        mean = x.detach().float().mean()
        y = x - self.average.to(x.dtype)
        with torch.no_grad():
            if self.style == 0:
                self.average.mul_(0.9).add_(mean, alpha=0.1)
            elif self.style == 1:
                self.average = 0.9 * self.average + 0.1 * mean
            else:
                self.average.copy_(torch.lerp(self.average, mean, 0.1))
            self.count += 1
        return y * torch.sigmoid(x)


class Noise(nn.Module):
    """Draws from torch's generator, from its own, or from Python's."""

    def __init__(self, source: int) -> None:
        super().__init__()
        self.source, self.generator = source, torch.Generator().manual_seed(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.source == 0:
            return x + 0.1 * torch.randn_like(x) * x.tanh()
        if self.source == 1:
            return x * torch.rand(x.shape[-1], generator=self.generator)
        return x.sigmoid() * (x + random.random())


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.inner(x)


class Gate(nn.Module):
    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.ways = nn.ModuleDict({"left": left, "right": right})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ways["left"](x) * torch.sigmoid(self.ways["right"](x))


class Listed(nn.Module):
    """A list called with keywords, each of its modules with what the one before gave beside its output."""

    def __init__(self, modules: list[nn.Module]) -> None:
        super().__init__()
        self.items = nn.ModuleList([Beside(module) for module in modules])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.new_zeros(())
        for item in self.items:
            answer = item(x, beside=total)
            x, total = answer["x"], answer["beside"]
        return x * (1 + total)


class Beside(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, *, beside: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.inner(x)
        return {"x": y, "beside": beside + 0.1 * y.square().mean()}


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return self.inner(x)
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


class Without(nn.Module):
    """Part of the way has no gradient."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            weight = torch.sigmoid(self.inner(x))
        return x * weight + x.detach().tanh()


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(x, x.exp())
        ctx.scale = scale
        return scale * x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        x, power = ctx.saved_tensors
        return gradient * 2 * ctx.scale * x * (power / power.clamp(min=1e-6)), None


class OwnFunction(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Squared.apply(torch.tanh(x), 0.5)


class HookedTensor(nn.Module):
    """Hooks on a tensor inside forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * 0.5)
        return y * y


class Branches(nn.Module):
    """Goes another way by its values, so that it can't be traced."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) if float(x.detach().float().sum()) > 0 else x.tanh()


class Narrow(nn.Module):
    """Views, slices and in-place changes of a copy."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        half = y.shape[-1] // 2
        y[..., :half].mul_(2.0)
        left, right = y.split([half, y.shape[-1] - half], dim=-1)
        return torch.cat([right.exp().clamp(max=3.0), left.cos()], dim=-1)


# ---- random layers -------------------------------------------------------------------------------


@dataclasses.dataclass
class Builder:
    """Draws layers that keep the shape of their argument."""

    draw: random.Random
    kind: str
    width: int
    shared: list[nn.Module] = dataclasses.field(default_factory=list)
    replays_itself: bool = False
    branches: bool = False

    def product(self) -> nn.Module:
        width, draw = self.width, self.draw
        if self.kind == "images":
            kernel = draw.choice([1, 3, 5])
            groups = draw.choice([1, 1, 2, width])
            return nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=groups, bias=draw.random() < 0.7)
        if self.kind == "tokens" and draw.random() < 0.5:
            makers: list[Callable[[], nn.Module]] = [
                lambda: Attention(width, 2, draw.random() < 0.5, draw.choice([0.0, 0.2])),
                lambda: TorchAttention(width, draw.random() < 0.5),
                lambda: Across(nn.Conv1d(width, width, 3, padding=1)),
                lambda: Recurrent(width),
            ]
            return draw.choice(makers)()
        wide = draw.choice([1, 2, 4]) * width
        product = nn.Linear(width, wide, bias=draw.random() < 0.8)
        if draw.random() < 0.1:
            product = nn.utils.parametrizations.weight_norm(product)
        return product if wide == width else nn.Sequential(product, self.activation(), nn.Linear(wide, width))

    def norm(self) -> nn.Module:
        width, draw = self.width, self.draw
        if self.kind == "images":
            return draw.choice([nn.BatchNorm2d(width), nn.GroupNorm(2, width), nn.InstanceNorm2d(width, affine=True)])
        batch = nn.BatchNorm1d(width, momentum=None if draw.random() < 0.1 else 0.1)
        batch_norm = Across(batch) if self.kind == "tokens" else batch
        return draw.choice([nn.LayerNorm(width), nn.RMSNorm(width), batch_norm])

    def activation(self) -> nn.Module:
        return Activation(self.draw.choice(Activation.NAMES), self.draw.random() < 0.3)

    def dropout(self) -> nn.Module:
        kinds: list[type[nn.Module]] = [nn.Dropout, nn.AlphaDropout]
        if self.kind == "images":
            kinds.append(nn.Dropout2d)
        kind = self.draw.choice(kinds)
        return kind(self.draw.choice([0.1, 0.5]))  # type: ignore[call-arg]

    def odd(self) -> nn.Module:
        draw = self.draw
        makers: list[Callable[[], nn.Module]] = [
            lambda: Average(draw.randrange(3), draw.random() < 0.7),
            lambda: Noise(draw.randrange(3)),
            OwnFunction,
            HookedTensor,
            Narrow,
            nn.Identity,
        ]
        return draw.choice(makers)()

    def leaf(self) -> nn.Module:
        makers = [self.product, self.norm, self.activation, self.dropout, self.odd]
        made = self.draw.choices(makers, [5, 3, 3, 2, 2])[0]()
        if self.draw.random() < 0.2:
            self.shared.append(made)
        return made

    def container(self, depth: int) -> nn.Module:
        draw = self.draw
        inner = [self.layer(depth - 1) for _ in range(draw.randint(1, 4))]
        chain = inner[0] if len(inner) == 1 else nn.Sequential(*inner)
        choice = draw.randrange(12)
        if choice < 4:
            return Residual(chain)
        if choice == 4:
            return Gate(chain, self.layer(depth - 1))
        if choice == 5:
            return Listed(inner)
        if choice == 6:
            self.replays_itself = True
            return Checkpointed(chain, draw.random() < 0.3)
        if choice == 7:
            return Without(chain)
        if choice == 8 and draw.random() < 0.3:
            self.branches = True
            return Branches(chain)
        if choice == 9:
            for parameter in inner[0].parameters():
                parameter.requires_grad_(False)
        return chain

    def layer(self, depth: int) -> nn.Module:
        if self.shared and self.draw.random() < 0.08:
            return self.draw.choice(self.shared)
        made = self.container(depth) if depth > 0 and self.draw.random() < 0.6 else self.leaf()
        self.hook(made)
        return made

    def hook(self, module: nn.Module) -> None:
        choice = self.draw.randrange(60)
        if choice == 0:
            module.register_forward_hook(lambda module, args, output: _scaled(output, 1.25))
        elif choice == 1:
            module.register_forward_pre_hook(lambda module, args: (args[0] * 0.75, *args[1:]))
        elif choice == 2:
            module.register_full_backward_hook(lambda module, given, taken: tuple(_scaled(g, 0.5) for g in given))
        elif choice == 3:
            module.register_full_backward_pre_hook(lambda module, taken: tuple(_scaled(g, 2.0) for g in taken))
        elif choice == 4:
            module.eval()

    def stack(self) -> nn.Module:
        """The body: some blocks alike, as most models have, or all of them different."""
        draw = self.draw
        count = draw.randint(2, 5)
        if draw.random() < 0.5:
            block = Residual(nn.Sequential(self.norm(), self.layer(2), self.layer(1)))
            blocks: list[nn.Module] = [block, *[copy.deepcopy(block) for _ in range(count - 1)]]
        else:
            blocks = [self.layer(3) for _ in range(count)]
        if draw.random() < 0.15:
            blocks.append(blocks[0])  # called twice in a forward
        return Listed(blocks) if draw.random() < 0.2 else nn.Sequential(*blocks)


def _scaled(value: Any, factor: float) -> Any:
    return value * factor if isinstance(value, torch.Tensor) else value


class Net(nn.Module):
    """A first layer, the body, and a head whose weight may be the first layer's."""

    def __init__(self, builder: Builder, tied: bool, with_loss: bool) -> None:
        super().__init__()
        width, self.kind, self.with_loss = builder.width, builder.kind, with_loss
        if self.kind == "tokens":
            self.first: nn.Module = nn.Embedding(VOCABULARY, width)
        elif self.kind == "images":
            self.first = nn.Conv2d(3, width, 3, padding=1)
        else:
            self.first = nn.Linear(6, width)
        self.body = builder.stack()
        self.norm = nn.GroupNorm(1, width) if self.kind == "images" else nn.LayerNorm(width)
        self.last = nn.Linear(width, VOCABULARY)
        if tied and isinstance(self.first, nn.Embedding):
            self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        y = self.norm(self.body(self.first(x)))
        if self.kind == "images":
            y = y.mean((2, 3))
        y = self.last(y)
        if not self.with_loss:
            return y
        return {"loss": functional.cross_entropy(y.flatten(0, -2).float(), labels.flatten()), "logits": y}


# ---- loops ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Loop:
    """How the model is trained."""

    rows: int
    length: int
    other_rows: bool  # one batch in the middle is smaller
    autocast: bool
    passes: int  # forward and backward this often before an optimizer step
    together: bool  # all forwards before the first backward
    again: bool  # backward twice over one graph
    by_grad: bool  # torch.autograd.grad instead of backward
    clip: bool
    evaluates: bool
    to_none: bool
    adam: bool
    freezes: bool  # a parameter stops and starts to train


@dataclasses.dataclass
class Subject:
    model: Net
    loop: Loop
    optimizer: torch.optim.Optimizer
    replays_itself: bool
    branches: bool

    def batch(self, step: int, part: int) -> tuple[torch.Tensor, torch.Tensor]:
        loop, generator = self.loop, torch.Generator().manual_seed(1000 * step + part)
        rows = max(2, loop.rows // 2) if loop.other_rows and step == 2 else loop.rows
        if self.model.kind == "tokens":
            shape: tuple[int, ...] = (rows, loop.length)
            return (torch.randint(0, VOCABULARY, shape, generator=generator),) * 2
        labels = torch.randint(0, VOCABULARY, (rows,), generator=generator)
        shape = (rows, 3, 8, 8) if self.model.kind == "images" else (rows, 6)
        return torch.randn(shape, generator=generator), labels

    def sample(self) -> Any:
        x, labels = self.batch(0, 0)
        return {"x": x, "labels": labels} if self.model.with_loss else x

    def forward(self, step: int, part: int) -> torch.Tensor:
        x, labels = self.batch(step, part)
        with torch.autocast("cpu", dtype=torch.bfloat16) if self.loop.autocast else contextlib.nullcontext():
            output = self.model(x, labels=labels) if self.model.with_loss else self.model(x)
        if isinstance(output, dict):
            return output["loss"]
        return functional.cross_entropy(output.flatten(0, -2).float(), labels.flatten())

    def backward(self, loss: torch.Tensor) -> None:
        if self.loop.by_grad:
            parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
            for parameter, gradient in zip(parameters, found, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
            return
        loss.backward(retain_graph=self.loop.again)
        if self.loop.again:
            loss.backward()

    def prepare(self, step: int) -> None:
        torch.manual_seed(step)
        random.seed(step)
        if self.loop.freezes:
            self.model.last.bias.requires_grad_(step != 1)

    def parts(self, step: int) -> Iterator[tuple[str, Callable[[], Any]]]:
        """The parts of a step, in order: ("forward" or "backward", what to call)."""
        losses: list[torch.Tensor] = []
        for part in range(self.loop.passes):
            yield "forward", lambda part=part: losses.append(self.forward(step, part))
            if not self.loop.together:
                yield "backward", lambda: self.backward(losses[-1])
        if self.loop.together:
            yield "backward", lambda: self.backward(sum(losses))
        self.losses = [loss.detach().clone() for loss in losses]

    def finish(self, step: int) -> None:
        if self.loop.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.loop.to_none)

    def evaluate(self, step: int) -> torch.Tensor | None:
        if not self.loop.evaluates:
            return None
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        with torch.no_grad():
            loss = self.forward(step, 0)
        for module, mode in modes.items():
            module.training = mode
        return loss


def subject_of(seed: int) -> Subject:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    kind = draw.choice(KINDS)
    large = draw.random() < 0.2
    builder = Builder(draw, kind, draw.choice([16, 32]) if large else draw.choice([4, 8, 12]))
    net = Net(builder, draw.random() < 0.4, draw.random() < 0.5)

    def often(chance: float) -> bool:
        return draw.random() < chance

    # Reentrant checkpoints and double backward don't go together with everything in torch itself.
    reentrant = any(isinstance(module, Checkpointed) and module.reentrant for module in net.modules())
    loop = Loop(
        rows=draw.choice([64, 128]) if large else draw.choice([2, 3, 6]),
        length=draw.choice([32, 64]) if large else draw.choice([2, 5]),
        other_rows=often(0.2),
        autocast=often(0.15),
        passes=draw.choice([1, 1, 1, 2, 3]),
        together=often(0.3),
        again=often(0.1) and not reentrant,
        by_grad=often(0.1) and not reentrant,
        clip=often(0.2),
        evaluates=often(0.2),
        to_none=often(0.8),
        adam=often(0.3),
        freezes=often(0.1),
    )
    if often(0.15):
        for parameter in list(net.body.parameters())[:2]:
            if parameter.requires_grad:
                parameter.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    kind_of = torch.optim.AdamW if loop.adam else torch.optim.SGD
    optimizer = kind_of(net.parameters(), lr=0.01)
    return Subject(net, loop, optimizer, builder.replays_itself, builder.branches)
