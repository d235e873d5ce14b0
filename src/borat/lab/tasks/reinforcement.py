"""Reinforcement learning on the cart and pole of gymnasium: REINFORCE and PPO."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from borat.lab.tasks.common import minibatches, mlp
from borat.lab.tasks.task import TrainingTask

DISCOUNT = 0.99
REWARD = 0.1
"""Reward of a step in training: values are below 10."""
EPISODES = 20
"""Episodes of a score."""
SPREAD = 0.15
"""Largest distance from rest at the start; 0.05 in training."""


class CartPole:
    """Several carts, each with a pole to balance, that begin anew by themselves."""

    def __init__(self, count: int, spread: float = 0.05) -> None:
        try:
            import gymnasium
        except ModuleNotFoundError as error:
            raise ValueError("this task needs gymnasium, which is missing: pip install 'borat[gym]'") from error
        self.carts = [gymnasium.make("CartPole-v1") for _ in range(count)]
        self.options = {"low": -spread, "high": spread}
        seeds = torch.randint(2**31, (count,)).tolist()
        self.state = torch.tensor(np.stack([self._begin(*pair) for pair in zip(self.carts, seeds, strict=True)]))

    def _begin(self, cart: Any, seed: int | None = None) -> Any:
        return cart.reset(seed=seed, options=self.options)[0]

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take a step in each; return the states after it, and where the pole fell or the episode ended."""
        results = [cart.step(action) for cart, action in zip(self.carts, actions.tolist(), strict=True)]
        after = [result[0] for result in results]
        fallen, over = [result[2] for result in results], [result[2] or result[3] for result in results]
        states = [self._begin(cart) if o else a for cart, a, o in zip(self.carts, after, over, strict=True)]
        self.state = torch.tensor(np.stack(states))
        return torch.tensor(np.stack(after)), torch.tensor(fallen), torch.tensor(over)


def draw(logits: Tensor) -> Tensor:
    """Draw an action in each state."""
    return (logits - torch.empty_like(logits).exponential_().log()).argmax(1)


def log_probability(logits: Tensor, actions: Tensor) -> Tensor:
    """Return the log-probability of each action."""
    return logits.log_softmax(1).gather(1, actions[:, None])[:, 0]


class BalancingTask(TrainingTask):
    """Balance a pole on a cart: the mean return of twenty episodes, which end after 500 steps."""

    metric = "return"
    lower_is_better = False

    def act(self, model: nn.Module, states: Tensor) -> Tensor:
        """Return the best action in each state."""
        actions: Tensor = model(states)[:, :2].argmax(1)
        return actions

    def score(self, model: nn.Module, split: str) -> float:
        carts, alive, total = CartPole(EPISODES, spread=SPREAD), torch.ones(EPISODES, dtype=torch.bool), 0
        while alive.any():
            total += int(alive.sum())
            alive &= ~carts.step(self.act(model, carts.state))[2]
        return total / EPISODES


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
        carts, alive = CartPole(self.episodes), torch.ones(self.episodes, dtype=torch.bool)
        states, actions, alives = [], [], []
        while alive.any():
            states.append(carts.state)
            actions.append(draw(model(carts.state)))
            alives.append(alive)
            alive = alive & ~carts.step(actions[-1])[2]
        played = torch.stack(alives)
        returns = played.float()
        for t in reversed(range(len(returns) - 1)):
            returns[t] += DISCOUNT * returns[t + 1]
        gained = returns[played]
        return torch.stack(states)[played], torch.stack(actions)[played], (gained - gained.mean()) / gained.std()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        states, actions, advantages = batch
        gain: Tensor = (log_probability(model(states), actions) * advantages).mean()
        return -gain


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
    carts, length, passes, size = 16, 128, 4, 256
    smoothing, clip = 0.95, 0.2

    def build(self) -> nn.Module:
        return ActorCritic()

    def batches(self, model: nn.Module) -> Iterator[Any]:
        carts = CartPole(self.carts)
        while True:
            played = self._play(model, carts)
            yield from islice(minibatches(self.size, *played), self.passes * len(played[0]) // self.size)

    @torch.no_grad()
    def _play(self, model: nn.Module, carts: CartPole) -> tuple[Tensor, ...]:
        """Return states, actions, their log-probabilities, advantages and returns."""
        rows = []
        for _ in range(self.length):
            state, out = carts.state, model(carts.state)
            action = draw(out[:, :2])
            after, fallen, over = carts.step(action)
            gain = REWARD + DISCOUNT * model(after)[:, 2] * ~fallen - out[:, 2]
            rows.append((state, action, log_probability(out[:, :2], action), out[:, 2], gain, ~over))
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
        loss: Tensor = 0.5 * mse_loss(values, returns) - gain - 0.01 * entropy
        return loss
