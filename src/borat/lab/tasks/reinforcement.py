"""Reinforcement learning on gymnasium's CartPole: REINFORCE and PPO."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from borat.lab.tasks.task import TrainingTask, minibatches, mlp

DISCOUNT = 0.99
REWARD = 0.1
"""Reward of a step in training; it keeps values below 10."""


class CartPoles:
    """Several carts, each with a pole to balance. When an episode ends, a new one starts.

    Args:
        count: number of carts.
        spread: largest distance from rest at the start of the first episodes.
    """

    def __init__(self, count: int, spread: float = 0.05) -> None:
        try:
            import gymnasium
        except ModuleNotFoundError as error:
            raise ValueError("this task needs gymnasium, which is missing: pip install 'borat[gym]'") from error
        carts = [lambda: gymnasium.make("CartPole-v1")] * count
        self.env = gymnasium.vector.SyncVectorEnv(carts, autoreset_mode="SameStep")
        seeds = torch.randint(2**31, (count,)).tolist()
        self.state = torch.from_numpy(self.env.reset(seed=seeds, options={"low": -spread, "high": spread})[0])

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take a step with each cart; return the next states, a mask of fallen poles and one of ended episodes."""
        states, _, fallen, truncated, infos = self.env.step(actions.numpy())
        self.state = torch.from_numpy(states)
        after, ended = self.state.clone(), fallen | truncated
        for i in ended.nonzero()[0]:
            after[i] = torch.from_numpy(infos["final_obs"][i])
        return after, torch.from_numpy(fallen), torch.from_numpy(ended)


def sample(logits: Tensor) -> Tensor:
    """Draw an action in each state."""
    return (logits - torch.empty_like(logits).exponential_().log()).argmax(1)


def log_probability(logits: Tensor, actions: Tensor) -> Tensor:
    """Return the log-probability of each action."""
    return logits.log_softmax(1).gather(1, actions[:, None])[:, 0]


class BalancingTask(TrainingTask):
    """Balance a pole on a cart. The score is the mean return of twenty episodes of at most 500 steps."""

    metric = "return"
    lower_is_better = False
    score_episodes, score_spread = 20, 0.15

    def score(self, model: nn.Module, split: str) -> float:
        carts, total = CartPoles(self.score_episodes, self.score_spread), 0
        alive = torch.ones(self.score_episodes, dtype=torch.bool)
        while alive.any():
            total += int(alive.sum())
            alive &= ~carts.step(model(carts.state)[:, :2].argmax(1))[2]
        return total / self.score_episodes


class Reinforce(BalancingTask):
    """Follow the policy gradient of whole episodes (Williams, 1992), with the mean return as baseline."""

    steps = 200
    episodes = 8

    def build(self) -> nn.Module:
        return mlp(4, 64, 2, activation=nn.Tanh)

    def batches(self, model: nn.Module) -> Iterator[Any]:
        while True:
            yield self._play(model)

    @torch.no_grad()
    def _play(self, model: nn.Module) -> tuple[Tensor, ...]:
        """Play one episode with each cart; return states, actions and standardised returns."""
        carts, alive = CartPoles(self.episodes), torch.ones(self.episodes, dtype=torch.bool)
        rows = []
        while alive.any():
            state, action = carts.state, sample(model(carts.state))
            rows.append((state, action, alive))
            alive = alive & ~carts.step(action)[2]
        states, actions, played = (torch.stack(column) for column in zip(*rows, strict=True))
        returns = played.float()
        for t in reversed(range(len(returns) - 1)):
            returns[t] += DISCOUNT * returns[t + 1]
        gained = returns[played]
        return states[played], actions[played], (gained - gained.mean()) / gained.std()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        states, actions, advantages = batch
        return -(log_probability(model(states), actions) * advantages).mean()


class ActorCritic(nn.Module):
    """Logits of the actions and, as a last column, the value of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp(4, 64, 64, 2, activation=nn.Tanh), mlp(4, 64, 64, 1, activation=nn.Tanh)

    def forward(self, states: Tensor) -> Tensor:
        return torch.cat([self.actor(states), self.critic(states)], dim=1)


class PPO(BalancingTask):
    """Proximal policy optimization (Schulman et al., 2017), with generalised advantages."""

    steps = 500
    carts, length, passes, batch_size = 16, 128, 4, 256
    smoothing, clip = 0.95, 0.2

    def build(self) -> nn.Module:
        return ActorCritic()

    def batches(self, model: nn.Module) -> Iterator[Any]:
        carts = CartPoles(self.carts)
        while True:
            played = self._play(model, carts)
            yield from islice(minibatches(self.batch_size, *played), self.passes * len(played[0]) // self.batch_size)

    @torch.no_grad()
    def _play(self, model: nn.Module, carts: CartPoles) -> tuple[Tensor, ...]:
        """Return states, actions, their log-probabilities, advantages and returns."""
        rows = []
        for _ in range(self.length):
            state, out = carts.state, model(carts.state)
            action = sample(out[:, :2])
            after, fallen, ended = carts.step(action)
            gain = REWARD + DISCOUNT * model(after)[:, 2] * ~fallen - out[:, 2]
            rows.append((state, action, log_probability(out[:, :2], action), out[:, 2], gain, ~ended))
        state, action, log_prob, value, gain, goes_on = (torch.stack(column) for column in zip(*rows, strict=True))
        advantage = gain.clone()
        for t in reversed(range(self.length - 1)):
            advantage[t] += DISCOUNT * self.smoothing * goes_on[t] * advantage[t + 1]
        return tuple(x.flatten(0, 1) for x in (state, action, log_prob, advantage, advantage + value))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        states, actions, log_probs, advantages, returns = batch
        out = model(states)
        logits, values = out[:, :2], out[:, 2]
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratio = (log_probability(logits, actions) - log_probs).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(1.0 - self.clip, 1.0 + self.clip) * advantages).mean()
        entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        return 0.5 * mse_loss(values, returns) - gain - 0.01 * entropy
