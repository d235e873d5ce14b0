"""Tasks, which every loader returns: splits, their description, and batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from borat._checks import check_count
from borat.lab.config import RunConfig
from borat.lab.data.sampling import Purpose, make_generator, switch_labels
from borat.lab.files import pick


class Options(RunConfig):
    """Configuration of a run, with the folder or file of its data."""

    data_dir: Path | None = None


class Batch(NamedTuple):
    """Inputs of the model, called as ``model(*inputs)``, and labels."""

    inputs: tuple[Tensor, ...]
    labels: Tensor


@dataclass(frozen=True)
class Plan:
    """Batches of an epoch, and the share of this process in them.

    Args:
        batch_size: number of examples over all processes. The last batch may be smaller: no example is dropped.
        epoch: 0, 1, …; each epoch has its own order and augmentations.
        start: number of the first batch, to resume in the middle of an epoch.
        seed: seed of the order and the augmentations; by default that of the task.
        shuffle: by default, only the training split is shuffled.
        augment: by default, only the training split is augmented, and only if the data set is.
        rank: rank of this process. Together, the processes see the same batches as a single process.
        world_size: number of processes.
    """

    batch_size: int
    epoch: int = 0
    start: int = 0
    seed: int = 0
    shuffle: bool = False
    augment: bool = False
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_count("world_size", self.world_size)
        for name in ("seed", "epoch", "start"):
            check_count(name, getattr(self, name), minimum=0)
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be between 0 and {self.world_size - 1}, got {self.rank!r}")

    def share(self, count: int) -> Tensor:
        """Return the positions of this process's examples in a batch of ``count`` examples.

        In training, all ranks need the same number of examples, or averaging their gradients would not give the
        gradient of the batch: the first examples are repeated as padding. Evaluation counts every example once.
        """
        total = -(-count // self.world_size) * self.world_size if self.shuffle else count
        return torch.arange(self.rank, total, self.world_size) % count

    def cut(self, order: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Cut ``order`` into batches; for each, yield its number, its examples and the share of this process."""
        for number, chosen in enumerate(torch.split(order, self.batch_size)):
            share = self.share(len(chosen))
            if number >= self.start and len(share):
                yield number, chosen, share


class Split(Protocol):
    """One of the training, validation and test sets."""

    sources: tuple[str, ...]

    def __len__(self) -> int: ...

    def batches(self, plan: Plan) -> Iterator[Batch]: ...

    def to(self, device: torch.device | str) -> Split: ...


@dataclass(eq=False)
class MemorySplit:
    """A split in memory: labels and tensors with one entry per example.

    ``transform`` converts the tensors of a batch to inputs of the model. It augments them if it is given random numbers
    of shape (numbers, examples), as ``draw`` returns them for a number of examples.
    """

    labels: Tensor
    sources: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    transform: Callable[[tuple[Tensor, ...], Tensor | None], tuple[Tensor, ...]] = lambda tensors, draws: tensors
    draw: Callable[[int, torch.Generator], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, plan: Plan) -> Iterator[Batch]:
        """Yield all examples once; the last batch may be smaller. The order depends only on the seed and the epoch."""
        order = torch.arange(len(self))
        if plan.shuffle:
            order = torch.randperm(len(self), generator=make_generator(Purpose.ORDER, plan.seed, plan.epoch))
        for number, chosen, share in plan.cut(order):
            draws = None
            if plan.augment and self.draw is not None:
                generator = make_generator(Purpose.AUGMENTATION, plan.seed, plan.epoch, number)
                draws = self.draw(len(chosen), generator)
            batch = self.pick(chosen[share].to(self.labels.device))
            yield Batch(self.transform(batch.tensors, None if draws is None else draws[:, share]), batch.labels)

    def pick(self, indices: Tensor) -> MemorySplit:
        """Return a split with the examples at ``indices``."""
        tensors = tuple(tensor[indices] for tensor in self.tensors)
        return replace(self, labels=self.labels[indices], tensors=tensors)

    def to(self, device: torch.device | str) -> MemorySplit:
        """Return the same split on ``device``."""
        return replace(self, labels=self.labels.to(device), tensors=tuple(tensor.to(device) for tensor in self.tensors))


@dataclass(frozen=True)
class Description:
    """Description of the loaded data; ``dataclasses.asdict`` converts it to a form that JSON can store.

    ``mean`` and ``std`` are those of the training split's channels, for pixels between 0 and 1. With ``sequences``,
    ``num_classes`` is the number of bits in a step. ``switched_labels`` counts the training labels that noise changed.
    ``alphabet`` holds the characters of a text in the order of their indices. ``checksum`` identifies user data.
    """

    name: str
    num_classes: int
    input_shape: tuple[int, ...]
    sizes: dict[str, int]
    sources: dict[str, tuple[str, ...]]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: bool = False
    sequences: bool = False
    label_noise: float = 0.0
    switched_labels: int = 0
    alphabet: str = ""
    checksum: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """A data set ready to train on.

    Data sets whose test labels are not public (Tiny ImageNet, ImageNet) have no split ``"test"``. SNLI has a
    ``vocabulary``, and ``embeddings`` of its words if a file of word vectors was given.
    """

    description: Description
    splits: Mapping[str, Split]
    seed: int = 0
    vocabulary: tuple[str, ...] = ()
    embeddings: Tensor | None = None

    def batches(self, split: str, batch_size: int, **choices: Any) -> Iterator[Batch]:
        """Return the batches of one epoch of a split; ``choices`` are further fields of :class:`Plan`.

        The order depends only on the seed and the epoch, the augmentation also on the number of the batch.
        ``batches(..., start=k)`` is therefore bit-identical to an iteration from 0 without its first ``k`` batches.
        """
        training = split == "train"
        usual = {"seed": self.seed, "shuffle": training, "augment": training and self.description.augment}
        return self.split(split).batches(Plan(batch_size, **{**usual, **choices}))

    def split(self, name: str) -> Split:
        """Return the split of this name."""
        return self.splits[pick(f"split of {self.description.name}", name, self.splits)]

    def num_batches(self, split: str, batch_size: int) -> int:
        """Return the number of batches in an epoch."""
        return -(-len(self.split(split)) // batch_size)

    def to(self, device: torch.device | str) -> Task:
        """Return the same task with its splits on ``device``, where batches are then assembled."""
        return replace(self, splits={name: split.to(device) for name, split in self.splits.items()})


def make_task(
    name: str,
    splits: Mapping[str, Split],
    options: Options,
    *,
    input_shape: tuple[int, ...],
    classes: int,
    families: Tensor | None = None,
    notes: tuple[str, ...] = (),
    **description: Any,
) -> Task:
    """Return a task with these splits, after applying the label noise in ``options``.

    Args:
        name: name of the data set.
        splits: train, validation and, if its labels are public, test.
        options: options of the loader.
        input_shape: shape of an input without the batch dimension; empty if it varies.
        classes: number of classes.
        families: super-class of each class; label noise stays within a super-class.
        notes: notes for the description.
        **description: further fields of :class:`Description`.
    """
    train, switched = splits["train"], 0
    if isinstance(train, MemorySplit) and options.label_noise:
        families = torch.zeros(classes, dtype=torch.int64) if families is None else families
        noisy = switch_labels(train.labels, options.label_noise, families, options.seed)
        switched = int((noisy != train.labels).sum())
        train = replace(train, labels=noisy)
    if "test" not in splits:
        notes = (*notes, "the labels of the test set are not public")
    about = Description(
        name,
        classes,
        input_shape,
        sizes={key: len(split) for key, split in splits.items()},
        sources={key: split.sources for key, split in splits.items()},
        label_noise=options.label_noise,
        switched_labels=switched,
        notes=notes,
        **description,
    )
    return Task(about, {**splits, "train": train}, options.seed)
