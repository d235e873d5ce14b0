"""Label noise: labels switched at random, among all classes or within super-classes."""

from __future__ import annotations

import torch
from torch import Tensor

from borat.lab.data.errors import LabelError
from borat.lab.data.randomness import Purpose, generator


def switch_labels(labels: Tensor, probability: float, families: Tensor, seed: int) -> tuple[Tensor, int]:
    """Switch each label with ``probability`` to another class of its family; return the labels and how many changed.

    The original label is never drawn again. The paper speaks of "switching the label with probability p to a random
    class label in the same super class", and a label that stays is not switched: this way p is the expected share of
    wrong labels, whatever the size of the family. (Drawing among all k classes of the family would make it p(1 - 1/k),
    0.4 instead of 0.5 for CIFAR-100's families of five.) A class alone in its family keeps its label.

    Args:
        labels: of the training examples.
        probability: p.
        families: for each class the number of its super-class; all the same where any class may be drawn.
        seed: of the noise. For the same seed, the labels switched at a small p are also switched at a larger one.
    """
    source = generator(Purpose.LABEL_NOISE, seed)
    coin, choice = torch.rand(2, len(labels), generator=source, dtype=torch.float64)
    by_family = torch.argsort(families, stable=True)
    place = torch.argsort(by_family)  # of each class in by_family
    sizes = torch.bincount(families)
    starts = sizes.cumsum(0) - sizes
    size, start = sizes[families[labels]], starts[families[labels]]
    steps = 1 + (choice * (size - 1)).long()  # 1 … size - 1 places further round the family
    other = by_family[start + (place[labels] - start + steps) % size]
    noisy = torch.where(coin < probability, other, labels)
    return noisy, int((noisy != labels).sum())


def any_class(num_classes: int) -> Tensor:
    """The families of a data set without super-classes: a single one."""
    return torch.zeros(num_classes, dtype=torch.int64)


def families_of(fine: Tensor, coarse: Tensor, num_classes: int, where: str) -> Tensor:
    """The super-class of each class, from examples that have both labels."""
    families = torch.full((num_classes,), -1)
    families[fine] = coarse
    if not torch.equal(families[fine], coarse):
        row = int((families[fine] != coarse).nonzero()[0])
        raise LabelError(f"{where}: class {int(fine[row])} appears with more than one super-class")
    families[families < 0] = int(coarse.max()) + 1  # classes that no example has
    return families
