"""Loops with several forwards or several models in a step."""

from __future__ import annotations

import copy

import torch
from frame import Run, loop
from parts import CharModel, mlp, words_batch
from torch.nn import functional


@loop(220)
def adversaries(run: Run) -> None:
    """The discriminator is wrapped: it sees real and fake for its own step, and fake for the generator's."""
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


@loop(330)
def distillation(run: Run) -> None:
    """A teacher without gradients beside the wrapped student, and an averaged copy that is evaluated."""
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
