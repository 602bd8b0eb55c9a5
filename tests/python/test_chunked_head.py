"""The chunked loss head of a wrapped model: loss and gradients equal up to rounding, logits on request,
and never a buffer of tokens x vocabulary."""

from __future__ import annotations

import copy
import io
import json
import textwrap

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import models  # noqa: E402
import planned_steps  # noqa: E402
import test_loss_mode as heads  # noqa: E402

import memscale  # noqa: E402
from memscale import _core  # noqa: E402
from memscale.execution.executor import Executor  # noqa: E402
from memscale.session.machine import probe_machine  # noqa: E402
from memscale.techniques.lazy_logits import LazyLogits, deferred, with_values  # noqa: E402
from memscale.tracing.profiler import MemoryProfiler  # noqa: E402


class Plain(heads.TinyEncoder):
    """Casts and reshapes its logits before the loss."""

    def forward(self, input_ids, labels):
        logits = self.logits(input_ids).to(torch.float32)
        return F.cross_entropy(logits.reshape(-1, 64), labels.view(-1), label_smoothing=0.1)


CASES = {
    "gpt2": models.gpt2, "gpt2_padded_eager": models.gpt2_padded_eager, "gpt2_autocast": models.gpt2_autocast,
    "bert": models.bert, "llama": models.llama, "mixtral": models.mixtral, "opt": heads.opt,
    "llama_bf16": heads.llama_bf16, "ignoring": heads.ignoring, "counted_items": heads.counted_items,
    "own_loss": heads.own_loss, "plain": lambda: models._lm(Plain()),
}  # fmt: skip

CONFIG = memscale.Config(force_optimize=True, enable_tiling=True, enable_logging=False)


def planned(case, chosen=True):
    """A plan that keeps everything, with or without the chunked head. It is made by hand because the models are too
    small for the planner to choose the head."""
    args, kwargs = case.batch(0)
    with torch.autocast("cpu", case.autocast, enabled=case.autocast is not None):
        graph = MemoryProfiler().trace(case.model, args, kwargs)
    machine = probe_machine(CONFIG)
    plan = json.loads(_core.plan_uniform(graph, machine, CONFIG.to_json(), "keep"))
    for option in plan["step_options"]:
        option["chosen"] = chosen and option["name"] == "chunked_loss_head"
    return json.dumps(plan)


class Chunked:
    """Runs a model under a plan of `planned`."""

    def __init__(self, case) -> None:
        self.executor = Executor(case.model)
        self.plan = planned(case)

    def __enter__(self):
        self.executor.attach()
        self.executor.apply(self.plan)
        return self.executor

    def __exit__(self, *_) -> None:
        self.executor.detach()


def assert_close(expected, seen, dtype=torch.float32):
    tolerance = 5e-2 if dtype is torch.bfloat16 else 1e-5
    assert expected.keys() == seen.keys()
    for name, value in expected.items():
        scale = value.float().abs().max().item() + 1e-3  # some are zero but for rounding
        assert (value.float() - seen[name].float()).abs().max().item() <= tolerance * scale, name


# ---- loss and gradients ------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_agree_but_for_rounding(name):
    torch.manual_seed(0)
    case = CASES[name]()
    loss, expected, _ = heads.gradients(case, hold=False)
    with Chunked(case):
        for hold in (False, True):
            ours, found, nodes = heads.gradients(case, hold)
            assert "_ChunksBackward" in nodes and not {"NllLossBackward0", "_RowsBackward"} & nodes
            assert ours.dtype == loss.dtype
            low = case.autocast is not None or name.endswith("bf16")
            assert abs(ours.item() - loss.item()) <= (1e-3 if low else 1e-6) * abs(loss.item())
            assert_close(expected, found, torch.bfloat16 if low else torch.float32)
            assert heads.modes() == []
    again, bits, nodes = heads.gradients(case, hold=False)
    assert torch.equal(loss, again) and all(torch.equal(expected[key], bits[key]) for key in expected)
    assert "_ChunksBackward" not in nodes


def test_logits_that_are_changed_on_the_way_to_the_loss_are_computed():
    """The planner refuses the head for logits with a soft cap; a plan that chooses it anyway gives torch's bits."""
    torch.manual_seed(0)
    case = heads.gemma2()
    loss, expected, _ = heads.gradients(case, hold=False)
    args, kwargs = case.batch(0)
    plan = memscale.plan(case.model, kwargs, config=CONFIG)
    assert plan.step_options["chunked_loss_head"]["rule"] == "no_plain_head"
    with Chunked(case):
        ours, found, nodes = heads.gradients(case, hold=False)
    assert torch.equal(loss, ours) and all(torch.equal(expected[key], found[key]) for key in expected)
    assert "_RowsBackward" in nodes and "_ChunksBackward" not in nodes


def test_wrong_labels_are_refused_and_nothing_is_left():
    case = models.gpt2()
    with Chunked(case):
        with pytest.raises(IndexError):
            case.model(input_ids=torch.zeros((2, 12), dtype=torch.long), labels=torch.full((2, 12), 99))
        assert heads.modes() == []
        _, _, nodes = heads.gradients(case, hold=False)
        assert "_ChunksBackward" in nodes


def test_evaluation_has_plain_logits():
    case = models.gpt2()
    with Chunked(case), torch.no_grad():
        output = heads.forward(case)
    assert type(output.logits) is torch.Tensor


def test_gradients_are_added_to_those_that_are_there():
    case = models.gpt2()
    case.model.eval()
    expected = {}
    for _ in range(2):
        heads.forward(case).loss.backward()
    expected = {name: p.grad.clone() for name, p in case.model.named_parameters()}
    case.model.zero_grad()
    with Chunked(case):
        for _ in range(2):
            heads.forward(case).loss.backward()
    assert_close(expected, {name: p.grad for name, p in case.model.named_parameters()})


# ---- logits that the caller reads -----------------------------------------------------------


def looked_at(look):
    """The result of `look` on the output's logits, and the gradients of its sum plus the loss: first without memscale,
    then with the chunked head."""
    results = []
    for chunked in (False, True):
        torch.manual_seed(0)
        case = models.gpt2()
        case.model.eval()
        plan = Chunked(case)
        if chunked:
            plan.__enter__()
        output = heads.forward(case)
        assert (type(output.logits) is LazyLogits) == chunked
        seen = look(output.logits)
        (output.loss + seen.float().sum() if seen.requires_grad else output.loss).backward()
        if chunked:
            plan.__exit__()
        results.append((seen.detach(), {name: p.grad for name, p in case.model.named_parameters()}))
    return results


class Squared(torch.autograd.Function):
    """A user's function: autograd passes it the lazy tensor itself."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


LOOKS = {
    "sum": lambda x: x.sum(), "index": lambda x: x[0, 1:], "shifted": lambda x: x[..., :-1, :].contiguous(),
    "operator": lambda x: x * 2 + 1, "softmax": lambda x: torch.softmax(x, -1), "cast": lambda x: x.double(),
    "view": lambda x: x.view(-1, 64).float().argmax(-1), "detach": lambda x: x.detach(), "clone": torch.clone,
    "stack": lambda x: torch.stack([x, x]), "einsum": lambda x: torch.einsum("bsv,bsv->bs", x, x),
    "numpy": lambda x: torch.from_numpy(x.detach().numpy()), "copy": lambda x: copy.deepcopy(x.detach()),
    "out": lambda x: torch.add(torch.ones(x.shape), x.detach(), out=torch.empty(0)),
    "in_place": lambda x: x.mul_(2), "list": lambda x: torch.tensor(x.tolist()), "own": Squared.apply,
    "own_of_view": lambda x: Squared.apply(x.view(-1, 64)), "topk": lambda x: x.topk(3).values,
    "transposed": lambda x: x.transpose(1, 2), "flat": lambda x: x.view(-1), "iterated": lambda x: next(iter(x)),
    "kept_by_name": lambda x: F.log_softmax(input=x, dim=-1),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKS)
def test_any_use_of_the_logits_computes_them(name):
    (expected, gradients), (seen, ours) = looked_at(LOOKS[name])
    assert type(seen) is torch.Tensor
    assert torch.equal(expected, seen)
    assert_close(gradients, ours)


def test_what_is_asked_for_free_computes_nothing():
    case = models.gpt2()
    with Chunked(case):
        logits = heads.forward(case).logits
    assert logits.shape == (2, 12, 64) and logits.size(-1) == 64 and logits.dim() == 3 and len(logits) == 2
    assert logits.dtype is torch.float32 and logits.device.type == "cpu" and logits.requires_grad
    assert logits.numel() == 1536 and logits.is_floating_point() and logits.stride() == (768, 64, 1)
    assert logits.float() is logits and logits.contiguous() is logits and logits.to("cpu") is logits
    assert type(logits.view(-1, 64)) is LazyLogits and not logits.product.is_made
    assert logits.grad_fn is not None and logits.product.is_made


def test_the_logits_are_one_tensor_for_all_that_look():
    case = models.gpt2()
    with Chunked(case):
        output = heads.forward(case)
    flat = output.logits.view(-1, 64)
    with torch.no_grad():
        output.logits.zero_()
    assert not flat.any() and not output["logits"].any()


def test_logits_of_changed_weights_are_refused():
    case = models.gpt2()
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    with Chunked(case):
        output = heads.forward(case)
        output.loss.backward()
        optimizer.step()
        with pytest.raises(memscale.IntegrationError, match="before optimizer.step"):
            output.logits.sum()


def test_logits_can_be_saved():
    case = models.gpt2()
    with Chunked(case):
        output = heads.forward(case)
    file = io.BytesIO()
    torch.save(output.logits.detach(), file)
    file.seek(0)
    assert torch.equal(torch.load(file), with_values(output.logits))


def test_the_stand_in_has_the_layers_gradient():
    torch.manual_seed(0)
    operands = [torch.randn(3, 5, 4, requires_grad=True), torch.randn(7, 4, requires_grad=True)]
    F.linear(*operands).pow(3).sum().backward()
    expected = [value.grad for value in operands]
    for value in operands:
        value.grad = None
    lazy = deferred(_operands(operands))
    Squared.apply(lazy).mul(F.linear(*operands)).sum().backward()
    assert all(torch.allclose(a, value.grad, rtol=1e-5) for a, value in zip(expected, operands, strict=True))


def _operands(values):
    from memscale.techniques.lazy_logits import Operands

    return Operands(*values, None)


# ---- plans ---------------------------------------------------------------------------------------


def wide():
    """A model whose logits are its largest tensors, far larger than a chunk."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=40000,
        tie_word_embeddings=True,
    )
    return models._lm(LlamaForCausalLM(config), vocabulary=40000)


def long_batch():
    ids = torch.randint(0, 40000, (2, 512), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids}


def test_a_wrapped_model_uses_it_where_it_is_asked_for_and_needed():
    torch.manual_seed(0)
    case = wide()
    batch = long_batch()
    loss = case.model(**batch).loss
    for tiling in (False, True):
        config = memscale.Config(
            force_optimize=True,
            enable_tiling=tiling,
            enable_logging=False,
            enable_offloading=False,
            verify_correctness=True,
        )
        memscale.wrap(case.model, config, sample_input=batch)
        output = case.model(**batch)
        options = case.model._memscale_executor.plan.step_options
        assert options["chunked_loss_head"]["chosen"] == tiling and options["exact_loss_head"]["chosen"] != tiling
        assert options["chunked_loss_head"]["exactness"] == "rounding"
        assert type(output.logits) is (LazyLogits if tiling else torch.Tensor)
        assert ("_ChunksBackward" in heads.graph_nodes(output.loss)) == tiling
        assert output.loss.item() == pytest.approx(loss.item(), rel=1e-6)
        memscale.detach(case.model)
    plain = memscale.Config(enable_tiling=True, enable_logging=False)
    plan = memscale.plan(case.model, batch, config=plain)
    assert plan.skipped and not plan.step_options["chunked_loss_head"]["chosen"]


def test_the_graph_marks_the_layer_that_makes_the_logits():
    case = models.gpt2()
    args, kwargs = case.batch(0)
    graph = json.loads(MemoryProfiler().trace(case.model, args, kwargs))
    tail = graph["profiles"][graph["nodes"][-1]["profile"]]
    marks = [event for event in tail["forward"] if event[0] in ("head", "loss", "loss_end", "head_end")]
    assert [event[0] for event in marks] == ["head", "loss", "loss_end"]
    assert marks[0][1] == marks[1][1]
    back = [event for event in tail["backward"] if event[0] in ("head", "loss", "loss_end", "head_end")]
    assert [event[0] for event in back] == ["loss", "loss_end", "head", "head_end"]
    assert tail["storage_bytes"][back[3][1]] == 2 * 12 * 32 * 4
    gemma = heads.gemma2()
    args, kwargs = gemma.batch(0)
    graph = json.loads(MemoryProfiler().trace(gemma.model, args, kwargs))
    assert all(event[0] != "head" for p in graph["profiles"] for event in p["forward"] + p["backward"])


_MEASURE = textwrap.dedent(
    """
    import planned_steps
    planned_steps.start()
    import contextlib, torch, transformers, memscale
    x = torch.randint(0, 40000, (4, 384))
    config = memscale.Config(force_optimize=True, enable_tiling=True, enable_logging=False)
    for dtype, autocast in ((torch.float32, False), (torch.bfloat16, False), (torch.float32, True)):
        for hold in (False, True):
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
                hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=40000,
                tie_word_embeddings=True,
            )).to(dtype)
            print(*planned_steps.compare(
                model, x, config, options=("chunked_loss_head",), hold=hold,
                precision=torch.autocast("cpu", torch.bfloat16, enabled=autocast),
            ), flush=True)
            del model
    """
)


def test_tokens_by_vocabulary_are_never_in_memory_and_the_peak_is_predicted():
    rows = planned_steps.rows_of(_MEASURE)
    assert len(rows) == 6
    logits = 4 * 384 * 40000 * 4
    for predicted, measured in rows:
        assert measured < 0.4 * logits, rows
        assert predicted == pytest.approx(measured, rel=0.03), rows
