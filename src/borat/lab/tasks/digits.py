"""Tasks on handwritten digits: autoencoders, denoising diffusion, embeddings, distillation and fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from borat.lab.tasks.task import DataTask, minibatches, mlp

HELD_OUT = 300
"""Number of digits in each of the validation and test splits."""


@lru_cache
def load_digits() -> dict[str, tuple[Tensor, ...]]:
    """Return the splits of scikit-learn's digits: rows of 64 pixels between 0 and 1, and their classes.

    >>> images, labels = load_digits()["train"]
    >>> images.shape, labels.shape
    (torch.Size([1197, 64]), torch.Size([1197]))
    """
    from sklearn import datasets

    found = datasets.load_digits()
    images, labels = torch.tensor(found.data, dtype=torch.float32) / 16.0, torch.tensor(found.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    parts = torch.split(order, [len(order) - 2 * HELD_OUT, HELD_OUT, HELD_OUT])
    return {split: (images[i], labels[i]) for split, i in zip(("train", "validation", "test"), parts, strict=True)}


class DigitsTask(DataTask):
    """A task on the digits; a batch is a tensor of images and one of labels."""

    def __init__(self) -> None:
        self.splits = load_digits()


class Autoencoder(DigitsTask):
    """Reconstruct digits from eight numbers."""

    steps = 2000
    metric = "squared error per pixel"

    def build(self) -> nn.Module:
        return nn.Sequential(mlp(64, 128, 64, 8), mlp(8, 64, 128, 64))

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        images, _ = batch
        return functional.mse_loss(model(images), images)


class VAE(DigitsTask):
    """Maximise the evidence lower bound of a variational autoencoder (Kingma and Welling, 2014)."""

    steps = 2000
    metric = "negative ELBO in nats"
    repeats = 8

    def build(self) -> nn.Module:
        return nn.ModuleDict({"encoder": mlp(64, 128, 2 * 8), "decoder": mlp(8, 128, 64)})

    def loss(self, model: Any, batch: Any) -> Tensor:
        images, _ = batch
        mean, log_variance = model["encoder"](images).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        error = functional.binary_cross_entropy_with_logits(model["decoder"](code), images, reduction="sum")
        divergence: Tensor = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1.0).sum()
        return (error + divergence) / len(images)


class Diffusion(DigitsTask):
    """Predict the noise in noisy digits (Ho, Jain and Abbeel, 2020), with a cosine noise schedule."""

    steps = 4000
    metric = "squared error of the noise"
    batch_size, repeats = 128, 16
    frequencies = math.pi * 2.0 ** torch.arange(8)

    def build(self) -> nn.Module:
        return mlp(64 + 2 * len(self.frequencies), 256, 256, 64, activation=nn.SiLU)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        images = 2.0 * batch[0] - 1.0
        time, noise = torch.rand(len(images), 1), torch.randn_like(images)
        angle, phases = 0.5 * math.pi * (0.02 + 0.96 * time), time * self.frequencies
        noisy = angle.cos() * images + angle.sin() * noise
        return functional.mse_loss(model(torch.cat([noisy, phases.sin(), phases.cos()], dim=1)), noise)


class Contrastive(DigitsTask):
    """Match two views of an image against those of other images: InfoNCE, as in SimCLR (Chen et al., 2020)."""

    steps = 2000
    metric = "InfoNCE in nats"
    batch_size, repeats = 100, 10
    temperature = 0.1

    def build(self) -> nn.Module:
        return mlp(64, 128, 128, 32)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        first, second = (functional.normalize(model(self._distort(batch[0]))) for _ in range(2))
        similarity, same = first @ second.T / self.temperature, torch.arange(len(first))
        return 0.5 * (functional.cross_entropy(similarity, same) + functional.cross_entropy(similarity.T, same))

    def score(self, model: nn.Module, split: str) -> float:
        parts = self.splits[split][0].chunk(HELD_OUT // self.batch_size)
        losses = [self.loss(model, (part,)).item() for part in parts for _ in range(self.repeats)]
        return sum(losses) / len(losses)

    @staticmethod
    def _distort(images: Tensor) -> Tensor:
        """Return images shifted by up to a pixel, with noise and random pixels set to zero."""
        shifts = tuple(int(torch.randint(3, ())) - 1 for _ in range(2))
        moved = images.view(-1, 8, 8).roll(shifts, dims=(1, 2)).reshape(images.shape)
        return (moved + 0.2 * torch.randn_like(moved)) * (torch.rand_like(moved) > 0.2)


class Triplet(DigitsTask):
    """Embed digits so that each is closer to its class than to other classes (Schroff et al., 2015)."""

    steps = 1500
    metric = "wrong triplets in %"

    def build(self) -> nn.Module:
        return mlp(64, 64, 64, 8)

    def batches(self, model: nn.Module) -> Iterator[Any]:
        while True:
            yield self._draw("train", self.batch_size)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        anchor, same, other = (model(images) for images in batch)
        return functional.triplet_margin_loss(anchor, same, other, margin=1.0)

    def score(self, model: nn.Module, split: str) -> float:
        anchor, same, other = (model(images) for images in self._draw(split, 20_000))
        wrong = (anchor - same).norm(dim=1) >= (anchor - other).norm(dim=1)
        return float(100.0 * wrong.float().mean())

    def _draw(self, split: str, count: int) -> tuple[Tensor, ...]:
        """Return anchors and, for each, an image of the same class and one of another class."""
        images, labels = self.splits[split]
        anchor = torch.randint(len(images), (count,))
        same_class = labels[anchor][:, None] == labels
        same = (torch.rand(count, len(images)) * same_class).argmax(1)
        other = (torch.rand(count, len(images)) * ~same_class).argmax(1)
        return images[anchor] + 0.1 * torch.randn(count, 64), images[same], images[other]


def pretrained(*widths: int, steps: int, seed: int) -> nn.Module:
    """Return a perceptron that was trained to classify the digits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = mlp(*widths)
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.002)
        for images, labels in islice(minibatches(64, *load_digits()["train"]), steps):
            optimizer.zero_grad()
            functional.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return network


class Distillation(DigitsTask):
    """Train a small network on the outputs of a large one (Hinton, Vinyals and Dean, 2015)."""

    steps = 1500
    metric = "divergence from the teacher"
    temperature = 4.0

    def __init__(self) -> None:
        super().__init__()
        self.teacher = pretrained(64, 256, 256, 10, steps=200, seed=4).requires_grad_(False)

    def build(self) -> nn.Module:
        return mlp(64, 16, 10)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        student, teacher = (
            functional.log_softmax(network(batch[0]) / self.temperature, 1) for network in (model, self.teacher)
        )
        return self.temperature**2 * functional.kl_div(student, teacher, log_target=True, reduction="batchmean")


class FineTuning(DigitsTask):
    """Fine-tune a network that was trained on the digits on a few mirrored and noisy ones."""

    steps = 1500
    metric = "cross-entropy in nats"
    batch_size, repeats = 40, 10
    examples = 400

    def __init__(self) -> None:
        images, labels = load_digits()["train"]
        self.splits = load_digits() | {"train": (images[: self.examples], labels[: self.examples])}
        self.start = pretrained(64, 128, 128, 10, steps=300, seed=5).state_dict()

    def build(self) -> nn.Module:
        model = mlp(64, 128, 128, 10)
        model.load_state_dict(self.start)
        return model

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        images, labels = batch
        mirrored = images.view(-1, 8, 8).flip(2).flatten(1)
        return functional.cross_entropy(model(mirrored + 0.3 * torch.randn_like(mirrored)), labels)
