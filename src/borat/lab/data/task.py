"""Tasks, which every loader returns: splits, their description, and batches of them."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from borat._checks import check_count
from borat.lab.data.augment import Augmentation, normalise
from borat.lab.data.noise import any_class, switch_labels
from borat.lab.data.options import Options
from borat.lab.data.randomness import Purpose, generator
from borat.lab.data.splits import limit


class Batch(NamedTuple):
    """Inputs of the model, ``model(*inputs)``, and the labels."""

    inputs: tuple[Tensor, ...]
    labels: Tensor


@dataclass(frozen=True)
class Plan:
    """Choice of the batches of a split."""

    batch_size: int
    seed: int = 0
    epoch: int = 0
    start: int = 0
    shuffle: bool = False
    augment: bool = False
    device: torch.device | str | None = None
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_count("world_size", self.world_size)
        for name in ("seed", "epoch", "start"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)!r}")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be between 0 and {self.world_size - 1}, got {self.rank!r}")

    def share(self, count: int) -> Tensor:
        """The positions, in a batch of ``count`` examples, that this process handles.

        In training, ranks must hold equally many, or averaging their gradients would not give the batch's: the first
        examples of the batch are taken twice to fill up. An evaluation counts every example once.
        """
        total = -(-count // self.world_size) * self.world_size if self.shuffle else count
        return torch.arange(self.rank, total, self.world_size) % count


class Split(Protocol):
    """One of the training, validation and test sets."""

    def __len__(self) -> int: ...

    def batches(self, plan: Plan) -> Iterator[Batch]: ...

    def to(self, device: torch.device | str) -> Split: ...


class MemorySplit(ABC):
    """A split whose examples can be picked by index. Its tensors stay on the device they are moved to."""

    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, plan: Plan) -> Iterator[Batch]:
        """All examples once, the last batch possibly smaller. The order depends only on the seed and the epoch."""
        order = torch.arange(len(self))
        if plan.shuffle:
            order = torch.randperm(len(self), generator=generator(Purpose.ORDER, plan.seed, plan.epoch))
        device = torch.device(plan.device) if plan.device is not None else self.labels.device
        for number, chosen in enumerate(torch.split(order, plan.batch_size)):
            if number < plan.start:
                continue
            share = plan.share(len(chosen))
            if len(share):
                indices = chosen[share].to(self.labels.device)
                inputs = self.inputs(indices, device, self.draw(len(chosen), number, plan, share))
                yield Batch(inputs, self.labels[indices].to(device))

    def draw(self, count: int, number: int, plan: Plan, share: Tensor) -> Any:
        """The random numbers of this process's share of batch ``number``; None where there are none."""
        return None

    @abstractmethod
    def inputs(self, indices: Tensor, device: torch.device, draw: Any) -> tuple[Tensor, ...]:
        """The model's inputs for these examples."""

    def to(self, device: torch.device | str) -> MemorySplit:
        """The same split with its tensors on ``device``."""
        tensors = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        moved = {name: value.to(device) for name, value in tensors.items() if isinstance(value, Tensor)}
        return type(self)(**{**tensors, **moved})


@dataclass(eq=False)
class ImageSplit(MemorySplit):
    """Images as bytes, (examples, channels, height, width): normalised, and augmented if asked, batch by batch."""

    images: Tensor
    labels: Tensor
    mean: Tensor
    std: Tensor
    augmentation: Augmentation
    flatten: bool = False

    def draw(self, count: int, number: int, plan: Plan, share: Tensor) -> Any:
        if not plan.augment:
            return None
        source = generator(Purpose.AUGMENTATION, plan.seed, plan.epoch, number)
        return self.augmentation.draw(count, source)[:, share]

    def inputs(self, indices: Tensor, device: torch.device, draw: Any) -> tuple[Tensor, ...]:
        images = self.images[indices].to(device)
        if draw is not None:
            images = self.augmentation.apply(images, draw.to(device))
        images = normalise(images, self.mean.to(device), self.std.to(device))
        return (images.flatten(1) if self.flatten else images,)


@dataclass(eq=False)
class VectorSplit(MemorySplit):
    """Feature vectors, used as they are."""

    features: Tensor
    labels: Tensor

    def inputs(self, indices: Tensor, device: torch.device, draw: Any) -> tuple[Tensor, ...]:
        return (self.features[indices].to(device),)


@dataclass(frozen=True)
class Description:
    """Description of the loaded data. ``dataclasses.asdict`` of it can be written as JSON.

    ``mean`` and ``std`` are those of the training split's channels, for pixels between 0 and 1. ``num_classes`` is 0
    where the labels are real numbers; with ``sequences`` it is the number of bits in a step. ``switched_labels`` counts
    the training labels that the noise changed. ``alphabet`` has the characters of text, in the order of their numbers;
    ``checksum`` tells a user's own data from others.
    """

    name: str
    num_classes: int
    input_shape: tuple[int, ...]
    sizes: dict[str, int]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: bool = False
    sequences: bool = False
    label_noise: float = 0.0
    switched_labels: int = 0
    vocabulary_size: int = 0
    alphabet: str = ""
    checksum: str = ""
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """A data set ready to train on.

    Where the test labels are not public (Tiny ImageNet, ImageNet), there is no split ``"test"``. ``superclasses[c]`` is
    the super-class of class ``c`` where there are such (CIFAR-100). ``vocabulary`` and ``embeddings`` belong to text:
    the words, and a vector for each if a file of vectors was given.
    """

    description: Description
    splits: Mapping[str, Split]
    seed: int = 0
    superclasses: Tensor | None = None
    vocabulary: tuple[str, ...] = ()
    embeddings: Tensor | None = None

    def batches(
        self,
        split: str,
        batch_size: int,
        *,
        epoch: int = 0,
        start: int = 0,
        seed: int | None = None,
        shuffle: bool | None = None,
        augment: bool | None = None,
        device: torch.device | str | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> Iterator[Batch]:
        """The batches of one epoch, from batch ``start`` on.

        The order depends only on the seed and the epoch, the augmentation only on those and on the number of the
        batch: ``batches(..., start=k)`` gives bit for bit what an iteration from 0 gives after ``k`` batches.

        Args:
            split: ``"train"``, ``"validation"`` or ``"test"``.
            batch_size: over all processes. The last batch has what is left: nothing is dropped.
            epoch: 0, 1, …: each has another order and other augmentations.
            start: the number of the first batch, to resume in the middle of an epoch.
            seed: the task's own unless given.
            shuffle: whether to shuffle; only the training split unless given.
            augment: whether to augment; as ``load`` was told for the training split, never others, unless given.
            device: where the batches are made; where the split is unless given.
            rank: this process, of ``world_size``. Together the processes see the batches of a single one.
            world_size: the number of processes.
        """
        training = split == "train"
        plan = Plan(
            batch_size,
            seed=self.seed if seed is None else seed,
            epoch=epoch,
            start=start,
            shuffle=training if shuffle is None else shuffle,
            augment=training and self.description.augment if augment is None else augment,
            device=device,
            rank=rank,
            world_size=world_size,
        )
        return self.split(split).batches(plan)

    def split(self, name: str) -> Split:
        """The split of this name."""
        if name not in self.splits:
            raise ValueError(f"{self.description.name} has no split {name!r}, only {', '.join(self.splits)}")
        return self.splits[name]

    def num_batches(self, split: str, batch_size: int) -> int:
        """Return the number of batches in an epoch."""
        return -(-len(self.split(split)) // batch_size)

    def to(self, device: torch.device | str) -> Task:
        """The same task with the tensors of its splits on ``device``, which spares a copy for each batch."""
        return dataclasses.replace(self, splits={name: split.to(device) for name, split in self.splits.items()})


def vector_task(
    name: str,
    features: Tensor,
    labels: Tensor,
    rows: Mapping[str, Tensor],
    options: Options,
    *,
    classes: int,
    sources: tuple[str, ...],
    **about: Any,
) -> Task:
    """Return a task of feature vectors: the rows of each split, the training rows limited and their labels noisy.

    Args:
        name: of the data set.
        features: of all examples, one row each.
        labels: of all examples.
        rows: the examples of the splits train, validation and test.
        options: how many training examples to keep, and how much label noise to add.
        classes: 0 for labels that are no classes, which have no noise.
        sources: where the data are from.
        **about: further keys of the :class:`Description`.
    """
    rows = {**rows, "train": limit(rows["train"], options.train_limit)}
    answers = {split: labels[chosen] for split, chosen in rows.items()}
    switched = 0
    if classes:
        noisy = switch_labels(answers["train"], options.label_noise, any_class(classes), options.seed)
        answers["train"], switched = noisy
    splits = {split: VectorSplit(features[chosen], answers[split]) for split, chosen in rows.items()}
    description = Description(
        name,
        **{"num_classes": classes, "input_shape": (features.shape[-1],), **about},
        sizes={split: len(chosen) for split, chosen in rows.items()},
        label_noise=options.label_noise,
        switched_labels=switched,
        sources=dict.fromkeys(splits, sources),
    )
    return Task(description, splits, options.seed)
