"""Denoising diffusion: a small U-Net predicts the noise that was added to an image."""

import torch
from tell import tell
from torch import nn

import memscale


def block(inward, outward):
    return nn.Sequential(nn.Conv2d(inward, outward, 3, padding=1), nn.GroupNorm(8, outward), nn.SiLU())


class UNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.down = nn.ModuleList([block(4, width), block(width, 2 * width), block(2 * width, 4 * width)])
        self.up = nn.ModuleList([block(6 * width, 2 * width), block(3 * width, width)])
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, image, time):
        x, seen = torch.cat([image, time.expand(-1, 1, *image.shape[2:])], 1), []
        for down in self.down:
            x = down(x)
            seen.append(x)
            x = nn.functional.avg_pool2d(x, 2) if len(seen) < len(self.down) else x
        for up, skipped in zip(self.up, seen[-2::-1], strict=True):
            x = up(torch.cat([nn.functional.interpolate(x, scale_factor=2), skipped], 1))
        return self.out(x)


def train(wrapped):
    torch.manual_seed(0)
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if wrapped:
        memscale.wrap(model, memscale.Config(force_optimize=True))
    for step in range(3):
        torch.manual_seed(step)
        clean, noise, time = torch.randn(8, 3, 32, 32), torch.randn(8, 3, 32, 32), torch.rand(8, 1, 1, 1)
        loss = nn.functional.mse_loss(model(clean * (1 - time) + noise * time, time), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    tell("memscale" if wrapped else "plain", loss, model)


if __name__ == "__main__":
    train(wrapped=False)
    train(wrapped=True)
