"""Model and batch of a table of run times, read from an experiment's file without PyTorch."""

from __future__ import annotations

from borat.lab.strict import Listed, StrictModel


class Runtime(StrictModel):
    """A model and a batch to time. ``rounds`` is how often each bundle size takes its turn."""

    model: str
    input_shape: Listed[int]
    classes: int
    batch_size: int
    examples: int
    """Of an epoch."""
    bundle_sizes: Listed[int]
    reference: str
    """The row that the ratios are to."""
    loss: str = "ce"
    rounds: int = 15
