"""A causal transformer for text (Vaswani et al., 2017), in the form of GPT-2 (Radford et al., 2019)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from borat._checks import check_count
from borat.lab.models.common import check_dropout

HEAD = 32
"""Channels of an attention head, where the width is a multiple of it; else there is one head."""

INITIAL_STD = 0.02
"""Of embeddings and weights, as in GPT-2."""


class GPT(nn.Module):
    """Blocks that normalise first, learned positions, and scores that share no weights with the embeddings.

    It has 12 ``layers`` ``width``² weights in its blocks.

    Args:
        layers: the number of blocks.
        width: channels of a character.
        input_shape: (characters in a window,): the most that it can look back on.
        classes: the number of different characters.
        dropout: of the embeddings, and at the end of each half of a block.
    """

    def __init__(
        self, layers: int, width: int, *, input_shape: Sequence[int], classes: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_dropout(dropout)
        window = window_size(input_shape)
        for name, value in (("layers", layers), ("width", width), ("classes", classes)):
            check_count(name, value)
        self.characters = nn.Embedding(classes, width)
        self.positions = nn.Embedding(window, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(TransformerBlock(width, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)
        self._initialise(layers)

    def _initialise(self, layers: int) -> None:
        """Small weights; those that end a branch are smaller the more branches are added up."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                ends_branch = name.endswith(("attention.project", "mlp.2"))
                nn.init.normal_(module.weight, std=INITIAL_STD / (2 * layers) ** 0.5 if ends_branch else INITIAL_STD)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, characters: Tensor) -> Tensor:
        """Scores of shape (batch, characters, classes), each from its character and those before."""
        places = torch.arange(characters.shape[1], device=characters.device)
        x = self.dropout(self.characters(characters) + self.positions(places))
        scores: Tensor = self.classifier(self.norm(self.blocks(x)))
        return scores


class TransformerBlock(nn.Module):
    """Attend, then a hidden layer four times as wide; each on the normalised input and added to it."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        out: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return out


class CausalAttention(nn.Module):
    """Each character looks at itself and at those before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD if width % HEAD == 0 else 1
        self.look = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        apart = self.look(x).view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = apart.permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        projected: Tensor = self.project(found.transpose(1, 2).reshape(batch, length, width))
        return projected


def window_size(input_shape: Sequence[int]) -> int:
    if len(input_shape) != 1:
        raise ValueError(f"input_shape must be (characters in a window,), got {tuple(input_shape)!r}")
    check_count("input_shape's characters", input_shape[0])
    return input_shape[0]
