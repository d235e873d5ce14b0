"""Batch normalisation in bundles whose pieces share a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _NormBase


@contextmanager
def frozen_statistics(model: nn.Module, frozen: bool = True) -> Iterator[None]:
    """Let no forward pass change the running statistics of the normalisation layers of ``model``.

    They normalise by the batch as usual. With ``same_batch=True`` a closure runs once for each piece of the bundle,
    always on the same batch: the statistics should see that batch once.

    Args:
        model: the model whose layers are concerned.
        frozen: False makes it do nothing.

    Example:
        >>> import torch
        >>> from borat import BORAT
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        >>> optimizer = BORAT(model.parameters(), same_batch=True)
        >>> x = torch.randn(8, 2)
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     with frozen_statistics(model, optimizer.bundle_position > 0):
        ...         loss = model(x).square().mean()
        ...     loss.backward()
        ...     return loss
        >>> _ = optimizer.step(closure)
        >>> model[1].num_batches_tracked
        tensor(1)
    """
    layers = [m for m in model.modules() if isinstance(m, _NormBase) and m.training and m.track_running_stats]
    layers = layers if frozen else []
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
