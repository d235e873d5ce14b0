"""Models to time in the benchmark and in experiments, described without importing PyTorch."""

from __future__ import annotations

from math import prod
from typing import Any

from borat.lab.strict import Listed, StrictModel

MODELS: dict[str, dict[str, Any]] = {
    "WRN-40-4": {"name": "wrn-40-4", "input_shape": (3, 32, 32), "classes": 100},
    "ResNet-18": {"name": "resnet-18", "input_shape": (3, 224, 224), "classes": 1000},
    "Bi-LSTM": {"name": "infersent", "input_shape": (1, 300), "classes": 3},
    "MLP": {"name": "mlp-128-80", "input_shape": (64,), "classes": 10},
}
"""Arguments of :func:`borat.lab.models.make_model`."""


class Runtime(StrictModel):
    """A model and a batch to time."""

    model: str
    input_shape: Listed[int]
    classes: int
    batch_size: int
    examples: int
    """Number of examples in an epoch."""
    bundle_sizes: Listed[int]
    reference: str
    """Row to which the ratios are relative."""
    loss: str = "ce"
    rounds: int = 15
    """Number of measurements of each bundle size."""


def shapes_of(model: str) -> list[tuple[int, ...]]:
    """Return the shapes of the trainable parameters."""
    import torch

    from borat.lab.models import make_model

    with torch.device("meta"):
        parameters = make_model(**MODELS[model]).parameters()
    return [tuple(p.shape) for p in parameters if p.requires_grad]


def shape_summary(model: str) -> str:
    shapes = shapes_of(model)
    return f"{sum(map(prod, shapes)):,} parameters in {len(shapes)} tensors"
