"""The model's own cross entropy under a plan: it is found in any model, has torch's bits and the predicted peak, and
leaves nothing behind."""

from __future__ import annotations

import json
import os
import textwrap

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import models  # noqa: E402
import planned_steps  # noqa: E402
from models import Case, _ids, _lm  # noqa: E402

import memscale  # noqa: E402
from memscale.techniques.loss_mode import LossMode, marking  # noqa: E402
from memscale.tracing.profiler import MemoryProfiler  # noqa: E402
from memscale.tracing.tracer import LiveTracer  # noqa: E402

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def opt() -> Case:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=64,
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        word_embed_proj_dim=32,
    )
    return _lm(OPTForCausalLM(config))


def gemma2() -> Case:
    """Its logits pass through a soft cap, whose backward needs a saved tensor."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=32,
        attn_implementation="eager",
    )
    return _lm(Gemma2ForCausalLM(config))


def llama_bf16() -> Case:
    """transformers casts the BF16 logits to FP32 for the loss."""
    case = models.llama()
    return Case(case.model.bfloat16(), case.batch)


def ignoring() -> Case:
    case = models.gpt2()
    plain = case.batch

    def batch(seed):
        args, kwargs = plain(seed)
        labels = kwargs["labels"].clone()
        labels[:, ::3] = -100
        return args, {**kwargs, "labels": labels}

    return Case(case.model, batch)


def counted_items() -> Case:
    """Passes num_items_in_batch, as a Trainer does when it accumulates gradients."""
    case = models.llama()
    plain = case.batch

    def batch(seed):
        args, kwargs = plain(seed)
        return args, {**kwargs, "num_items_in_batch": torch.tensor(37)}

    return Case(case.model, batch)


def last_logits() -> Case:
    """Computes only the last tokens' logits."""
    case = models.gpt2()
    plain = case.batch

    def batch(seed):
        args, kwargs = plain(seed)
        return args, {**kwargs, "labels": kwargs["labels"][:, -5:], "logits_to_keep": 5}

    return Case(case.model, batch)


def two_heads() -> Case:
    """The model slices its logits before the loss, and has a second head."""
    from transformers import OpenAIGPTConfig, OpenAIGPTDoubleHeadsModel

    config = OpenAIGPTConfig(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32)

    def batch(seed):
        ids = _ids(seed, (2, 1, 12), 64)
        return (), {"input_ids": ids, "labels": ids, "mc_token_ids": torch.tensor([[3], [4]])}

    return Case(OpenAIGPTDoubleHeadsModel(config), batch)


def pixels() -> Case:
    """The model slices its logits, and one class occurs only as an input."""
    from transformers import ImageGPTConfig, ImageGPTForCausalImageModeling

    config = ImageGPTConfig(n_layer=2, n_embd=32, n_head=2, vocab_size=65, n_positions=32)
    return _lm(ImageGPTForCausalImageModeling(config))


class TinyEncoder(torch.nn.Module):
    """A model of no library, whose head has a bias. Subclasses compute the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, 32)
        layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.blocks = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = torch.nn.Linear(32, 64)

    def logits(self, input_ids):
        return self.head(self.blocks(self.embed(input_ids)))


class OwnLoss(TinyEncoder):
    """Creates its loss module in forward, with label smoothing."""

    def forward(self, input_ids, labels):
        return torch.nn.CrossEntropyLoss(label_smoothing=0.1)(self.logits(input_ids).flatten(0, 1), labels.flatten())


def own_loss() -> Case:
    return _lm(OwnLoss())


CASES = {
    "gpt2": models.gpt2, "gpt2_padded_eager": models.gpt2_padded_eager, "gpt2_autocast": models.gpt2_autocast,
    "bert": models.bert, "llama": models.llama, "mixtral": models.mixtral, "t5": models.t5, "opt": opt,
    "gemma2": gemma2, "llama_bf16": llama_bf16, "ignoring": ignoring, "counted_items": counted_items,
    "own_loss": own_loss, "last_logits": last_logits, "two_heads": two_heads, "pixels": pixels,
}  # fmt: skip


def forward(case, seed=5):
    torch.manual_seed(seed)
    args, kwargs = case.batch(seed)
    if case.autocast is not None:
        with torch.autocast("cpu", case.autocast):
            return case.model(*args, **kwargs)
    return case.model(*args, **kwargs)


def gradients(case, hold):
    """Loss, gradients and names of the graph's nodes. `hold`: whether backward runs with the output held."""
    output = forward(case)
    loss = output if isinstance(output, torch.Tensor) else output.loss
    nodes = graph_nodes(loss)
    if not hold:
        del output
    loss.backward()
    found = {name: p.grad.clone() for name, p in case.model.named_parameters() if p.grad is not None}
    case.model.zero_grad()
    return loss.detach().clone(), found, nodes


def graph_nodes(loss):
    names, waiting, seen = set(), [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            names.add(type(node).__name__)
            waiting.extend(inner for inner, _ in node.next_functions)
    return names


def modes():
    return list(torch.overrides._get_current_function_mode_stack())


# ---- bits -------------------------------------------------------------------------------------


# Without offloading, because a plan for the smallest peak could move torch's buffers to disk.
FORCED = memscale.Config(force_optimize=True, enable_offloading=False, enable_logging=False)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_have_the_bits_of_the_unwrapped_run(name):
    torch.manual_seed(0)
    case = CASES[name]()
    loss, expected, _ = gradients(case, hold=False)
    memscale.wrap(case.model, FORCED)
    for hold in (False, True):
        our_loss, ours, nodes = gradients(case, hold)
        assert torch.equal(loss, our_loss)
        assert ours.keys() == expected.keys()
        assert all(torch.equal(ours[key], expected[key]) for key in expected)
        assert case.model._memscale_executor.plan.step_options["exact_loss_head"]["chosen"]
        assert "_RowsBackward" in nodes
        assert modes() == []
    memscale.detach(case.model)
    _, _, nodes = gradients(case, hold=False)
    assert "_RowsBackward" not in nodes and modes() == []


def test_a_loop_that_computes_its_own_loss_is_left_alone():
    case = models.gpt2()
    memscale.wrap(case.model, FORCED)
    ids = _ids(1, (2, 12), 64)
    logits = case.model(input_ids=ids).logits
    assert "_RowsBackward" not in graph_nodes(F.cross_entropy(logits.flatten(0, 1), ids.flatten()))
    plan = case.model._memscale_executor.plan
    assert plan.step_options["exact_loss_head"]["rule"] == "no_loss_head"
    memscale.detach(case.model)


def test_a_plan_says_what_a_loop_with_its_own_loss_can_do():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=40000
    )
    ids = torch.zeros((2, 512), dtype=torch.long)
    plan = memscale.plan(LlamaForCausalLM(config), {"input_ids": ids}, FORCED)
    assert plan.step_options["exact_loss_head"]["rule"] == "loss_outside"
    assert "memscale.techniques.cross_entropy" in str(plan)


def test_a_comfortable_fit_leaves_the_loss_to_torch():
    case = models.gpt2()
    memscale.wrap(case.model, memscale.Config(enable_logging=False))
    _, _, nodes = gradients(case, hold=False)
    assert "_RowsBackward" not in nodes
    memscale.detach(case.model)


class LossInALayer(torch.nn.Module):
    """A block that adds a term to the loss, as in deeply supervised models."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(32, 32)

    def forward(self, x, labels):
        y = torch.relu(self.linear(x))
        return y, F.cross_entropy(y.flatten(0, 1), labels.flatten())


class Supervised(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(32, 32)
        self.layers = torch.nn.ModuleList(LossInALayer() for _ in range(3))
        self.head = torch.nn.Linear(32, 32)

    def forward(self, input_ids, labels):
        x = self.embed(input_ids)
        total = 0.0
        for layer in self.layers:
            x, loss = layer(x, labels)
            total = total + loss
        return total + F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def test_a_loss_inside_a_recomputed_layer_is_torchs():
    torch.manual_seed(0)
    case = _lm(Supervised(), vocabulary=32)
    loss, expected, _ = gradients(case, hold=False)
    memscale.wrap(case.model, FORCED)
    our_loss, ours, nodes = gradients(case, hold=False)
    assert case.model._memscale_executor.plan.techniques.get("recompute")
    assert torch.equal(loss, our_loss) and all(torch.equal(ours[key], expected[key]) for key in expected)
    assert {"_RowsBackward", "NllLossBackward0"} <= nodes
    memscale.detach(case.model)


# ---- nothing left behind --------------------------------------------------------------------------


def test_no_mode_is_left_by_a_forward_that_fails():
    case = models.gpt2()
    memscale.wrap(case.model, FORCED)
    forward(case)
    with pytest.raises((IndexError, RuntimeError)):
        case.model(input_ids=torch.full((2, 12), 99), labels=torch.zeros((2, 12), dtype=torch.long))
    assert modes() == []
    _, _, nodes = gradients(case, hold=False)
    assert "_RowsBackward" in nodes
    memscale.detach(case.model)


class Interrupted(torch.nn.Module):
    """Its forward raises KeyboardInterrupt, after which torch doesn't run hooks with always_call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = OwnLoss()
        self.strikes = False

    def forward(self, input_ids, labels):
        loss = self.inner(input_ids, labels)
        if self.strikes:
            raise KeyboardInterrupt
        return loss


def test_a_mode_left_by_an_interrupt_ends_with_the_next_forward_or_detach():
    case = _lm(Interrupted())
    memscale.wrap(case.model, FORCED)
    forward(case)
    for way_out in (lambda: forward(case), lambda: memscale.detach(case.model)):
        case.model.strikes = True
        with pytest.raises(KeyboardInterrupt):
            forward(case)
        case.model.strikes = False
        way_out()
        assert modes() == []


def test_other_modes_stay_in_force():
    seen = []

    class Other(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    inner, ours = Other(), LossMode(lambda found: found.call())
    ours.start()
    inner.__enter__()
    ours.stop()
    ours.stop()
    assert modes() == [inner]
    torch.zeros(2).sum()
    assert seen
    inner.__exit__(None, None, None)
    assert modes() == []


class ModesInside(torch.nn.Module):
    """Notes the modes that are on inside its layers and between them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = OwnLoss()
        self.inside, self.between = [], []
        for layer in self.inner.blocks.layers:
            layer.norm1.register_forward_hook(lambda *_: self.inside.append(modes()))

    def forward(self, input_ids, labels):
        loss = self.inner(input_ids, labels)
        self.between.append(modes())
        return loss


def test_the_mode_pauses_in_layers():
    case = _lm(ModesInside())
    memscale.wrap(case.model, FORCED)
    _, _, nodes = gradients(case, hold=False)
    assert "_RowsBackward" in nodes
    assert case.model.inside and not any(isinstance(mode, LossMode) for mode in case.model.inside[-1])
    assert [type(mode) for mode in case.model.between[-1]] == [LossMode]
    memscale.detach(case.model)


def test_modes_that_begin_in_a_pause_stay_inside():
    class Other(torch.overrides.TorchFunctionMode):
        pass

    inner, ours = Other(), LossMode(lambda found: found.call())
    ours.resume()
    assert modes() == []
    ours.start()
    ours.pause()
    ours.pause()
    assert modes() == []
    inner.__enter__()
    ours.resume()
    ours.resume()
    assert modes() == [ours, inner]
    ours.pause()  # not the innermost: it stays
    assert modes() == [ours, inner]
    inner.__exit__(None, None, None)
    ours.pause()
    ours.stop()
    ours.resume()
    assert modes() == []


@pytest.mark.parametrize(
    ("logits", "labels", "options"),
    [
        ((4, 6), torch.tensor([0, 1, 2, 5]), {"weight": torch.ones(6)}),
        ((4, 6), torch.full((4, 6), 1 / 6), {}),
        ((2, 6, 3), torch.zeros((2, 3), dtype=torch.long), {}),
        ((6,), torch.tensor(3), {}),
        ((4, 6), torch.tensor([0, 1, 2, 5]), {"size_average": False}),
    ],
    ids=["weights", "probabilities", "more dimensions", "one row", "legacy"],
)
def test_other_cross_entropies_are_torchs(logits, labels, options):
    asked = []
    mode = LossMode(lambda found: asked.append(found) or found.call())
    x = torch.randn(logits, requires_grad=True)
    mode.start()
    F.cross_entropy(x, labels, **options).sum()
    with torch.no_grad():
        F.cross_entropy(torch.randn(4, 6, requires_grad=True), torch.tensor([0, 1, 2, 5]))
    assert asked == []
    F.cross_entropy(torch.randn(4, 6, requires_grad=True), torch.tensor([0, 1, 2, 5]))
    assert len(asked) == 1
    mode.stop()


# ---- marks and predictions -------------------------------------------------------------------------------


def test_the_graph_marks_the_models_cross_entropy():
    case = models.gpt2()
    args, kwargs = case.batch(0)
    graph = json.loads(MemoryProfiler().trace(case.model, args, kwargs))
    tail = graph["profiles"][graph["nodes"][-1]["profile"]]
    for program in ("forward", "backward"):
        kinds = [event[0] for event in tail[program]]
        assert kinds.count("loss") == kinds.count("loss_end") == 1
        assert kinds.index("loss") < kinds.index("loss_end")
    logits = next(event[1] for event in tail["forward"] if event[0] == "loss")
    gradient = next(event[1] for event in tail["backward"] if event[0] == "loss_end")
    assert tail["storage_bytes"][logits] == tail["storage_bytes"][gradient] == 2 * 12 * 64 * 4
    without = json.loads(MemoryProfiler().trace(case.model, args, {"input_ids": kwargs["input_ids"]}))
    assert all(event[0] != "loss" for p in without["profiles"] for event in p["forward"])


def test_a_real_step_is_marked_as_a_traced_one():
    torch.manual_seed(0)
    logits = (torch.randn(8, 16, requires_grad=True) * 2).exp()
    tracer = LiveTracer("Net", "", "empirical")
    mode = marking(tracer)
    tracer.start()
    mode.start()
    loss = F.cross_entropy(logits * 3, torch.arange(8))
    mode.stop()
    tracer.phase("loss")
    tracer.phase("backward")
    loss.backward()
    tracer.phase("done")
    tracer.stop()
    graph = json.loads(tracer.finish())
    (profile,) = graph["profiles"]
    for program in ("forward", "backward"):
        assert [event[0] for event in profile[program] if event[0].startswith("loss")] == ["loss", "loss_end"]


# The model's logits are almost its only tensors with maps of their own.
_MEASURE = textwrap.dedent(
    """
    import planned_steps
    planned_steps.start()
    import torch, transformers, memscale
    x = torch.randint(0, 40000, (4, 128))
    config = memscale.Config(force_optimize=True, enable_logging=False)
    for dtype in (torch.float32, torch.bfloat16):
        for hold in (False, True):
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
                hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=40000,
                tie_word_embeddings=True,
            )).to(dtype)
            for options in ((), ("exact_loss_head",)):
                print(*planned_steps.compare(model, x, config, options=options, hold=hold), flush=True)
            del model
    """
)


def test_the_peak_is_predicted_with_the_head_and_without():
    rows = planned_steps.rows_of(_MEASURE)
    assert len(rows) == 8
    for predicted, measured in rows:
        assert predicted == pytest.approx(measured, rel=0.03), rows
    logits = 512 * 40000 * 4
    for without, with_head in zip(rows[::2], rows[1::2], strict=True):
        assert without[-1] - with_head[-1] > 1.45 * logits, rows
