"""InferSent: a Bi-LSTM with max pooling and a classifier for pairs of sentences (Conneau et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from borat._checks import check_count, check_flag
from borat.lab.models.common import check_dropout


class InferSent(nn.Module):
    """Encodes a premise and a hypothesis by one Bi-LSTM and classifies the pair.

    The word embeddings are frozen: a buffer, so that they are saved with the model but are no parameters, which
    optimizers move and constraints measure.

    Args:
        hidden: units of the LSTM in each direction.
        input_shape: (words in the vocabulary, dimension of an embedding).
        classes: the number of scores.
        embeddings: the matrix of ``input_shape``; random if left out, for trials without GloVe.
        fully_connected: the width of the classifier's two hidden layers.
        nonlinear: a tanh after each hidden layer; the published code has none by default.
        dropout: before each layer of the classifier.
    """

    embeddings: Tensor

    def __init__(
        self,
        hidden: int = 2048,
        *,
        input_shape: Sequence[int],
        classes: int = 3,
        embeddings: Tensor | None = None,
        fully_connected: int = 512,
        nonlinear: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if len(input_shape) != 2:
            raise ValueError(f"input_shape must be (words, dimension) of the embeddings, got {tuple(input_shape)!r}")
        if embeddings is None:
            embeddings = torch.randn(*input_shape)
        elif embeddings.shape != tuple(input_shape):
            raise ValueError(
                f"embeddings must have the shape {tuple(input_shape)} of input_shape, got {tuple(embeddings.shape)}"
            )
        for name, value in (("classes", classes), ("hidden", hidden), ("fully_connected", fully_connected)):
            check_count(name, value)
        check_flag("nonlinear", nonlinear)
        check_dropout(dropout)
        self.register_buffer("embeddings", embeddings.detach().clone())
        self.encoder = nn.LSTM(input_shape[1], hidden, batch_first=True, bidirectional=True)
        activation = nn.Tanh if nonlinear else nn.Identity
        self.classifier = nn.Sequential(
            *(nn.Dropout(dropout), nn.Linear(4 * 2 * hidden, fully_connected), activation()),
            *(nn.Dropout(dropout), nn.Linear(fully_connected, fully_connected), activation()),
            *(nn.Dropout(dropout), nn.Linear(fully_connected, classes)),
        )

    def forward(
        self, premise: Tensor, premise_lengths: Tensor, hypothesis: Tensor, hypothesis_lengths: Tensor
    ) -> Tensor:
        """The scores of pairs of sentences: word indices of shape (batch, words), padded by any index, and lengths."""
        u, v = self.encode(premise, premise_lengths), self.encode(hypothesis, hypothesis_lengths)
        scores: Tensor = self.classifier(torch.cat((u, v, (u - v).abs(), u * v), 1))
        return scores

    def encode(self, words: Tensor, lengths: Tensor) -> Tensor:
        """The largest value of each of the LSTM's outputs over the words of a sentence; padding counts for nothing."""
        lengths = lengths.cpu()  # where packing needs them
        if lengths.shape != words.shape[:1] or not 1 <= int(lengths.min()) <= int(lengths.max()) <= words.shape[1]:
            raise ValueError(
                f"lengths must hold a number of words from 1 to {words.shape[1]} for each of {len(words)} sentences, "
                f"got {lengths.tolist()}"
            )
        packed = pack_padded_sequence(
            functional.embedding(words, self.embeddings), lengths, batch_first=True, enforce_sorted=False
        )
        outputs, _ = pad_packed_sequence(self.encoder(packed)[0], batch_first=True, padding_value=-torch.inf)
        return outputs.amax(1)
