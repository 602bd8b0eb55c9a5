"""Reinforcement-learning loops: small models, many forwards without gradients, methods other than forward."""

from __future__ import annotations

import torch
from frame import Run, loop
from parts import mlp
from torch import nn


class _Agent(nn.Module):
    """Has no forward."""

    def __init__(self) -> None:
        super().__init__()
        self.critic, self.actor = mlp(64, 512, 512, 1), mlp(64, 512, 512, 8)

    def get_value(self, x: torch.Tensor) -> torch.Tensor:
        return self.critic(x)

    def get_action_and_value(
        self, x: torch.Tensor, action: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        odds = torch.distributions.Categorical(logits=self.actor(x))
        action = odds.sample() if action is None else action
        return action, odds.log_prob(action), self.critic(x)


@loop(120, is_quick=True)
def policy_gradient(run: Run) -> None:
    """A rollout without gradients, then epochs of minibatches; the agent's forward is never called."""
    agent = run.wrap(_Agent())
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    for _ in range(3):
        states, actions, logs, values = [], [], [], []
        for _ in range(16):
            state = torch.randn(32, 64)
            with torch.no_grad():
                action, log, value = agent.get_action_and_value(state)
            states, actions, logs, values = [*states, state], [*actions, action], [*logs, log], [*values, value]
        with torch.no_grad():
            run.note(agent.get_value(states[-1]))
        for _ in range(2):
            _, log, value = agent.get_action_and_value(torch.cat(states), torch.cat(actions))
            ratio = (log - torch.cat(logs)).exp()
            loss = -(ratio * torch.randn(512)).mean() + (value - torch.cat(values)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            run.note(loss)


@loop(160)
def deep_q(run: Run) -> None:
    """A target network runs beside the wrapped one; three forwards without gradients come before each step."""
    online = run.wrap(mlp(64, 1024, 1024, 8))
    target = mlp(64, 1024, 1024, 8)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    for step in range(20):
        for _ in range(3):
            with torch.no_grad():
                run.note(online(torch.randn(1, 64)).argmax())
        states, following = torch.randn(2048, 64), torch.randn(2048, 64)
        with torch.no_grad():
            wanted = target(following).max(1).values
        loss = (online(states)[:, 0] - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.note(loss)
        if step % 5 == 0:
            target.load_state_dict(online.state_dict())


class _SharedBody(nn.Module):
    """Policy and value share a body; has no forward."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(64, 1024, 1024, 1024)
        self.policy, self.value = nn.Linear(1024, 8), nn.Linear(1024, 1)

    def act(
        self, x: torch.Tensor, action: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = self.body(x).relu()
        odds = torch.distributions.Categorical(logits=self.policy(hidden))
        action = odds.sample() if action is None else action
        return action, odds.log_prob(action), odds.entropy(), self.value(hidden)[:, 0]


@loop(100)
def shared_policy(run: Run) -> None:
    """Minibatches of a rollout, the last one smaller; the clipped objective."""
    net = run.wrap(_SharedBody())
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)
    for _ in range(3):
        x = torch.randn(4096, 64)
        with torch.no_grad():
            action, before, _, value = net.act(x)
        for rows in torch.randperm(4096).split(1500):
            _, log, entropy, now = net.act(x[rows], action[rows])
            ratio = (log - before[rows]).exp()
            loss = -torch.min(ratio, ratio.clamp(0.8, 1.2)).mean() - 0.01 * entropy.mean()
            loss = loss + (now - value[rows] - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            run.note(loss)


class _PixelAgent(nn.Module):
    """The trunk of an Atari agent, shared by policy and value; has no forward."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            *(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU()),
        )
        self.actor, self.critic = nn.Linear(512, 6), nn.Linear(512, 1)

    def get_value(self, x: torch.Tensor) -> torch.Tensor:
        return self.critic(self.network(x / 255))

    def get_action_and_value(
        self, x: torch.Tensor, action: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = self.network(x / 255)
        odds = torch.distributions.Categorical(logits=self.actor(hidden))
        action = odds.sample() if action is None else action
        return action, odds.log_prob(action), odds.entropy(), self.critic(hidden)[:, 0]


@loop(60, r"inputs .* need .* over the budget, and run under the smallest plan$", may_pass=True)
def pixel_policy(run: Run) -> None:
    """PPO on images under a budget that is too small: its layers are planned from a real step, and training goes on."""
    agent = run.wrap(_PixelAgent())
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    for _ in range(2):
        frames = torch.randint(0, 256, (128, 4, 84, 84), dtype=torch.uint8)
        kept = []
        for rows in range(0, 128, 8):
            with torch.no_grad():
                kept.append(agent.get_action_and_value(frames[rows : rows + 8]))
        action, before, _, value = (torch.cat(parts) for parts in zip(*kept, strict=True))
        with torch.no_grad():
            run.note(agent.get_value(frames[-8:]))
        for rows in torch.randperm(128).split(64):
            _, log, entropy, now = agent.get_action_and_value(frames[rows], action[rows])
            ratio = (log - before[rows]).exp()
            loss = -torch.min(ratio, ratio.clamp(0.9, 1.1)).mean() - 0.01 * entropy.mean()
            loss = loss + 0.5 * (now - value[rows] - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            run.note(loss)
