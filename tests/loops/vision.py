"""Loops of vision scripts."""

from __future__ import annotations

import torch
from frame import Run, loop
from parts import ConvNet
from torch import nn
from torch.nn import functional


@loop(180, r"evaluation.*batch of \d+", may_pass=True)
def digits(run: Run) -> None:
    """Trains in batches of 64. After each epoch, tests in batches of 1000 without gradients."""
    model = run.wrap(ConvNet())
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for _ in range(2):
        model.train()
        for _ in range(12):
            data, target = torch.randn(64, 1, 28, 28), torch.randint(10, (64,))
            optimizer.zero_grad()
            loss = functional.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
            run.note(loss)
        model.eval()
        with torch.no_grad():
            for _ in range(2):
                output = model(torch.randn(1000, 1, 28, 28))
                run.note(output.argmax(1).sum())
        scheduler.step()


class _Residual(nn.Module):
    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(narrow, wide, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(wide), nn.BatchNorm2d(wide)
        self.short = nn.Conv2d(narrow, wide, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + self.short(x))


def _resnet() -> nn.Module:
    sizes = [(3, 32, 1), (32, 64, 2), (64, 128, 2)]
    body = [_Residual(*size) for size in sizes]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


@loop(210)
def residual_net(run: Run) -> None:
    """SGD with momentum. Each epoch ends with a validation batch of the same size."""
    model = run.wrap(_resnet())
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    criterion = nn.CrossEntropyLoss()
    for _ in range(2):
        model.train()
        for _ in range(5):
            images, target = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))
            loss = criterion(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.note(loss)
        model.eval()
        with torch.inference_mode():
            run.note(criterion(model(torch.randn(64, 3, 32, 32)), torch.randint(10, (64,))))


class _Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = _resnet()[:3]
        self.head = nn.Conv2d(128, 4, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.head(self.backbone(x))
        return {"out": functional.interpolate(y, size=x.shape[2:], mode="bilinear", align_corners=False)}


@loop(200)
def segmentation(run: Run) -> None:
    """The output is a dict; the loss is the loop's own."""
    model = run.wrap(_Segmenter())
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for _ in range(8):
        images, labels = torch.randn(32, 3, 32, 32), torch.randint(4, (32, 32, 32))
        loss = functional.cross_entropy(model(images)["out"], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.note(loss)


@loop(200)
def frozen_backbone(run: Run) -> None:
    """Only the head is trained; each batch is mixed with itself (mixup)."""
    model = _resnet()
    for parameter in model[:3].parameters():
        parameter.requires_grad_(False)
    model = run.wrap(model)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
    for _ in range(8):
        images, target = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))
        mixed = 0.7 * images + 0.3 * images.flip(0)
        output = model(mixed)
        loss = 0.7 * functional.cross_entropy(output, target) + 0.3 * functional.cross_entropy(output, target.flip(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.note(loss)


class _Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(784, 128), nn.Linear(64, 784)

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.encoder(x).chunk(2, dim=1)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return self.decoder(z)


@loop(150)
def encode_and_decode(run: Run) -> None:
    """The loop calls two methods of the model and never forward."""
    model = run.wrap(_Autoencoder())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(6):
        x = torch.rand(512, 784)
        mean, spread = model.encode(x)
        loss = functional.mse_loss(model.decode(mean + torch.randn_like(mean) * spread.exp()), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.note(loss)
