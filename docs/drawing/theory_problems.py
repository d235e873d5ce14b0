"""Problems that meet the assumptions of the paper's theorems.

The theorems assume a point ``w*`` at which the loss of every batch is zero, or a small error for the logistic loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from sklearn.svm import LinearSVC
from torch import Tensor
from torch.nn import functional

from borat.lab.data import load
from borat.lab.data.task import MemorySplit

BatchLoss = Callable[[Tensor], Tensor]
"""Loss of one batch at a point."""


@dataclass(frozen=True)
class Problem:
    """Losses of the batches, all at least 0, a start, and the constants of the theorems."""

    losses: Sequence[BatchLoss]
    start: Tensor
    solutions: Tensor  # points, as rows, at which all losses are (nearly) zero; each gives a bound
    lipschitz: float = math.inf  # the paper's C, of every batch
    smoothness: float = math.inf  # the paper's beta
    strong_convexity: float = 0.0  # the paper's alpha
    secant: float = 0.0  # mu of the restricted secant inequality, <g, w - w*> >= mu |w - w*|^2

    @property
    def solution(self) -> Tensor:
        return self.solutions[0]

    @cached_property
    def errors(self) -> Tensor:
        """Largest loss of a batch at each solution; zero under perfect interpolation."""
        return torch.stack([torch.stack([loss(w) for loss in self.losses]).max() for w in self.solutions])

    @cached_property
    def squared_distances(self) -> Tensor:
        """Squared distances from the start to each solution."""
        return (self.solutions - self.start).square().sum(1)

    def mean(self, w: Tensor) -> Tensor:
        """Return the objective f."""
        return torch.stack([loss(w) for loss in self.losses]).mean()

    def whole(self) -> Problem:
        """Return the same objective as a single batch."""
        return replace(self, losses=[self.mean])

    def draw(self, updates: int, seed: int) -> list[int]:
        """Draw batches independently and uniformly at random, as the theorems assume."""
        generator = torch.Generator().manual_seed(seed)
        return [int(i) for i in torch.randint(len(self.losses), (updates,), generator=generator)]


def half_spaces(dimension: int = 8, batches: int = 12, seed: int = 0) -> Problem:
    """Distances to half-spaces that intersect in the solution: convex, Lipschitz with C = 1."""
    generator, start, solution = _points(dimension, seed)
    normals = functional.normalize(_normal(generator, batches, dimension), dim=1)

    def loss(a: Tensor, w: Tensor) -> Tensor:
        return (a @ (w - solution)).clamp(min=0.0)

    return Problem([partial(loss, a) for a in normals], start, solution.unsqueeze(0), lipschitz=1.0)


def largest_coordinate(dimension: int = 64) -> Problem:
    """``max |w_i|`` from the vector of ones: convex, Lipschitz with C = 1, and as hard as such a problem can be.

    With a large learning rate, ALI-G sets one coordinate to zero in each update, and attains the bound after
    ``dimension`` updates; BORAT sets one to zero with each piece.
    """

    def loss(w: Tensor) -> Tensor:
        return w.abs()[w.detach().abs().argmax()]  # ties: the gradient of the first

    ones = torch.ones(dimension, dtype=torch.float64)
    return Problem([loss], ones, torch.zeros(1, dimension, dtype=torch.float64), lipschitz=1.0)


def least_squares(dimension: int = 8, batches: int = 6, rows: int = 5, seed: int = 0) -> Problem:
    """Linear equations with a common solution, too few in each batch to determine it: convex and smooth."""
    generator, start, solution = _points(dimension, seed)
    matrices = _normal(generator, batches, rows, dimension)

    def loss(a: Tensor, w: Tensor) -> Tensor:
        return 0.5 * (a @ (w - solution)).square().mean()

    smoothness = max(torch.linalg.matrix_norm(a, 2).item() ** 2 / rows for a in matrices)
    return Problem([partial(loss, a) for a in matrices], start, solution.unsqueeze(0), smoothness=smoothness)


def ellipsoids(dimension: int = 8, batches: int = 6, condition: float = 10.0, seed: int = 0) -> Problem:
    """Quadratic losses with curvatures from 1 to ``condition``, each batch along its own axes: strongly convex."""
    generator, start, solution = _points(dimension, seed)
    curvatures = torch.logspace(0, math.log10(condition), dimension, dtype=torch.float64)

    def loss(axes: Tensor, w: Tensor) -> Tensor:
        return 0.5 * curvatures @ (axes @ (w - solution)).square()

    losses = [partial(loss, axes) for axes in _rotations(generator, batches, dimension)]
    return Problem(losses, start, solution.unsqueeze(0), smoothness=condition, strong_convexity=1.0)


def waves(dimension: int = 8, batches: int = 6, height: float = 1.5, seed: int = 0) -> Problem:
    """Sums of ``v^2 + height sin(v)^2`` along the axes of each batch: RSI and smooth, not convex for a height above 1.

    The derivative is ``2 v + height sin(2 v)``. Its own derivative is between ``2 - 2 height`` and ``2 + 2 height``;
    times ``v`` it is at least ``2 (1 - 0.2172 height) v^2``, where the number is the largest ``-sin(x) / x``.
    """
    generator, start, solution = _points(dimension, seed)

    def loss(axes: Tensor, w: Tensor) -> Tensor:
        v = axes @ (w - solution)
        return (v.square() + height * v.sin().square()).sum()

    losses = [partial(loss, axes) for axes in _rotations(generator, batches, dimension)]
    secant = 2 * (1 - 0.21723362821122166 * height)
    return Problem(losses, start, solution.unsqueeze(0), smoothness=2 + 2 * height, secant=secant)


def separable(name: str, loss: str, data_dir: Path, batch_size: int = 450, limit: int | None = None) -> Problem:
    """Linear classifier on real data, made separable; ``loss`` is ``"hinge"`` or ``"logistic"``.

    A support vector machine finds a separator. Examples with less than half its margin are left out, and it is scaled
    until all others have a margin of 1, where the hinge loss is zero. The logistic loss is zero nowhere: its solutions
    are multiples of the separator, each with its error.
    """
    if loss not in ("hinge", "logistic"):
        raise ValueError(f"loss must be 'hinge' or 'logistic', got {loss!r}")
    examples, separator = _separate(name, data_dir, limit)
    batches = examples[: len(examples) // batch_size * batch_size].reshape(-1, batch_size, len(separator))
    start = torch.zeros_like(separator)
    lipschitz = max(batch.norm(dim=1).mean().item() for batch in batches)
    if loss == "hinge":
        return Problem([partial(_hinge, a) for a in batches], start, separator.unsqueeze(0), lipschitz=lipschitz)
    smoothness = max(torch.linalg.matrix_norm(a, 2).item() ** 2 / (4 * batch_size) for a in batches)
    multiples = torch.logspace(-2, 1.5, 60, dtype=torch.float64).unsqueeze(1)
    return Problem([partial(_logistic, a) for a in batches], start, multiples * separator, lipschitz, smoothness)


def _separate(name: str, data_dir: Path, limit: int | None) -> tuple[Tensor, Tensor]:
    """Return the examples times their signs, with a constant feature, and a separator with margin 1."""
    task = load(name, data_dir=data_dir, train_limit=limit)
    split = task.splits["train"]
    shape, classes = task.description.input_shape, task.description.num_classes
    if not isinstance(split, MemorySplit) or len(shape) != 1 or classes != 2:
        raise ValueError(f"name must be a data set of vectors in two classes, such as mushrooms or w8a, got {name!r}")
    signs = 2.0 * split.labels.double() - 1.0
    examples = torch.cat([split.tensors[0].double(), torch.ones(len(signs), 1, dtype=torch.float64)], 1)
    machine = LinearSVC(C=1.0, dual=False, fit_intercept=False).fit(examples.numpy(), signs.numpy())
    separator = torch.from_numpy(machine.coef_[0])
    signed = signs.unsqueeze(1) * examples
    signed = signed[signed @ separator >= 0.5]
    return signed, separator / (signed @ separator).min() * (1 + 1e-12)  # margins of at least 1 despite rounding


def _hinge(batch: Tensor, w: Tensor) -> Tensor:
    return (1.0 - batch @ w).clamp(min=0.0).mean()


def _logistic(batch: Tensor, w: Tensor) -> Tensor:
    return functional.softplus(-(batch @ w)).mean()


def _points(dimension: int, seed: int) -> tuple[torch.Generator, Tensor, Tensor]:
    """Return a generator, and a start and a solution drawn from it."""
    generator = torch.Generator().manual_seed(seed)
    return generator, 3 * _normal(generator, dimension), _normal(generator, dimension)


def _rotations(generator: torch.Generator, count: int, dimension: int) -> list[Tensor]:
    return [torch.linalg.qr(_normal(generator, dimension, dimension)).Q for _ in range(count)]


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)
