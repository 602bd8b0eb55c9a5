"""Loops with several forwards or several models in a step."""

from __future__ import annotations

import copy

import torch
from frame import Run, loop
from parts import CharModel, mlp, words_batch
from torch import nn
from torch.nn import functional


@loop(220)
def adversaries(run: Run) -> None:
    """The discriminator is wrapped. It gets real and fake data in its own step, and fake data in the generator's."""
    generator = mlp(64, 512, 1024, 784)
    discriminator = run.wrap(mlp(784, 2048, 1024, 1))
    of_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    of_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    ones, zeros = torch.ones(1024, 1), torch.zeros(1024, 1)
    for _ in range(8):
        discriminator.zero_grad()
        real = functional.binary_cross_entropy_with_logits(discriminator(torch.randn(1024, 784)), ones)
        real.backward()
        fake = generator(torch.randn(1024, 64))
        bad = functional.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
        bad.backward()
        of_d.step()
        generator.zero_grad()
        fooled = functional.binary_cross_entropy_with_logits(discriminator(fake), ones)
        fooled.backward()
        of_g.step()
        run.note(real, bad, fooled)


class _Adversaries(nn.Module):
    """Generator and discriminator in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = mlp(64, 512, 1024, 784), mlp(784, 2048, 1024, 1)

    def forward(self, noise: torch.Tensor | None = None, images: torch.Tensor | None = None) -> torch.Tensor:
        return self.discriminator(self.generator(noise) if images is None else images)


@loop(150, plans_most=3)
def adversaries_in_one_module(run: Run) -> None:
    """The wrapped module has two kinds of inputs, each with its own optimizer."""
    model = run.wrap(_Adversaries())
    of_d, of_g = (torch.optim.Adam(part.parameters(), lr=2e-4) for part in (model.discriminator, model.generator))
    ones, zeros = torch.ones(1024, 1), torch.zeros(1024, 1)
    for _ in range(6):
        of_d.zero_grad()
        real = functional.binary_cross_entropy_with_logits(model(images=torch.randn(1024, 784)), ones)
        real.backward()
        with torch.no_grad():
            images = model.generator(torch.randn(1024, 64))
        fake = functional.binary_cross_entropy_with_logits(model(images=images), zeros)
        fake.backward()
        of_d.step()
        of_g.zero_grad()
        fooled = functional.binary_cross_entropy_with_logits(model(torch.randn(1024, 64)), ones)
        fooled.backward()
        of_g.step()
        run.note(real, fake, fooled)


@loop(330)
def distillation(run: Run) -> None:
    """The student is wrapped; a teacher runs beside it without gradients, and an averaged copy is evaluated."""
    teacher = CharModel(depth=4, dropout=0.0).eval()
    student = CharModel(depth=4, dropout=0.0)
    averaged = copy.deepcopy(student)
    student = run.wrap(student)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    for step in range(8):
        ids, _ = words_batch(8, 256)
        with torch.no_grad():
            wanted, _ = teacher(ids)
        logits, _ = student(ids)
        loss = functional.kl_div(logits.log_softmax(-1), wanted.softmax(-1), reduction="batchmean")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, value in zip(averaged.parameters(), student.parameters(), strict=True):
                mean.lerp_(value, 0.1)
            if step % 4 == 3:
                run.note(averaged(ids)[0].mean())
        run.note(loss)


@loop(260)
def two_views(run: Run) -> None:
    """Two forwards share one loss."""
    model = run.wrap(mlp(256, 2048, 1024, 64))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(8):
        x = torch.randn(512, 256)
        left, right = (functional.normalize(model(x + torch.randn_like(x))) for _ in range(2))
        loss = functional.cross_entropy(left @ right.T / 0.1, torch.arange(512))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.note(loss)


@loop(330)
def preferences(run: Run) -> None:
    """The policy and a frozen reference model each get the chosen and the rejected text."""
    reference = CharModel(depth=2, dropout=0.0).eval()
    policy = run.wrap(CharModel(depth=4, dropout=0.0))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    for _ in range(6):
        (chosen, of_chosen), (rejected, of_rejected) = words_batch(6, 256), words_batch(6, 256)
        with torch.no_grad():
            base = reference(chosen, of_chosen)[1] - reference(rejected, of_rejected)[1]
        margin = policy(chosen, of_chosen)[1] - policy(rejected, of_rejected)[1]
        loss = -functional.logsigmoid(base - margin)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        run.note(loss)


@loop(260)
def gradient_penalty(run: Run) -> None:
    """The critic's loss includes its gradient with respect to its input."""
    critic = run.wrap(mlp(256, 1024, 1024, 1))
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
    for _ in range(6):
        real, fake = torch.randn(512, 256), torch.randn(512, 256)
        between = (real + fake).mul(0.5).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        loss = critic(fake).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.note(loss)


@loop(420, is_quick=True)
def one_loss_of_two_forwards(run: Run) -> None:
    """Siamese: both forwards come before the backward. One alone would fit with everything kept."""
    layers = [layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.GELU(), nn.Dropout(0.1))]
    model = run.wrap(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        first, second = torch.randn(4096, 512), torch.randn(4096, 512)
        loss = (model(first) - model(second)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        run.note(loss, *[parameter.grad for parameter in model.parameters()])
        optimizer.step()
    run.note(*model.parameters())


@loop(100, r"forwards that wait for their backward hold .* MB", may_pass=True, is_quick=True)
def contrastive(run: Run) -> None:
    """A contrastive loss of two forwards, under a budget that does for one."""
    model = run.wrap(CharModel(depth=4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(4):
        one, other = (model(words_batch(16, 256)[0])[0].mean(1) for _ in range(2))
        loss = functional.cross_entropy(one @ other.T, torch.arange(16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.note(loss)


@loop(120, r"forwards that wait for their backward hold .* MB", may_pass=True)
def triplets(run: Run) -> None:
    """A loss of three forwards, under a budget that does for one; gradients are cleared before the forwards."""
    model = run.wrap(CharModel(depth=4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        anchor, near, far = (model(words_batch(16, 256)[0])[0].mean(1) for _ in range(3))
        loss = functional.triplet_margin_loss(anchor, near, far)
        loss.backward()
        optimizer.step()
        run.note(loss)
