"""A script that compiles its whole model, as nanoGPT does. memscale compiles the layers instead and says so."""

import torch
from tell import tell
from torch import nn

import memscale


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


def train(wrapped):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(256, 64), *[Block() for _ in range(4)], nn.Linear(64, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if wrapped:
        memscale.wrap(model, memscale.Config(force_optimize=True))
        compiled = torch.compile(model)
    else:  # the same layers, because code compiled as a whole differs in last bits
        for block in model[1:-1]:
            block.compile()
        compiled = model
    for step in range(3):
        tokens = torch.randint(0, 256, (16, 129), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(compiled(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    tell("memscale" if wrapped else "plain", loss, model)


if __name__ == "__main__":
    train(wrapped=False)
    train(wrapped=True)
