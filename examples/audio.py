"""An audio classifier on spectrograms."""

import torch
from tell import tell
from transformers import ASTConfig, ASTForAudioClassification

import memscale


def train(wrapped):
    torch.manual_seed(0)
    config = ASTConfig(hidden_size=96, num_hidden_layers=4, num_attention_heads=4, intermediate_size=192,
                       max_length=128, num_mel_bins=32, num_labels=10)  # fmt: skip
    model = ASTForAudioClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if wrapped:
        memscale.wrap(model, memscale.Config(force_optimize=True))
    for step in range(3):
        torch.manual_seed(step)
        spectrograms, labels = torch.randn(16, 128, 32), torch.randint(0, 10, (16,))
        loss = model(input_values=spectrograms, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    tell("memscale" if wrapped else "plain", loss, model)


if __name__ == "__main__":
    train(wrapped=False)
    train(wrapped=True)
