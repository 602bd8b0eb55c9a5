"""Layers are found by structure: the blocks of any model, whatever the names of its classes."""

import os

import pytest
from torch import nn
from torch.nn.utils import parametrizations

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from memscale.model.layers import find_layers

SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {**SIZES, "vocab_size": 99}
VISION = {**SIZES, "image_size": 32, "patch_size": 8}


class Forwarding(nn.Module):
    def forward(self, x):
        return x


class Block(Forwarding):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


class Attributes(Forwarding):
    """Blocks without a list."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.block1, self.block2, self.block3 = Block(), Block(), Block()
        self.head = nn.Linear(8, 2)


class ExpertBlock(Forwarding):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList([Block() for _ in range(4)])


class Experts(Forwarding):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.layers = nn.ModuleList([ExpertBlock() for _ in range(2)])


class Towers(Forwarding):
    """Two equal models side by side."""

    def __init__(self):
        super().__init__()
        self.query, self.document = Experts(), Experts()


class Normed(Forwarding):
    """Computes its weights; the modules that compute them aren't layers."""

    def __init__(self):
        super().__init__()
        norm = parametrizations.weight_norm
        self.first, self.second, self.head = norm(nn.Linear(8, 8)), norm(nn.Linear(8, 8)), nn.Linear(8, 2)


class Recurrent(Forwarding):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.lstm = nn.LSTM(8, 8, 2)
        self.head = nn.Linear(8, 2)


class RecurrentStack(Forwarding):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.LSTM(8, 8) for _ in range(3)])
        self.head = nn.Linear(8, 2)


class Convolutions(Forwarding):
    """Features and classifier, each a sequence of leaves."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU(), nn.Conv2d(3, 3, 3))
        self.classifier = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


class BlocksAndHead(Forwarding):
    """Blocks, and a small sequence of leaves, which isn't a layer because there are blocks."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.head = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 2))


class Stages(Forwarding):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([nn.Sequential(*[Scaled(n) for _ in range(2)]) for n in (4, 8, 12, 16)])


class Scaled(Forwarding):
    def __init__(self, size):
        super().__init__()
        self.first, self.second = nn.Linear(size, size), nn.Linear(size, size)


class UNet(Forwarding):
    """Blocks of several sizes beside a small list of leaves."""

    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 4), nn.SiLU(), nn.Linear(4, 8))
        self.act = nn.ReLU()
        self.down, self.middle, self.up = Scaled(8), Scaled(16), Scaled(12)
        self.out = nn.Linear(12, 3)


class SmallBody(Forwarding):
    """Leaves before a large head, which the loss needs in the root's own work."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, 300)


def names(model):
    return [name for name, _ in find_layers(model)]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Attributes, ["block1", "block2", "block3"]),
        (Normed, ["first", "second", "head"]),
        (Experts, ["layers.0", "layers.1"]),
        (Towers, ["query.layers.0", "query.layers.1", "document.layers.0", "document.layers.1"]),
        (Recurrent, ["embed", "lstm", "head"]),
        (RecurrentStack, ["layers.0", "layers.1", "layers.2"]),
        (Convolutions, ["features.0", "features.1", "features.2", "classifier.0", "classifier.1", "classifier.2"]),
        (BlocksAndHead, ["blocks.0", "blocks.1", "blocks.2"]),
        (SmallBody, ["body.0", "body.1"]),
        (UNet, ["time", "down", "middle", "up", "out"]),
        (Stages, [f"stages.{stage}.{block}" for stage in range(4) for block in range(2)]),
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), ["0", "1", "2"]),
        (lambda: nn.ModuleList([BlocksAndHead()]), ["0.blocks.0", "0.blocks.1", "0.blocks.2"]),
        (
            lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
            ["layers.0", "layers.1"],
        ),
        (
            lambda: nn.Transformer(8, 2, 2, 2, 16, batch_first=True),
            ["encoder.layers.0", "encoder.layers.1", "decoder.layers.0", "decoder.layers.1"],
        ),
        (lambda: nn.Linear(2, 2), []),
        (lambda: nn.Sequential(), []),
    ],
)
def test_layers_of_plain_modules(model, expected):
    assert names(model()) == expected


TRANSFORMERS = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 99}, "transformer.h.{}", 3),
    "bert": ("BertForMaskedLM", TEXT, "bert.encoder.layer.{}", 3),
    "llama": ("LlamaForCausalLM", TEXT, "model.layers.{}", 3),
    "mixtral": (
        "MixtralForCausalLM",
        {**TEXT, "num_key_value_heads": 2, "num_local_experts": 4},
        "model.layers.{}",
        3,
    ),
    "vit": ("ViTForImageClassification", VISION, "vit.layers.{}", 3),
    "albert": ("AlbertForMaskedLM", {**TEXT, "embedding_size": 16}, "albert.encoder.albert_layer_groups.{}", 1),
}


def build(name, values):
    import transformers

    configuration = name.partition("For")[0].removesuffix("LMHeadModel").removesuffix("Model") + "Config"
    return getattr(transformers, name)(getattr(transformers, configuration)(**values))


@pytest.mark.parametrize("case", TRANSFORMERS)
def test_layers_of_transformers(case):
    name, values, pattern, count = TRANSFORMERS[case]
    assert names(build(name, values)) == [pattern.format(index) for index in range(count)]


def test_encoder_and_decoder_are_two_stacks():
    model = build("T5ForConditionalGeneration", {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4})
    assert names(model) == ["encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1"]


def test_stages_of_a_vision_model_are_opened():
    values = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [2, 2, 2, 2], "layer_type": "basic"}
    model = build("ResNetForImageClassification", values)
    expected = [f"resnet.encoder.stages.{stage}.layers.{block}" for stage in range(4) for block in range(2)]
    assert names(model) == expected


def test_layers_never_nest_and_none_appears_twice():
    shared = Block()
    model = nn.ModuleDict({"a": nn.ModuleList([shared, Block(), shared]), "b": nn.ModuleList([shared])})
    found = find_layers(model)
    modules = [module for _, module in found]
    assert len({id(module) for module in modules}) == len(modules) == 2
    for module in modules:
        inner = {id(child) for child in module.modules()} - {id(module)}
        assert not inner & {id(other) for other in modules}


def test_the_answer_is_the_same_every_time_and_changes_nothing():
    model = Stages()
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    first = find_layers(model)
    assert [(n, id(m)) for n, m in first] == [(n, id(m)) for n, m in find_layers(model)]
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before
    assert all(dict(model.named_modules())[name] is module for name, module in first)


def test_names_are_those_of_named_modules_in_wrapped_models():
    model = nn.Sequential(BlocksAndHead())
    modules = dict(model.named_modules())
    assert all(modules[name] is module for name, module in find_layers(model))
