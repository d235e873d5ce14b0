"""Models that predict the next character of a text: a small GPT and a neural n-gram."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

HEAD = 32
"""Number of channels per attention head if the width is a multiple of it; otherwise there is one head."""
INITIAL_STD = 0.02
"""Standard deviation of embeddings and weights, as in GPT-2."""
EMBEDDING = 16
"""Number of channels of a character in an n-gram."""


class GPT(nn.Module):
    """A causal transformer (Vaswani et al., 2017) in the form of GPT-2 (Radford et al., 2019).

    Blocks normalise first, positions are learned, and the classifier shares no weights with the embeddings. The blocks
    have 12 ``layers`` ``width``² weights.

    Args:
        layers: number of blocks.
        width: number of channels of a character.
        input_shape: (characters in a window,), the longest context.
        dropout: dropout probability of the embeddings, and at the end of each half of a block.
    """

    def __init__(
        self, layers: int, width: int, *, input_shape: Sequence[int], classes: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.characters = nn.Embedding(classes, width)
        self.positions = nn.Embedding(input_shape[0], width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(TransformerBlock(width, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)
        for name, module in self.named_modules():  # weights that end a residual branch shrink with their number
            if isinstance(module, nn.Linear | nn.Embedding):
                ends_branch = name.endswith(("attention.project", "mlp.2"))
                nn.init.normal_(module.weight, std=INITIAL_STD / (2 * layers) ** 0.5 if ends_branch else INITIAL_STD)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, characters: Tensor) -> Tensor:
        """Return scores of shape (batch, characters, classes), each from its character and those before it."""
        positions = torch.arange(characters.shape[1], device=characters.device)
        x = self.dropout(self.characters(characters) + self.positions(positions))
        return self.classifier(self.norm(self.blocks(x)))


class TransformerBlock(nn.Module):
    """Attention, then an MLP with a hidden layer four times as wide; both are pre-normalised residual branches."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class CausalAttention(nn.Module):
    """Multi-head attention of each character to itself and those before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD if width % HEAD == 0 else 1
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.project(attended.transpose(1, 2).reshape(batch, length, width))


class NGram(nn.Module):
    """An MLP on the embeddings of the last characters (Bengio et al., 2003): trains in seconds, a GPT in minutes.

    Args:
        context: number of characters that a prediction depends on; windows are padded with zeros at the start.
        width: width of the hidden layer.
        input_shape: (characters in a window,).
        dropout: dropout probability of the hidden layer.
    """

    def __init__(
        self, context: int, width: int, *, input_shape: Sequence[int], classes: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.context = context
        self.characters = nn.Embedding(classes, EMBEDDING)
        self.layers = nn.Sequential(
            nn.Linear(context * EMBEDDING, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, classes)
        )

    def forward(self, characters: Tensor) -> Tensor:
        """Return scores of shape (batch, characters, classes), each from its character and those before it."""
        embedded = functional.pad(self.characters(characters), (0, 0, self.context - 1, 0))
        return self.layers(embedded.unfold(1, self.context, 1).flatten(2))
