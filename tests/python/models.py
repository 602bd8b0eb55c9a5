"""Small models of many kinds, for tests whose promise holds for any model.

Each entry of `MODELS` makes a `Case`: a model in training mode, and a function from a seed to the arguments of one
forward. A forward takes milliseconds. `loss_of(output)` is the loss of any output.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@dataclasses.dataclass
class Case:
    """A model and its batches."""

    model: nn.Module
    batch: Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]
    autocast: torch.dtype | None = None


def loss_of(output: Any) -> torch.Tensor:
    """A scalar that depends on every floating-point output."""
    loss = getattr(output, "loss", None)
    if loss is not None:
        return loss
    tensors: list[torch.Tensor] = []
    _collect(output, tensors)
    return sum((t.float() * torch.linspace(0.5, 1.5, t.numel(), device=t.device).view(t.shape)).mean() for t in tensors)


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.requires_grad:
            found.append(value)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, found)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)


def _ids(seed: int, shape: tuple[int, ...], high: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def _floats(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---- transformers -----------------------------------------------------------------------


def _lm(model: nn.Module, vocabulary: int = 64, shape: tuple[int, int] = (2, 12)) -> Case:
    def batch(seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        ids = _ids(seed, shape, vocabulary)
        return (), {"input_ids": ids, "labels": ids}

    return Case(model.train(), batch)


def gpt2() -> Case:
    """Dropout everywhere, tied embeddings, a cache by default."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return _lm(GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=3, n_head=2)))


def gpt2_padded_eager() -> Case:
    """As gpt2, with a padding mask and eager attention: a replay that fills the cache again changes the result."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=3, n_head=2, attn_implementation="eager")
    case = _lm(GPT2LMHeadModel(config))
    plain = case.batch

    def batch(seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = plain(seed)
        mask = torch.ones_like(kwargs["input_ids"])
        mask[1, 7:] = 0
        return args, {**kwargs, "attention_mask": mask}

    return Case(case.model, batch)


def gpt2_autocast() -> Case:
    case = gpt2()
    return Case(case.model, case.batch, torch.bfloat16)


def bert() -> Case:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        attn_implementation="eager",
    )
    case = _lm(BertForMaskedLM(config))
    plain = case.batch

    def batch(seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = plain(seed)
        mask = torch.ones_like(kwargs["input_ids"])
        mask[0, 9:] = 0
        return args, {**kwargs, "attention_mask": mask}

    return Case(case.model, batch)


def llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attention_dropout=0.1,
    )
    return _lm(LlamaForCausalLM(config))


def mixtral() -> Case:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        output_router_logits=True,
    )
    return _lm(MixtralForCausalLM(config))


def t5() -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).train()

    def batch(seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # A cache changes the memory layout of the keys, and with it the last bits of the unwrapped model.
        return (), {
            "input_ids": _ids(seed, (2, 10), 64),
            "labels": _ids(seed + 1, (2, 7), 64),
            "use_cache": False,
        }

    return Case(model, batch)


def vit() -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
        num_labels=5,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    model = ViTForImageClassification(config).train()

    def batch(seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), {"pixel_values": _floats(seed, 2, 3, 16, 16), "labels": _ids(seed, (2,), 5)}

    return Case(model, batch)


def albert() -> Case:
    """All layers share one group of parameters."""
    from transformers import AlbertConfig, AlbertForMaskedLM

    config = AlbertConfig(
        vocab_size=64,
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    return _lm(AlbertForMaskedLM(config))


# ---- torch ---------------------------------------------------------------------------------


def _floats_case(model: nn.Module, *shape: int) -> Case:
    return Case(model.train(), lambda seed: ((_floats(seed, *shape),), {}))


def mlp() -> Case:
    layers = [nn.Sequential(nn.Linear(24, 24), nn.GELU(), nn.Dropout(0.2)) for _ in range(4)]
    return _floats_case(nn.Sequential(*layers, nn.Linear(24, 3)), 6, 24)


class _ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + x)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.blocks = nn.ModuleList(_ResidualBlock(8) for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def resnet() -> Case:
    """BatchNorm: its buffers must be updated once."""
    return _floats_case(ResNet(), 4, 3, 8, 8)


class LstmStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(12, 12, batch_first=True, bidirectional=False) for _ in range(3))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for layer in self.layers:
            x, state = layer(x, state)
            x = self.dropout(x)
        return self.head(x)


def lstm() -> Case:
    return _floats_case(LstmStack(), 3, 7, 12)


class GruStack(nn.Module):
    """Gates are pieces of one storage; each has its own version counter and is finished in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.GRU(12, 6, batch_first=True, bidirectional=True) for _ in range(2))
        self.cells = nn.ModuleList([nn.LSTMCell(12, 12), nn.GRUCell(12, 12)])
        self.head = nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)[0]
        hidden = (x[:, 0], torch.tanh(x[:, 1]))
        for step in range(x.shape[1]):
            hidden = self.cells[0](x[:, step], hidden)
        return self.head(self.cells[1](x[:, 2], hidden[0]))


def gru() -> Case:
    return _floats_case(GruStack(), 3, 5, 12)


class PackedStack(nn.Module):
    """Layers that take and return packed sequences: named tuples that check their items."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(12, 12, batch_first=True) for _ in range(2))
        self.head = nn.Linear(12, 2)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        for layer in self.layers:
            packed = layer(packed)[0]
        return self.head(nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0])


def packed_lstm() -> Case:
    lengths = torch.tensor([2, 5, 4])
    return Case(PackedStack().train(), lambda seed: ((_floats(seed, 3, 5, 12), lengths), {}))


class FrozenEncoder(nn.Module):
    """An encoder in evaluation mode, whose parameters train, inside a training model."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.Linear(16, 3))

    def train(self, mode: bool = True) -> FrozenEncoder:
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


def eval_encoder() -> Case:
    return _floats_case(FrozenEncoder(), 2, 6, 16)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, c * 2, 3, stride=2, padding=1), nn.GroupNorm(2, c * 2), nn.SiLU())
            for c in (4, 8)
        )
        self.up = nn.ModuleList(
            nn.Sequential(nn.ConvTranspose2d(c, c // 2, 2, stride=2), nn.SiLU(), nn.Dropout2d(0.2)) for c in (16, 16)
        )
        self.head = nn.Conv2d(12, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down[0](x)
        b = self.down[1](a)
        c = torch.cat([self.up[0](b), a], 1)
        return self.head(torch.cat([self.up[1](c), x], 1))


def unet() -> Case:
    return _floats_case(UNet(), 2, 4, 8, 8)


class _Pair(nn.Module):
    """Keyword-only arguments and several outputs, with containers and None in both."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(10, 10)
        self.b = nn.Linear(10, 10)

    def forward(self, *, x: torch.Tensor, extra: dict[str, Any], scale: float, note: str | None = None) -> Any:
        y = torch.tanh(self.a(x)) * scale
        z = torch.sigmoid(self.b(x)) + extra["bias"][0]
        return (y, None, {"z": z, "note": note})


class MultiOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Pair() for _ in range(3))
        self.bias = nn.Parameter(torch.ones(10))

    def forward(self, x: torch.Tensor) -> Any:
        total = torch.zeros(())
        for index, layer in enumerate(self.layers):
            y, _, named = layer(x=x, extra={"bias": [self.bias, None]}, scale=0.5 + index)
            x = y + named["z"]
            total = total + named["z"].square().mean()
        return {"x": x, "aux": total}


def multi_output() -> Case:
    return _floats_case(MultiOutput(), 5, 10)


class _UserCheckpoint(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Dropout(0.2), nn.Linear(24, 12))
        self.norm = nn.LayerNorm(12)
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import torch.utils.checkpoint as checkpoint

        return self.norm(x + checkpoint.checkpoint(self.body, x, use_reentrant=self.use_reentrant))


def user_checkpoint() -> Case:
    """A model that checkpoints parts of its own layers."""
    blocks = nn.ModuleList([_UserCheckpoint(False), _UserCheckpoint(False), _UserCheckpoint(True)])
    return _floats_case(_Chain(blocks, nn.Linear(12, 2)), 4, 12)


class _Chain(nn.Module):
    def __init__(self, blocks: nn.ModuleList, head: nn.Module) -> None:
        super().__init__()
        self.blocks = blocks
        self.head = head
        self.first = nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class _Inplace(nn.Module):
    """Changes its own intermediate results, and a view of them, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 12)
        self.out = nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        y[:, :6].mul_(2.0)
        y = torch.relu_(y)
        z = self.out(y)
        z += x
        return z


def inplace() -> Case:
    return _floats_case(_Chain(nn.ModuleList(_Inplace() for _ in range(3)), nn.Linear(12, 2)), 4, 12)


class _Complex(nn.Module):
    """Lazily conjugated and expanded tensors, and a large storage behind a small view."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7))
        self.linear = nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(self.linear(x), dim=-1)
        power = (spectrum * spectrum.conj() * self.weight).real
        wide = power.sum(-1, keepdim=True).expand(-1, 12)
        piece = torch.cat([x, wide * torch.sin(x), x], 1)[:, 12:24]
        return piece * torch.sigmoid(piece)


def complex_views() -> Case:
    return _floats_case(_Chain(nn.ModuleList(_Complex() for _ in range(2)), nn.Linear(12, 2)), 4, 12)


class _Stateful(nn.Module):
    """Counts its calls, keeps a running mean in a buffer and collects values in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 12)
        self.register_buffer("mean", torch.zeros(12))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.calls = 0
        self.collected: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.collected.append(float(self.calls))
        y = torch.tanh(self.linear(x)) * (1.0 + 0.1 * self.calls)
        with torch.no_grad():
            self.mean = 0.9 * self.mean + 0.1 * y.mean(0)
            self.seen += 1
        return y - self.mean * torch.rand(())


def stateful() -> Case:
    return _floats_case(_Chain(nn.ModuleList(_Stateful() for _ in range(3)), nn.Linear(12, 2)), 4, 12)


class _Square(torch.autograd.Function):
    """Unpacks its saved tensors several times, and uses one of them each time."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * w
        ctx.save_for_backward(x, w, y)
        return y * y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        y = ctx.saved_tensors[2]
        x = ctx.saved_tensors[0]
        w = ctx.saved_tensors[1]
        inner = 2 * gradient * y
        return inner * w, (inner * x).sum(0)


class _CustomFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(12))
        self.linear = nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(_Square.apply(torch.tanh(x), self.weight))


def custom_function() -> Case:
    return _floats_case(_Chain(nn.ModuleList(_CustomFunction() for _ in range(3)), nn.Linear(12, 2)), 4, 12)


class _NumpyRandom(nn.Module):
    """Draws random numbers of Python and NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import random

        import numpy

        return torch.sin(self.linear(x) * random.random()) * float(numpy.random.rand())


def foreign_random() -> Case:
    return _floats_case(_Chain(nn.ModuleList(_NumpyRandom() for _ in range(3)), nn.Linear(12, 2)), 4, 12)


class _OwnRandom(nn.Module):
    """Draws from two generators that the layer keeps; its first forward makes one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 12)
        self.generators: dict[str, torch.Generator] = {"noise": torch.Generator().manual_seed(5)}
        self.generator: torch.Generator | None = None

    def __deepcopy__(self, memo: Any) -> _OwnRandom:
        twin = _OwnRandom()
        twin.load_state_dict(self.state_dict())
        return twin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(7)
        noise = torch.rand(x.shape, generator=self.generators["noise"])
        return torch.tanh(self.linear(x) * noise) * torch.rand(x.shape, generator=self.generator)


def own_random() -> Case:
    return _floats_case(_Chain(nn.ModuleList(_OwnRandom() for _ in range(3)), nn.Linear(12, 2)), 4, 12)


class SharedLayer(nn.Module):
    """One layer called many times, with tensors shared between its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Dropout(0.1))])
        self.other = nn.ModuleList([nn.Linear(12, 12)])
        self.head = nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for _ in range(3):
            x = self.layers[0](x) * torch.sigmoid(self.other[0](x))
            kept.append(x)
        return self.head(sum(kept))


def shared_layer() -> Case:
    return _floats_case(SharedLayer(), 4, 12)


MODELS: dict[str, Callable[[], Case]] = {
    case.__name__: case
    for case in (
        gpt2,
        gpt2_padded_eager,
        gpt2_autocast,
        bert,
        llama,
        mixtral,
        t5,
        vit,
        albert,
        mlp,
        resnet,
        lstm,
        gru,
        packed_lstm,
        eval_encoder,
        unet,
        multi_output,
        user_checkpoint,
        inplace,
        complex_views,
        stateful,
        custom_function,
        foreign_random,
        own_random,
        shared_layer,
    )
}
