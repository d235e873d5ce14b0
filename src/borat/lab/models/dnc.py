"""A differentiable neural computer (Graves et al., 2016).

The memory has N slots of W numbers, one write head and R read heads. Names follow the paper's Methods: a weighting
``w`` has non-negative entries with a sum of at most one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

NORM_EPSILON = 1e-6
"""Added to squared norms, so that an empty slot has a cosine of zero and a bounded gradient."""


class Memory(NamedTuple):
    """State of the memory between two steps."""

    contents: Tensor
    """M, of shape (batch, N, W)."""
    usage: Tensor
    """u in [0, 1], of shape (batch, N)."""
    precedence: Tensor
    """p, of shape (batch, N): the weighting of the last slots written."""
    links: Tensor
    """L, of shape (batch, N, N): L[i, j] is the degree to which slot i was written right after slot j."""
    write_weighting: Tensor
    """Of shape (batch, N)."""
    read_weightings: Tensor
    """Of shape (batch, R, N)."""


class Interface(NamedTuple):
    """The controller's request to the memory: the parts of its interface vector, each mapped to its range."""

    read_keys: Tensor
    read_strengths: Tensor
    write_key: Tensor
    write_strength: Tensor
    erase: Tensor
    write: Tensor
    free_gates: Tensor
    allocation_gate: Tensor
    write_gate: Tensor
    read_modes: Tensor

    @staticmethod
    def sizes(W: int, R: int) -> tuple[int, ...]:
        """Return the lengths of the parts, for R read heads and words of W numbers."""
        return (R * W, R, W, 1, W, W, R, 1, 1, 3 * R)

    @classmethod
    def parse(cls, vector: Tensor, W: int, R: int) -> Interface:
        """Split interface vectors of shape (batch, sum of the sizes)."""
        parts = torch.split_with_sizes(vector, cls.sizes(W, R), 1)
        return cls(
            read_keys=parts[0].reshape(-1, R, W),
            read_strengths=1.0 + functional.softplus(parts[1]),
            write_key=parts[2],
            write_strength=1.0 + functional.softplus(parts[3]),
            erase=parts[4].sigmoid(),
            write=parts[5],
            free_gates=parts[6].sigmoid(),
            allocation_gate=parts[7].sigmoid(),
            write_gate=parts[8].sigmoid(),
            read_modes=parts[9].reshape(-1, R, 3).softmax(2),
        )


def content_weighting(contents: Tensor, keys: Tensor, strengths: Tensor) -> Tensor:
    """Weight slots by their cosine with ``keys`` (batch, heads, W): a softmax, sharpened by ``strengths``."""
    norms = (contents.square().sum(2) + NORM_EPSILON).sqrt().unsqueeze(1)
    key_norms = (keys.square().sum(2) + NORM_EPSILON).sqrt().unsqueeze(2)
    cosines = keys @ contents.transpose(1, 2) / (key_norms * norms)
    return (strengths.unsqueeze(2) * cosines).softmax(2)


def next_usage(memory: Memory, free_gates: Tensor) -> Tensor:
    """Mark the slots last written as used, and free those last read according to the free gates."""
    retention = (1.0 - free_gates.unsqueeze(2) * memory.read_weightings).prod(1)
    return (memory.usage + memory.write_weighting - memory.usage * memory.write_weighting) * retention


def allocation_weighting(usage: Tensor) -> Tensor:
    """Weight free slots, the least used first; zero if all are in use."""
    used, order = usage.sort(dim=1, stable=True)
    taken = torch.cat((torch.ones_like(used[:, :1]), used[:, :-1].cumprod(1)), 1)
    return torch.zeros_like(usage).scatter(1, order, (1.0 - used) * taken)


def next_links(links: Tensor, precedence: Tensor, write_weighting: Tensor) -> Tensor:
    """Link the slots being written to those written before, and erase their old links."""
    row, column = write_weighting.unsqueeze(2), write_weighting.unsqueeze(1)
    links = (1.0 - row - column) * links + row * precedence.unsqueeze(1)
    return links * (1.0 - torch.eye(links.shape[1], dtype=links.dtype, device=links.device))


def access(memory: Memory, interface: Interface) -> tuple[Tensor, Memory]:
    """Free, write, then read; return the words read, of shape (batch, R, W), and the next memory."""
    usage = next_usage(memory, interface.free_gates)
    resembling = content_weighting(memory.contents, interface.write_key.unsqueeze(1), interface.write_strength)
    gate = interface.allocation_gate
    w = interface.write_gate * (gate * allocation_weighting(usage) + (1.0 - gate) * resembling.squeeze(1))

    slots = w.unsqueeze(2)
    contents = memory.contents * (1.0 - slots * interface.erase.unsqueeze(1)) + slots * interface.write.unsqueeze(1)
    links = next_links(memory.links, memory.precedence, w)
    precedence = (1.0 - w.sum(1, keepdim=True)) * memory.precedence + w

    backward, forward = memory.read_weightings @ links, memory.read_weightings @ links.transpose(1, 2)
    content = content_weighting(contents, interface.read_keys, interface.read_strengths)
    modes = interface.read_modes.unsqueeze(3)
    read_weightings = modes[:, :, 0] * backward + modes[:, :, 1] * content + modes[:, :, 2] * forward
    return read_weightings @ contents, Memory(contents, usage, precedence, links, w, read_weightings)


class DNC(nn.Module):
    """An LSTM that reads and writes a memory at each step of a sequence.

    The defaults are those of the authors for the repeat-copy task.

    Args:
        input_shape: (channels,) of one step of the input.
        classes: number of channels of one step of the output.
        hidden: number of units of the LSTM.
        slots: N, number of slots in the memory.
        word_size: W, size of a slot.
        read_heads: R, number of read heads.
    """

    def __init__(
        self,
        *,
        input_shape: Sequence[int],
        classes: int,
        hidden: int = 64,
        slots: int = 16,
        word_size: int = 16,
        read_heads: int = 4,
    ) -> None:
        super().__init__()
        self.slots, self.word_size, self.read_heads = slots, word_size, read_heads
        words = read_heads * word_size
        self.controller = nn.LSTMCell(input_shape[0] + words, hidden)
        self.interface = nn.Linear(hidden, sum(Interface.sizes(word_size, read_heads)))
        self.output = nn.Linear(hidden + words, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return outputs of shape (batch, steps, classes) for inputs of shape (batch, steps, channels)."""
        batch = len(inputs)
        h = c = inputs.new_zeros(batch, self.controller.hidden_size)
        words = inputs.new_zeros(batch, self.read_heads * self.word_size)
        memory = self.empty_memory(inputs)
        outputs = []
        for x in inputs.unbind(1):
            h, c = self.controller(torch.cat((x, words), 1), (h, c))
            interface = Interface.parse(self.interface(h), self.word_size, self.read_heads)
            read, memory = access(memory, interface)
            words = read.flatten(1)
            outputs.append(self.output(torch.cat((h, words), 1)))
        return torch.stack(outputs, 1)

    def empty_memory(self, like: Tensor) -> Memory:
        """Return a memory of zeros with the batch size, type and device of ``like``."""
        batch, N = len(like), self.slots
        shapes = ((N, self.word_size), (N,), (N,), (N, N), (N,), (self.read_heads, N))
        return Memory(*(like.new_zeros(batch, *shape) for shape in shapes))
