"""Small models and data that several loops share, like those of public scripts."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class ConvNet(nn.Module):
    """The usual convolutional net for handwritten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.conv1(x))
        x = functional.relu(self.conv2(x))
        x = self.dropout1(functional.max_pool2d(x, 2)).flatten(1)
        x = self.dropout2(functional.relu(self.fc1(x)))
        return functional.log_softmax(self.fc2(x), dim=1)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.ln1(x)).chunk(3, dim=2)
        q, k, v = (t.view(rows, length, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(rows, length, width)))
        return x + self.drop(self.out(functional.gelu(self.fc(self.ln2(x)))))


class CharModel(nn.Module):
    """A decoder over characters; returns logits, and with targets also the loss."""

    def __init__(self, words: int = 256, width: int = 128, depth: int = 6, length: int = 256, dropout: float = 0.1):
        super().__init__()
        self.length = length
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4, dropout) for _ in range(depth))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(
        self, ids: torch.Tensor, targets: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln(x))
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def generate(self, ids: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            logits, _ = self(ids[:, -self.length :])
            ids = torch.cat([ids, torch.multinomial(logits[:, -1].softmax(-1), 1)], dim=1)
        return ids


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for narrow, wide in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(narrow, wide), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def words_batch(rows: int, length: int, words: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ids, and the same ids shifted by one."""
    ids = torch.randint(words, (rows, length + 1))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
