"""Tasks on synthetic data: regression, factorisation, segmentation, a GAN, a physics-informed network and sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gaussian_nll_loss, interpolate, max_pool2d, mse_loss, pad, softplus

from borat.lab.tasks.task import DataTask, SampledTask, mlp


class NoisyRegression(DataTask):
    """Fit a smooth function of eight variables; the noise is as large as the function itself."""

    steps = 3000
    metric = "squared error of the mean"
    sizes: ClassVar = {"train": 20_000, "validation": 2000, "test": 2000}

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(1)
        inputs = {split: torch.randn(count, 8, generator=random) for split, count in self.sizes.items()}
        self.splits = {split: (x, self.truth(x)) for split, x in inputs.items()}
        x, mean = self.splits["train"]
        self.splits["train"] = x, mean + mean.std() * torch.randn(mean.shape, generator=random)

    @staticmethod
    def truth(x: Tensor) -> Tensor:
        """Return the values of the function."""
        return 2.0 * (x[:, :1] * x[:, 1:2]).sin() + x[:, 2:3] * x[:, 3:4].tanh() + x[:, 4:5].square() - 1.0 + x[:, 5:6]

    def build(self) -> nn.Module:
        return mlp(8, 64, 64, 1)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        return mse_loss(model(inputs), targets)


class GaussianLikelihood(DataTask):
    """Predict a mean and a variance by maximum likelihood; the loss is negative where the noise is small."""

    steps = 4000
    metric = "KL divergence from the true distribution in nats"

    def __init__(self) -> None:
        random, sizes = torch.Generator().manual_seed(2), NoisyRegression.sizes
        inputs = {split: 4.0 * torch.rand(count, 2, generator=random) - 2.0 for split, count in sizes.items()}
        self.splits = {split: (x, *self.truth(x)) for split, x in inputs.items()}
        x, mean, deviation = self.splits["train"]
        self.splits["train"] = x, mean + deviation * torch.randn(mean.shape, generator=random)

    @staticmethod
    def truth(x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the standard deviation."""
        return (2.0 * x[:, :1]).sin() * x[:, 1:].cos(), 0.02 + 0.2 * torch.sigmoid(2.0 * x.sum(1, keepdim=True))

    def build(self) -> nn.Module:
        return mlp(2, 64, 64, 2, activation=nn.Tanh)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        mean, log_variance = model(inputs).chunk(2, dim=1)
        return gaussian_nll_loss(mean, targets, log_variance.exp())

    def score(self, model: nn.Module, split: str) -> float:
        inputs, mean, deviation = self.splits[split]
        guess, log_variance = model(inputs).chunk(2, dim=1)
        ratio = deviation.square() / log_variance.exp()
        divergence = 0.5 * (ratio - ratio.log() - 1.0 + (mean - guess).square() / log_variance.exp())
        return float(divergence.mean())


class Factorisation(DataTask):
    """Complete a matrix of rank five from a fifth of its entries, which are noisy."""

    steps = 8000
    metric = "squared error of the matrix"
    batch_size = 256
    rows, columns, rank = 300, 200, 5
    sizes: ClassVar = {"train": 12_000, "validation": 4000, "test": 4000}

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(6)
        left = torch.randn(self.rows, self.rank, generator=random)
        matrix = left @ torch.randn(self.rank, self.columns, generator=random) / self.rank**0.5
        places = torch.randperm(matrix.numel(), generator=random)[: sum(self.sizes.values())]
        parts = torch.split(places, list(self.sizes.values()))
        self.splits = {
            split: (torch.stack([part // self.columns, part % self.columns], dim=1), matrix.flatten()[part])
            for split, part in zip(self.sizes, parts, strict=True)
        }
        pairs, entries = self.splits["train"]
        self.splits["train"] = pairs, entries + 0.3 * torch.randn(len(entries), generator=random)

    def build(self) -> nn.Module:
        """Return a vector and a bias for each row and each column."""
        rows, columns = (nn.Embedding(count, self.rank + 1) for count in (self.rows, self.columns))
        model = nn.ModuleDict({"rows": rows, "columns": columns})
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.1)
        return model

    def loss(self, model: Any, batch: Any) -> Tensor:
        pairs, entries = batch
        row, column = model["rows"](pairs[:, 0]), model["columns"](pairs[:, 1])
        return mse_loss((row[:, 1:] * column[:, 1:]).sum(1) + row[:, 0] + column[:, 0], entries)


class SmallUNet(nn.Module):
    """A U-Net (Ronneberger, Fischer and Brox, 2015) of two levels."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep, self.up = self._block(1, 8), self._block(8, 16), self._block(24, 8)
        self.head = nn.Conv2d(8, 1, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU())

    def forward(self, images: Tensor) -> Tensor:
        fine = self.down(images)
        coarse = self.deep(max_pool2d(fine, 2))
        return self.head(self.up(torch.cat([fine, interpolate(coarse, scale_factor=2.0)], dim=1)))


class Segmentation(DataTask):
    """Segment discs beside squares in noisy images with the soft Dice loss (Milletari, Navab and Ahmadi, 2016)."""

    steps = 1500
    metric = "1 - Dice"
    batch_size = 16
    sizes: ClassVar = {"train": 600, "validation": 200, "test": 200}

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(3)
        self.splits = {split: self._draw(count, random) for split, count in self.sizes.items()}

    @staticmethod
    def _draw(count: int, random: torch.Generator, size: int = 24) -> tuple[Tensor, Tensor]:
        """Return images with a disc and a square of similar size and equal brightness, and masks of the discs."""
        grid = torch.arange(size)
        centres = torch.randint(5, size - 5, (2, count, 2, 1, 1), generator=random)
        radii = torch.randint(3, 6, (2, count, 1, 1), generator=random)
        down, across = (grid[:, None] - centres[:, :, 0], grid[None, :] - centres[:, :, 1])
        disc = (down[0].square() + across[0].square() <= radii[0].square()).float()
        square = (torch.maximum(down[1].abs(), across[1].abs()) <= 0.8 * radii[1]).float()
        images = torch.maximum(disc, square) + 0.3 * torch.randn(count, size, size, generator=random)
        return images[:, None], disc[:, None]

    def build(self) -> nn.Module:
        return SmallUNet()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        images, masks = batch
        return (1.0 - self._dice(model(images).sigmoid(), masks)).mean()

    def score(self, model: nn.Module, split: str) -> float:
        images, masks = self.splits[split]
        return 1.0 - self._dice((model(images) > 0.0).float(), masks).mean().item()

    @staticmethod
    def _dice(guess: Tensor, masks: Tensor) -> Tensor:
        """Return the Dice coefficient of each image."""
        intersection, total = (guess * masks).sum((1, 2, 3)), (guess + masks).sum((1, 2, 3))
        return (2.0 * intersection + 1.0) / (total + 1.0)


class GAN(SampledTask):
    """Learn eight Gaussians on a ring with the non-saturating loss (Goodfellow et al., 2014)."""

    steps = 3000
    metric = "energy distance"
    batch_size = 128
    modes, latent = 8, 4

    def draw(self, count: int) -> Tensor:
        angles = 2.0 * math.pi * torch.randint(self.modes, (count, 1)) / self.modes
        return torch.cat([angles.cos(), angles.sin()], dim=1) + 0.05 * torch.randn(count, 2)

    def build(self) -> nn.Module:
        generator = mlp(self.latent, 64, 64, 2)
        discriminator = mlp(2, 64, 64, 1, activation=lambda: nn.LeakyReLU(0.2))
        return nn.ModuleDict({"discriminator": discriminator, "generator": generator})

    def networks(self, model: Any) -> dict[str, nn.Module]:
        return dict(model.items())

    def losses(self, model: Any, batch: Any) -> Iterator[tuple[str, Tensor]]:
        fake = model["generator"](torch.randn(len(batch), self.latent))
        real_points = batch.clone().requires_grad_()
        real = model["discriminator"](real_points)
        (slope,) = torch.autograd.grad(real.sum(), real_points, create_graph=True)
        penalty = 0.2 * slope.square().sum(1).mean()
        yield "discriminator", (softplus(-real) + softplus(model["discriminator"](fake.detach()))).mean() + penalty
        yield "generator", softplus(-model["discriminator"](fake)).mean()

    def score(self, model: Any, split: str) -> float:
        real = self.draw(self.score_size)
        fake = model["generator"](torch.randn(self.score_size, self.latent))
        within = torch.cdist(real, real).mean() + torch.cdist(fake, fake).mean()
        return math.sqrt(max((2.0 * torch.cdist(real, fake).mean() - within).item(), 0.0))


class Physics(SampledTask):
    """Solve the heat equation with a network (Raissi, Perdikaris and Karniadakis, 2019).

    The equation is u_t = a u_xx for x and t between 0 and 1, with u = sin(pi x) + sin(3 pi x) / 2 at t = 0 and u = 0 at
    both ends. The loss is the squared residual at random points, with the conditions as penalties.
    """

    steps = 5000
    metric = "relative error"
    batch_size = 128
    diffusivity = 0.05

    def draw(self, count: int) -> Tensor:
        return torch.rand(count, 2)

    def build(self) -> nn.Module:
        return mlp(2, 32, 32, 1, activation=nn.Tanh)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        points = batch.clone().requires_grad_()
        u = model(points)
        (slope,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        (curvature,) = torch.autograd.grad(slope[:, 0].sum(), points, create_graph=True)
        residual = slope[:, 1] - self.diffusivity * curvature[:, 0]
        ends = torch.stack([(batch[:, 0] > 0.5).float(), batch[:, 1]], dim=1)
        begin = torch.stack([batch[:, 0], torch.zeros(len(batch))], dim=1)
        conditions = model(ends).square().mean() + (model(begin) - self.solution(begin)).square().mean()
        return residual.square().mean() + 10.0 * conditions

    def score(self, model: nn.Module, split: str) -> float:
        points = self.draw(self.score_size)
        truth = self.solution(points)
        return float((model(points) - truth).norm() / truth.norm())

    def solution(self, points: Tensor) -> Tensor:
        """Return the exact solution."""
        x, t = points[:, :1], points[:, 1:]

        def wave(k: int) -> Tensor:
            return (k * math.pi * x).sin() * (-self.diffusivity * (k * math.pi) ** 2 * t).exp()

        return wave(1) + 0.5 * wave(3)


class EncoderDecoder(nn.Module):
    """A recurrent encoder, and a recurrent decoder that attends to its states."""

    def __init__(self, symbols: int, width: int = 64) -> None:
        super().__init__()
        self.symbols = symbols
        self.embedding = nn.Embedding(symbols + 1, width)
        self.encoder, self.decoder = (nn.GRU(width, width, batch_first=True) for _ in range(2))
        self.query = nn.Linear(width, width)
        self.head = nn.Linear(2 * width, symbols)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the logits of each target symbol, given those before it."""
        memory, state = self.encoder(self.embedding(source))
        begun = pad(target[:, :-1], (1, 0), value=self.symbols)  # an extra symbol marks the beginning
        states, _ = self.decoder(self.embedding(begun), state)
        weights = (self.query(states) @ memory.transpose(1, 2) / memory.shape[2] ** 0.5).softmax(2)
        return self.head(torch.cat([states, weights @ memory], dim=2))


class SequenceToSequence(SampledTask):
    """Sort eight symbols, a tenth of which are misread, with an encoder and a decoder."""

    steps = 1500
    metric = "cross-entropy per symbol in nats"
    symbols, length, misread = 10, 8, 0.1

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        right, other = torch.randint(self.symbols, (2, count, self.length))
        return torch.where(torch.rand(count, self.length) < self.misread, other, right), right.sort(1).values

    def build(self) -> nn.Module:
        return EncoderDecoder(self.symbols)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        source, target = batch
        return cross_entropy(model(source, target).flatten(0, 1), target.flatten())


class Adding(SampledTask):
    """Add the two marked numbers of a sequence (Hochreiter and Schmidhuber, 1997)."""

    steps = 3000
    metric = "root mean squared error"
    length, width = 20, 32

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        numbers, half = torch.rand(count, self.length), self.length // 2
        places = torch.stack([torch.randint(half, (count,)), torch.randint(half, self.length, (count,))], dim=1)
        marks = torch.zeros_like(numbers).scatter_(1, places, 1.0)
        return torch.stack([numbers, marks], dim=2), (numbers * marks).sum(1, keepdim=True)

    def build(self) -> nn.Module:
        return nn.ModuleDict({"lstm": nn.LSTM(2, self.width, batch_first=True), "head": nn.Linear(self.width, 1)})

    def loss(self, model: Any, batch: Any) -> Tensor:
        sequence, total = batch
        states, _ = model["lstm"](sequence)
        return mse_loss(model["head"](states[:, -1]), total)

    def score(self, model: nn.Module, split: str) -> float:
        return math.sqrt(super().score(model, split))
