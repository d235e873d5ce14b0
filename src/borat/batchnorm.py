"""Batch normalisation: running statistics at the optimizer's result and with ``same_batch=True``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

if TYPE_CHECKING:
    from borat._optim.base import LossOptimizer


def update_statistics(
    model: nn.Module,
    batches: Iterable[Any],
    optimizer: LossOptimizer | None = None,
    *,
    count: int = 32,
    forward: Callable[[nn.Module, Any], object] | None = None,
) -> None:
    """Move the model to the optimizer's result and measure the running statistics of its normalisation layers there.

    During training, these layers see the model at the point where gradients are measured. With FreeBORAT, their
    statistics therefore do not fit the result. A few batches of training data are enough to update them. Nothing
    else in the model changes, and the state of the random number generators is restored. Frozen layers keep their
    statistics: those in evaluation mode while the model is in training mode, and those whose parameters do not require
    gradients.

    Args:
        model: the model. Without normalisation layers, it is only moved to the result.
        batches: batches of training data, such as a ``DataLoader``.
        optimizer: the optimizer that trains the model; its ``eval()`` is called. None if the model is at the result.
        count: maximum number of batches to use.
        forward: function that runs the model on a batch; by default ``model(batch)``, or ``model(batch[0])`` for tuples
            and lists.

    Example:
        >>> import torch
        >>> from borat import FreeBORAT
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
        >>> optimizer = FreeBORAT(model.parameters())
        >>> batches = [(torch.randn(8, 2), torch.randn(8, 1)) for _ in range(4)]
        >>> for x, y in batches:
        ...     optimizer.zero_grad()
        ...     loss = (model(x) - y).square().mean()
        ...     loss.backward()
        ...     _ = optimizer.step(loss=loss)
        >>> update_statistics(model, batches, optimizer)  # the model is now at the result
        >>> _ = model.eval()  # evaluate or save it; then call model.train() and optimizer.train()
    """
    norms = [m for m in model.modules() if isinstance(m, _NormBase) and m.track_running_stats]
    layers = [layer for layer in norms if not _is_frozen(layer, model)]
    if optimizer is not None:
        optimizer.eval()
    if not layers:
        return
    few = islice(batches, count)
    first = next(few, None)
    if first is None:
        raise ValueError("batches must contain at least one batch, got none")
    devices = {p.device for p in model.parameters() if p.device.type != "cpu"}
    kind = next(iter(devices)).type if devices else "cuda"
    with torch.no_grad(), torch.random.fork_rng(list(devices), device_type=kind), _measuring(model, layers):
        for number, batch in enumerate(chain([first], few), start=1):
            for layer in layers:
                layer.momentum = 1.0 / number  # the plain mean over all batches
            if forward is not None:
                forward(model, batch)
            else:
                model(batch[0] if isinstance(batch, list | tuple) else batch)


def _is_frozen(layer: _NormBase, model: nn.Module) -> bool:
    """Return True if the layer is in evaluation mode while the model trains, or requires no gradients."""
    params = list(layer.parameters(recurse=False))
    is_fixed = bool(params) and not any(p.requires_grad for p in params)
    return is_fixed or (model.training and not layer.training)


@contextmanager
def _measuring(model: nn.Module, layers: list[_NormBase]) -> Iterator[None]:
    """Reset the layers' statistics and put the model in training mode; restore all modes on exit."""
    modes = {module: module.training for module in model.modules()}
    momenta = {layer: layer.momentum for layer in layers}
    if not model.training:
        model.train()
    for module in modes:
        if isinstance(module, _NormBase) and module not in momenta:
            module.eval()
    for layer in layers:
        layer.reset_running_stats()
    try:
        yield
    finally:
        for layer, momentum in momenta.items():
            layer.momentum = momentum
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def frozen_statistics(model: nn.Module, frozen: bool = True) -> Iterator[None]:
    """Keep the running statistics of the model's normalisation layers fixed inside this context.

    The layers still normalise by the batch. With ``same_batch=True``, the closure runs once for each piece of the
    bundle on the same batch, which the statistics should see only once.

    Args:
        model: the model.
        frozen: if False, the context has no effect.

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
