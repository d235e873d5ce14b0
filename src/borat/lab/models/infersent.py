"""InferSent: a Bi-LSTM with max pooling and a classifier for pairs of sentences (Conneau et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class InferSent(nn.Module):
    """Encode a premise and a hypothesis by one Bi-LSTM and classify the pair.

    The word embeddings are a buffer: saved with the model, but neither trained nor constrained. As in the published
    code, the hidden layers of the classifier are linear.

    Args:
        hidden: number of units of the LSTM in each direction.
        input_shape: (words in the vocabulary, dimension of an embedding).
        embeddings: matrix of shape ``input_shape``; random by default, for trials without GloVe.
        fully_connected: width of the classifier's two hidden layers.
        dropout: dropout probability before each layer of the classifier.
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
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if embeddings is None:
            embeddings = torch.randn(*input_shape)
        self.register_buffer("embeddings", embeddings.detach().clone())
        self.encoder = nn.LSTM(input_shape[1], hidden, batch_first=True, bidirectional=True)
        self.classifier = nn.Sequential(
            *(nn.Dropout(dropout), nn.Linear(4 * 2 * hidden, fully_connected)),
            *(nn.Dropout(dropout), nn.Linear(fully_connected, fully_connected)),
            *(nn.Dropout(dropout), nn.Linear(fully_connected, classes)),
        )

    def forward(
        self, premise: Tensor, premise_lengths: Tensor, hypothesis: Tensor, hypothesis_lengths: Tensor
    ) -> Tensor:
        """Return the scores of pairs of sentences: padded word indices, (batch, words), and their lengths."""
        u, v = self.encode(premise, premise_lengths), self.encode(hypothesis, hypothesis_lengths)
        return self.classifier(torch.cat((u, v, (u - v).abs(), u * v), 1))

    def encode(self, words: Tensor, lengths: Tensor) -> Tensor:
        """Return the maximum of each LSTM output over the words of a sentence, without padding."""
        embedded = functional.embedding(words, self.embeddings)
        packed = pack_padded_sequence(embedded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(self.encoder(packed)[0], batch_first=True, padding_value=-torch.inf)
        return outputs.amax(1)
