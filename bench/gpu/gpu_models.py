"""The models of the measurements: random weights, random tokens, configurations of Hugging Face."""

from __future__ import annotations

from typing import Any

# In the order in which they are measured; the last ones are left out if the time is over.
NAMES = (
    "gpt2",
    "bert",
    "llama",
    "vit",
    "t5",
    "mistral",
    "qwen2",
    "roberta",
    "gpt_neox",
    "bart",
    "distilbert",
    "resnet",
)
LARGE = "gpt2-large"  # the model of the goal for offload's step time
# Full fine-tuning on a small card; measured only if named. Unmodified, XL takes 53 GB, the Llama (fp32 state) 113 GB.
LARGEST = "gpt2-xl"
BF16 = "llama-3-8b"
LARGE_LEAST_BYTES = 60 << 30  # of GPU memory, for LARGE; smaller GPUs get GPT-2 Medium
# The layers and batches of small models. Every plan reserves 25 MB for a step's workspaces. If a model had fewer layers
# or tokens, no plan would fit a share of its unmodified peak.
SMALL_LAYERS, SMALL_SHAPE, SMALL_PICTURES = 6, (16, 128), 8


def _text(is_small: bool, rows: int = 8, length: int = 512) -> dict[str, Any]:
    import torch

    shape = SMALL_SHAPE if is_small else (rows, length)
    tokens = torch.randint(0, 250, shape, device="cuda")
    return {"input_ids": tokens, "labels": tokens}


def _pictures(is_small: bool) -> dict[str, Any]:
    import torch

    rows = SMALL_PICTURES if is_small else 32
    return {
        "pixel_values": torch.randn(rows, 3, 224, 224, device="cuda"),
        "labels": torch.randint(0, 10, (rows,), device="cuda"),
    }


def _gpt2(tf: Any, is_small: bool, **sizes: int) -> Any:
    small = {"n_embd": 64, "n_layer": SMALL_LAYERS, "n_head": 2, "vocab_size": 256}
    return tf.GPT2LMHeadModel(tf.GPT2Config(bos_token_id=0, eos_token_id=0, **(small if is_small else sizes)))


def _encoder(tf: Any, name: str, is_small: bool, positions: int = 512) -> Any:
    small = {"hidden_size": 64, "num_hidden_layers": SMALL_LAYERS, "num_attention_heads": 2, "intermediate_size": 128}
    return getattr(tf, f"{name}ForMaskedLM")(
        getattr(tf, f"{name}Config")(max_position_embeddings=positions, **(small if is_small else {}))
    )


def _decoder(tf: Any, name: str, is_small: bool, **more: int) -> Any:
    sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12}
    if is_small:
        sizes = {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": SMALL_LAYERS,
            "num_attention_heads": 4,
        }
    config = getattr(tf, f"{name}Config")(vocab_size=256 if is_small else 32000, **sizes, **more)
    return getattr(tf, f"{name}ForCausalLM")(config)


def _llama_3(tf: Any, is_small: bool) -> Any:
    """Llama-3 8B in bf16."""
    import torch

    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # fp32 weights would take 32 GB
    try:
        if is_small:
            return _decoder(tf, "Llama", is_small)
        config = tf.LlamaConfig(vocab_size=128256, num_key_value_heads=8, max_position_embeddings=8192, **sizes)
        return tf.LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)


def _t5(tf: Any, is_small: bool) -> Any:
    small = {"d_model": 64, "d_ff": 128, "num_layers": SMALL_LAYERS, "num_heads": 2, "vocab_size": 256, "d_kv": 32}
    return tf.T5ForConditionalGeneration(tf.T5Config(decoder_start_token_id=0, **(small if is_small else {})))


def _bart(tf: Any, is_small: bool) -> Any:
    sizes = {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6}
    if is_small:
        sizes = {"d_model": 64, "encoder_layers": SMALL_LAYERS, "decoder_layers": SMALL_LAYERS, "vocab_size": 256}
        sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    return tf.BartForConditionalGeneration(tf.BartConfig(**sizes))


def _vit(tf: Any, is_small: bool) -> Any:
    small = {"hidden_size": 64, "num_hidden_layers": SMALL_LAYERS, "num_attention_heads": 2, "intermediate_size": 128}
    return tf.ViTForImageClassification(tf.ViTConfig(num_labels=10, **(small if is_small else {})))


def _resnet(tf: Any, is_small: bool) -> Any:
    small = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}
    return tf.ResNetForImageClassification(tf.ResNetConfig(num_labels=10, **(small if is_small else {})))


def make(name: str, is_small: bool) -> tuple[Any, dict[str, Any]]:
    """Makes a model, on the host, and its batch on the GPU. `is_small`: tiny ones, to try the program out."""
    import torch

    torch.manual_seed(1)
    batch = _pictures(is_small) if name in ("vit", "resnet") else _text(is_small)
    if name == LARGE:
        batch = _text(is_small, 8 if _is_large() else 4, 1024)
    elif name == LARGEST:
        batch = _text(is_small, 4, 1024)
    elif name == BF16:
        batch = _text(is_small, 1, 2048)
    with torch.device("cuda"):  # random numbers for a large model take the host half a minute
        model = _model(name, is_small)
    return model.cpu().train(), batch


def _is_large() -> bool:
    import torch

    return torch.cuda.get_device_properties(0).total_memory >= LARGE_LEAST_BYTES


def _model(name: str, is_small: bool) -> Any:
    import transformers as tf

    if name == "gpt2":
        model = _gpt2(tf, is_small)
    elif name == LARGE:
        large = {"n_embd": 1280, "n_layer": 36, "n_head": 20}
        sizes = large if _is_large() else {"n_embd": 1024, "n_layer": 24, "n_head": 16}
        model = _gpt2(tf, is_small, n_positions=1024, **sizes)
    elif name == LARGEST:
        model = _gpt2(tf, is_small, n_positions=1024, n_embd=1600, n_layer=48, n_head=25)
    elif name in ("bert", "roberta"):
        # RoBERTa numbers its positions from 2 on.
        model = _encoder(tf, *(("Bert", is_small) if name == "bert" else ("Roberta", is_small, 514)))
    elif name == "distilbert":
        small = {"dim": 64, "n_layers": SMALL_LAYERS, "n_heads": 2, "hidden_dim": 128}
        model = tf.DistilBertForMaskedLM(tf.DistilBertConfig(**(small if is_small else {})))
    elif name == "llama":
        model = _decoder(tf, "Llama", is_small)
    elif name == BF16:
        model = _llama_3(tf, is_small)
    elif name == "mistral":
        model = _decoder(tf, "Mistral", is_small, num_key_value_heads=4 if not is_small else 2)
    elif name == "qwen2":
        model = _decoder(tf, "Qwen2", is_small, num_key_value_heads=4 if not is_small else 2)
    elif name == "gpt_neox":
        model = _decoder(tf, "GPTNeoX", is_small)
    else:
        model = {"t5": _t5, "bart": _bart, "vit": _vit, "resnet": _resnet}[name](tf, is_small)
    return model
