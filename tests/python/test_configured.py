"""Models of a configuration have the weights, the ties and the step of real ones, and no memory for their weights."""

import json
import pathlib
import subprocess
import sys

import pytest
import torch

import memscale
from memscale.autotuning.configured import OPTIMIZERS, model_of, optimizer_of, sample_of
from memscale.errors import IntegrationError

transformers = pytest.importorskip("transformers")

TOKENS = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = {**TOKENS, "intermediate_size": 96, "num_key_value_heads": 2, "max_position_embeddings": 64}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 128}
HALVES = {f"{half}_{part}": n for half in ("encoder", "decoder") for part, n in (("layers", 2), ("attention_heads", 4))}
WIDTHS = {"d_model": 64, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 128}
WHISPER = {**WIDTHS, **HALVES, "max_source_positions": 50, "max_target_positions": 32, "pad_token_id": 0}

# Configuration class, its members, the class of the model, the sequence.
FAMILIES = {
    "mixtral": ("MixtralConfig", {**DECODER, "num_local_experts": 4}, "MixtralForCausalLM", 16),
    "gemma2_tied": ("Gemma2Config", {**DECODER, "head_dim": 16}, "Gemma2ForCausalLM", 16),
    "t5": ("T5Config", {**T5, "decoder_start_token_id": 0}, "T5ForConditionalGeneration", 16),
    "roberta": ("RobertaConfig", {**TOKENS, "intermediate_size": 96}, "RobertaForMaskedLM", 16),
    "whisper": (
        "WhisperConfig",
        {**WHISPER, "decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2},
        "WhisperForConditionalGeneration",
        16,
    ),
    "vit": (
        "ViTConfig",
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8},
        "ViTForImageClassification",
        None,
    ),
}


def _config(family: str):
    name, members, _, _ = FAMILIES[family]
    return getattr(transformers, name)(**members)


def _predict(*words: str) -> subprocess.CompletedProcess:
    program = pathlib.Path(sys.executable).parent / "memscale"
    return subprocess.run([program, "predict", *words], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_a_configuration_has_the_step_of_the_real_one(family: str) -> None:
    *_, name, sequence = FAMILIES[family]
    made = model_of(_config(family))
    real = getattr(transformers, name)(_config(family)).train()
    assert type(made) is type(real)
    assert [(n, p.shape) for n, p in made.named_parameters()] == [(n, p.shape) for n, p in real.named_parameters()]
    graphs = [memscale.trace(model, sample_of(model, 2, sequence)).to_json() for model in (made, real)]
    assert graphs[0] == graphs[1]


def test_the_program_traces_what_c_does_not_model(tmp_path: pathlib.Path) -> None:
    config = _config("mixtral")
    config.save_pretrained(tmp_path)
    words = ["--hf", str(tmp_path / "config.json"), "--batch", "2", "--seq", "16", "--graph"]
    done = _predict(*words, "--dtype", "bfloat16", "--optimizer", "sgd-momentum")
    assert (done.returncode, done.stderr) == (0, "")
    real = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
    momentum = torch.optim.SGD(real.parameters(), lr=0.1, momentum=0.9)
    expected = memscale.trace(real, sample_of(real, 2, 16), optimizer=momentum)
    assert json.loads(done.stdout) == json.loads(expected.to_json())


def test_the_program_counts_only_adapters_as_trained(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("peft")
    _config("gemma2_tied").save_pretrained(tmp_path)
    words = ["--hf", str(tmp_path / "config.json"), "--batch", "2", "--seq", "16", "--json"]
    whole, adapted = (json.loads(_predict(*words, *more).stdout) for more in ([], ["--lora", "4"]))
    model = model_of(_config("gemma2_tied"), lora_rank=4)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert 0 < adapted["optimizer_state_bytes"] - 8 * trained < 4096  # and a step count for each
    assert adapted["parameter_bytes"] == whole["parameter_bytes"] + 4 * trained
    assert adapted["need_bytes"] < whole["need_bytes"]


def test_the_program_plans_state_in_a_hosts_memory_or_on_disk_for_a_card(tmp_path: pathlib.Path) -> None:
    wide = {"vocab_size": 16384, "n_embd": 1024, "n_layer": 8, "n_head": 8, "n_positions": 256}
    transformers.GPT2Config(**wide).save_pretrained(tmp_path)
    step = ["--hf", str(tmp_path / "config.json"), "--batch", "2", "--seq", "128", "--dtype", "bfloat16"]
    card = [*step, "--optimizer", "memscale-adamw", "--hardware", "rtx-4090"]
    words = [*card, "--mode", "aggressive"]
    budget = ["--budget", "450MB"]
    told = json.loads(_predict(*words, *budget, "--host-memory", "64GB", "--json").stdout)
    plan = told["plan"]
    chosen = {option["name"] for option in plan["step_options"] if option["chosen"]}
    assert {"state_on_host", "gradient_release"} <= chosen
    assert told["optimizer_state_bytes"] > 450e6
    assert plan["predicted"]["peak_bytes"] <= 450e6
    line = _predict(*words, *budget, "--host-memory", "64GB").stdout.splitlines()[-1]
    assert "memscale.apply_all_optimizations(model, optimizer, " in line
    assert 'memscale.Config(memory_budget_gb=0.45, mode="aggressive"))' in line
    assert line.endswith('# optimizer = memscale.optim.AdamW(..., bf16="split")')
    small = json.loads(_predict(*words, *budget, "--host-memory", "100MB", "--json").stdout)["plan"]
    chosen = {option["name"] for option in small["step_options"] if option["chosen"]}
    assert {"state_on_disk", "gradient_release"} <= chosen and "state_on_host" not in chosen
    assert small["predicted"]["peak_bytes"] <= 450e6
    without = _predict(*card, "--mode", "conservative", *budget, "--host-memory", "100MB")
    assert without.returncode == 1
    assert "no plan fits" in without.stderr


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_an_optimizer_is_that_of_a_real_step(name: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Linear(200, 30))
    optimizer = optimizer_of(model, name)
    graph = json.loads(memscale.trace(model, torch.ones(4, 300), optimizer=optimizer).to_json())
    model(torch.ones(4, 300)).sum().backward()
    optimizer.step()
    tensors = [v for values in optimizer.state.values() for v in values.values() if isinstance(v, torch.Tensor)]
    real = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    assert abs(graph["loop"]["optimizer_state_bytes"] - real) <= 8 * len(tensors)  # counts of steps are numbers


def test_a_model_without_known_input_is_named() -> None:
    with pytest.raises(IntegrationError, match="Linear takes neither"):
        sample_of(torch.nn.Linear(2, 2), 1, 1)


@pytest.mark.parametrize(
    ("config", "words", "heard"),
    [
        ({"model_type": "no_such_family"}, ["--seq", "8"], "no_such_family"),
        ({"model_type": "mamba", "hidden_size": "wide"}, ["--seq", "8"], "hidden_size"),
        ({"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 2, "vocab_size": 9}, [], "--seq"),
        ({"model_type": "mamba"}, ["--seq", "8", "--optimizer", "lion"], "--optimizer: invalid choice: 'lion'"),
        ({"model_type": "mamba"}, ["--seq", "8", "--dtype", "int8"], "--dtype: invalid choice: 'int8'"),
    ],
)
def test_what_no_trace_answers_is_told_in_one_line(
    tmp_path: pathlib.Path, config: dict, words: list[str], heard: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = _predict("--hf", str(tmp_path / "config.json"), "--batch", "1", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert heard in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def _decoder_in(folder: pathlib.Path) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **DECODER}), encoding="utf-8")
    return str(path)


def test_compiled_layers_are_measured(tmp_path: pathlib.Path) -> None:
    asked = ("--hf", _decoder_in(tmp_path), "--batch", "16", "--seq", "64", "--graph")
    graphs = [json.loads(_predict(*asked, *more).stdout) for more in ((), ("--compile", "aot_eager"))]
    written, compiled = ([n for n in graph["nodes"] if n["kind"] == "layer"] for graph in graphs)
    assert [n["name"] for n in compiled] == [n["name"] for n in written] and len(compiled) == 2
    assert all({"compiled", "measured"} <= set(n["flags"]) for n in compiled)
    assert all(min(graphs[1]["profiles"][n["profile"]]["measured_ns"]) > 0 for n in compiled)
    assert graphs[0]["residents"]["parameter_bytes"] == graphs[1]["residents"]["parameter_bytes"]


def test_what_can_not_be_compiled_is_named(tmp_path: pathlib.Path) -> None:
    done = _predict("--hf", _decoder_in(tmp_path), "--batch", "1", "--seq", "8", "--compile", "fast")
    assert done.returncode != 0 and "--compile fast: torch has" in done.stderr
