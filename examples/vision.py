"""A vision transformer."""

import torch
from tell import tell
from transformers import ViTConfig, ViTForImageClassification

import memscale


def train(wrapped):
    torch.manual_seed(0)
    config = ViTConfig(hidden_size=96, num_hidden_layers=4, num_attention_heads=4, intermediate_size=192,
                       image_size=64, patch_size=8, num_labels=10)  # fmt: skip
    model = ViTForImageClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if wrapped:
        memscale.wrap(model, memscale.Config(force_optimize=True))
    for step in range(3):
        torch.manual_seed(step)
        images, labels = torch.randn(16, 3, 64, 64), torch.randint(0, 10, (16,))
        loss = model(pixel_values=images, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    tell("memscale" if wrapped else "plain", loss, model)


if __name__ == "__main__":
    train(wrapped=False)
    train(wrapped=True)
