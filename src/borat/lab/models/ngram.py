"""A multi-layer perceptron on the last characters (Bengio et al., 2003): seconds where a transformer takes minutes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from borat._checks import check_count
from borat.lab.models.common import check_dropout
from borat.lab.models.gpt import window_size

EMBEDDING = 16
"""Numbers that stand for a character."""


class NGram(nn.Module):
    """The embeddings of the last characters, side by side, through one rectified hidden layer.

    Args:
        context: how many of the last characters it looks at; before the first of a window there are zeros.
        width: of the hidden layer.
        input_shape: (characters in a window,).
        classes: the number of different characters.
        dropout: of the hidden layer.
    """

    def __init__(
        self, context: int, width: int, *, input_shape: Sequence[int], classes: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_dropout(dropout)
        window_size(input_shape)
        for name, value in (("context", context), ("width", width), ("classes", classes)):
            check_count(name, value)
        self.context = context
        self.characters = nn.Embedding(classes, EMBEDDING)
        self.layers = nn.Sequential(
            nn.Linear(context * EMBEDDING, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, classes)
        )

    def forward(self, characters: Tensor) -> Tensor:
        """Scores of shape (batch, characters, classes), each from its character and those before."""
        embedded = functional.pad(self.characters(characters), (0, 0, self.context - 1, 0))
        scores: Tensor = self.layers(embedded.unfold(1, self.context, 1).flatten(2))
        return scores
