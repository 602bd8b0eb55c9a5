"""LoRA with PEFT: only the adapters are trained. memscale reduces the memory of the frozen layers' activations."""

import torch
from peft import LoraConfig, get_peft_model
from tell import tell
from transformers import GPT2Config, GPT2LMHeadModel

import memscale


def train(wrapped):
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=128, n_head=4, vocab_size=512, bos_token_id=0, eos_token_id=0))
    model = get_peft_model(base, LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True)).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    if wrapped:
        memscale.wrap(model, memscale.Config(force_optimize=True))
    for step in range(3):
        torch.manual_seed(step)
        ids = torch.randint(0, 512, (4, 128))
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    tell("memscale" if wrapped else "plain", loss, model)


if __name__ == "__main__":
    train(wrapped=False)
    train(wrapped=True)
