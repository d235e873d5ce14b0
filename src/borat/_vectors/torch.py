"""Vector operations in PyTorch, for everything that the CPU kernels do not support.

The state of all parameters of one group, device and dtype is concatenated in a few long tensors, so the number of
operations does not depend on the number of parameters. On GPUs, where each operation is a kernel launch, the functions
at the end of this file are compiled. Numbers may be Python floats or tensors on the device: no operation reads a value,
and dropped batches are masked.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

Number = float | Tensor

_LARGE = 1e30
"""Coefficients above this are applied in float64."""


class Metric(NamedTuple):
    """Adam's metric ``D = s + eps`` with ``s = sqrt(beta2 * rms^2 + (1 - beta2) * g^2)``.

    The state is the *root* of the mean square, which has the range of the gradients. Squares of gradients below 1e-23
    or above 1e19 would leave the range of float32.
    """

    beta2: Any
    eps: Any


class Average(NamedTuple):
    """Coefficients of the move from the old ``y`` to the new one: see :meth:`TorchVectors.metric_move`."""

    pull: Number
    ratio: Number
    beta: Number


class _Place(NamedTuple):
    """Layout of a parameter in a vector: its dimensions in memory order, from the largest stride to the smallest."""

    size: int
    shape: tuple[int, ...]
    inverse: tuple[int, ...]

    @classmethod
    def of(cls, slot: Any) -> _Place:
        shape, strides = tuple(slot.weights.shape), slot.layout
        order = tuple(sorted(range(len(shape)), key=lambda i: -strides[i]))
        inverse = tuple(sorted(range(len(shape)), key=lambda i: order[i]))
        return cls(slot.weights.numel(), tuple(shape[i] for i in order), inverse)

    def unflatten(self, x: Tensor) -> Tensor:
        return x.view(self.shape).permute(self.inverse)


class Flat:
    """The state of several slots as long vectors; the tensors of the slots become views of them.

    Args:
        slots: slots of the same parameter group, device and dtype.
        pieces: number of rows for gradients, the newest included.
    """

    def __init__(self, slots: Sequence[Any], pieces: int) -> None:
        first = slots[0]
        self.device = first.weights.device
        self.sum_dtype = torch.promote_types(first.dtype, torch.float32)
        """The dtype of sums."""
        self._places = [_Place.of(slot) for slot in slots]
        self._sizes = [place.size for place in self._places]
        self.rows = torch.zeros(pieces, sum(self._sizes), dtype=first.dtype, device=self.device)
        """The stored gradients, and the newest in the last row."""
        self.kept: dict[str, Tensor] = {}
        for key, tensor in first.tensors.items():
            if key == "gradients":
                self._move_state(slots, key, self.rows.narrow(0, 0, pieces - 1))
            else:
                self.kept[key] = self.rows.new_empty(sum(self._sizes), dtype=tensor.dtype)
                self._move_state(slots, key, self.kept[key])

    def _move_state(self, slots: Sequence[Any], key: str, target: Tensor) -> None:
        """Copy a tensor of each slot to the target, and replace it by a view of the target."""
        chunks = target.split_with_sizes(self._sizes, dim=-1)
        for slot, place, chunk in zip(slots, self._places, chunks, strict=True):
            if place.size:  # an empty tensor may have strides that cannot be viewed as complex
                old = slot.tensors[key]
                view = chunk.as_strided(old.shape, (*chunk.stride()[:-1], *slot.layout))
                slot.replace(key, view.copy_(old))

    def shaped(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector in the shapes of the parameters."""
        chunks = vector.split_with_sizes(self._sizes)
        return [place.unflatten(x) for place, x in zip(self._places, chunks, strict=True)]

    def number(self, x: Number) -> Tensor:
        """Return a number as a tensor on the device, without a device sync."""
        if isinstance(x, Tensor):
            return x.to(self.device).reshape(())
        return torch.full((), x, dtype=torch.float64, device=self.device)

    def coefficients(self, values: Any) -> Tensor:
        """Return coefficients of the rows as a vector."""
        if isinstance(values, Tensor):
            return values.to(self.device, self.sum_dtype)
        # The coefficient of a short gradient may overflow float32 although their product does not.
        dtype = torch.float64 if max(map(abs, values)) > _LARGE else self.sum_dtype
        return torch.stack([self.number(float(x)) for x in values]).to(dtype)


class TorchVectors:
    """The vectors of one batch.

    Args:
        flat: the state.
        weights: the parameters.
        gradients: their gradients; None if only moves along stored gradients follow.
    """

    def __init__(self, flat: Flat, weights: list[Tensor], gradients: list[Tensor] | None) -> None:
        self._flat, self._params = flat, weights
        self._has_gradients = gradients is not None
        self._weights = flat.rows.new_empty(flat.rows.shape[-1])
        sources, targets = [*weights, *(gradients or [])], flat.shaped(self._weights)
        if gradients is not None:
            targets += flat.shaped(flat.rows.select(0, len(flat.rows) - 1))
        torch._foreach_copy_(targets, sources)

    def gram_row(self, n: Number, *, in_float64: bool = False) -> Tensor:
        """Return ``<g, g_k>`` for the stored gradients ``k < n``, then ``<g, g>``; later entries are arbitrary."""
        return _gram_row(self._flat.rows, self._flat.number(n), _dtype(self._flat, in_float64))

    def move(self, coefficients: Any, row: Number, *, ok: Any, completes: Any, momentum: float) -> None:
        """Move the weights by the step of a BORAT bundle: see :func:`_move`."""
        flat = self._flat
        steps = flat.coefficients(coefficients)
        if not self._has_gradients:  # the newest gradient may be that of a dropped batch, and not finite
            flat.rows.select(0, len(flat.rows) - 1).zero_()
        numbers = [flat.number(x) for x in (row, ok, completes, momentum)]
        centre, velocity = flat.kept.get("centre"), flat.kept.get("velocity")
        self._put(_move(flat.rows, self._weights, centre, velocity, steps, *numbers, self._has_gradients))

    def metric_products(self, metric: Metric, *, in_float64: bool = False) -> Tensor:
        """Return the inner products of FreeBORAT's pieces: see :func:`borat._numbers.rolling.columns`."""
        flat = self._flat
        self._metric = Metric(*(flat.number(x) for x in metric))
        dtype = _dtype(flat, in_float64)
        return _metric_products(flat.rows, self._weights, flat.kept["centre"], flat.kept["rms"], self._metric, dtype)

    def metric_move(
        self, coefficients: Any, decay: Number, average: Average, row: Number, *, ok: Any, is_constrained: bool
    ) -> None:
        """Move the centre, the weights and the metric.

        With ``u`` the sum of coefficient * gradient / D, the centre ``z`` becomes ``z' = z - u - decay * y``. In the
        average ``x = z + (y - z) / beta`` it gets the weight ``1 - pull``, so that
        ``y' = z' + pull * (ratio * (y - z) - beta * (z' - z))``, where ``ratio`` is 1 unless ``beta`` has changed. If
        there is a constraint, :meth:`after_projection` sets ``y'``. The new gradient is stored in its row.
        """
        flat = self._flat
        steps = flat.coefficients(coefficients)
        numbers = [flat.number(x) for x in (decay, *average, row, ok)]
        state = flat.rows, self._weights, flat.kept["centre"], flat.kept["rms"]
        moved = _metric_move(*state, self._metric, steps, *numbers, is_constrained)
        if is_constrained:
            self._average = moved
        else:
            self._put(moved)

    def after_projection(self, average: Average, ok: Any) -> None:
        """Set ``y' = z' + pull * beta * (x - z')``."""
        flat = self._flat
        pull, _, beta = (flat.number(x) for x in average)
        z = flat.kept["centre"].to(self._average.dtype)
        moved = z + (pull * beta).to(z.dtype) * (self._average - z)
        self._put(torch.where(flat.number(ok) > 0.0, moved, self._weights))

    def _put(self, point: Tensor) -> None:
        torch._foreach_copy_(self._params, self._flat.shaped(point.to(self._flat.rows.dtype)))


def _dtype(flat: Flat, in_float64: bool) -> torch.dtype:
    return torch.float64 if in_float64 else flat.sum_dtype


COMPILED_DEVICES = {"cuda", "xpu"}
"""Device types for which the functions below are compiled."""


def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compile a function for devices with expensive kernel launches; run it uncompiled if that fails."""

    @wraps(function)
    def call(*args: Any) -> Tensor:
        is_tensor = type(args[0]) is Tensor  # not a subclass without values, such as those of FakeTensorMode
        if torch.compiler.is_compiling() or not is_tensor or args[0].device.type not in COMPILED_DEVICES:
            return function(*args)
        result: Tensor = call_compiled(function, *args)
        return result

    return call


def call_compiled(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call the compiled function; if compilation fails, warn once and call the function itself."""
    if function in _not_compilable:
        return function(*args, **options)
    try:
        return _compile(function)(*args, **options)
    except _compiler_errors() as error:
        if not _not_compilable:
            warnings.warn(f"torch.compile failed, so borat's steps run uncompiled: {error}", stacklevel=2)
        _not_compilable.add(function)
        return function(*args, **options)


_not_compilable: set[Any] = set()


@cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True)


def _compiler_errors() -> tuple[type[Exception], ...]:
    from torch._dynamo import exc as dynamo
    from torch._inductor import exc as inductor

    names = ("FailOnRecompileLimitHit", "InductorError", "TorchDynamoException")  # depending on the version
    return tuple(getattr(module, name) for module in (dynamo, inductor) for name in names if hasattr(module, name))


@compiled
def _gram_row(rows: Tensor, n: Tensor, dtype: torch.dtype) -> Tensor:
    G = rows.to(dtype)
    products = torch.mv(G, G.select(0, len(G) - 1)).to(torch.float64)
    index = torch.arange(len(G), device=G.device)
    return torch.where(index < n, products, products.narrow(0, len(G) - 1, 1))


@compiled
def _move(
    rows: Tensor,
    weights: Tensor,
    centre: Tensor | None,
    velocity: Tensor | None,
    coefficients: Tensor,
    row: Tensor,
    ok: Tensor,
    completes: Tensor,
    momentum: Tensor,
    has_gradient: bool,
) -> Tensor:
    """Return the new weights: ``base - u``, or Nesterov's update if the bundle is complete.

    ``u = sum of coefficient * gradient; v = momentum * v + u; weights = base - u - momentum * v``. The first gradient
    is measured at the centre, so the weights are stored as the centre. The new gradient is stored in its row.
    """
    taken, dtype = ok > 0.0, coefficients.dtype
    base = weights
    if centre is not None:
        base = torch.where(row > 0, centre, weights) if has_gradient else centre
        centre.copy_(base)
    if has_gradient and len(rows) > 1:
        _store_newest(rows, row, taken)
    u = torch.mv(rows.to(dtype).mT, coefficients)
    point = base.to(dtype) - u
    if velocity is not None:
        is_complete = completes > 0.0
        v = torch.where(is_complete, momentum.to(dtype) * velocity.to(dtype) + u, velocity.to(dtype))
        velocity.copy_(v)
        point = point - torch.where(is_complete, momentum.to(dtype), 0.0) * velocity.to(dtype)
    return torch.where(taken, point, weights.to(dtype))


def _store_newest(rows: Tensor, row: Tensor, taken: Tensor) -> None:
    """Copy the newest gradient to its row, unless the batch is dropped."""
    newest, place = rows.narrow(0, len(rows) - 1, 1), row.reshape(1).long()
    rows.index_copy_(0, place, torch.where(taken, newest, rows.index_select(0, place)))


def _root(rms: Tensor, g: Tensor, metric: Metric) -> Tensor:
    """Return the new root of the mean square, without squares, which may leave the range of float32."""
    return torch.hypot(rms * metric.beta2.sqrt().to(rms.dtype), g * (1.0 - metric.beta2).sqrt().to(g.dtype))


@compiled
def _metric_products(
    rows: Tensor, weights: Tensor, centre: Tensor, rms: Tensor, metric: Metric, dtype: torch.dtype
) -> Tensor:
    G, z = rows.to(dtype), centre.to(dtype)
    g = G.select(0, len(G) - 1)
    D = _root(rms.to(dtype), g, metric) + metric.eps.to(dtype)
    scaled = G / D
    # Not a single matrix product, which PyTorch may be configured to compute in TF32.
    once = torch.stack([torch.mv(G, x) for x in scaled.unbind()])
    twice = torch.stack([torch.mv(scaled, x) for x in scaled.unbind()])
    once, twice = 0.5 * (once + once.mT), 0.5 * (twice + twice.mT)
    to_centre = torch.dot(g, z - weights.to(dtype)).reshape(1)
    return torch.cat((once.reshape(-1), twice.reshape(-1), torch.mv(G, z), to_centre)).to(torch.float64)


@compiled
def _metric_move(
    rows: Tensor,
    weights: Tensor,
    centre: Tensor,
    rms: Tensor,
    metric: Metric,
    coefficients: Tensor,
    decay: Tensor,
    pull: Tensor,
    ratio: Tensor,
    beta: Tensor,
    row: Tensor,
    ok: Tensor,
    is_constrained: bool,
) -> Tensor:
    """Move the centre and the metric; return the new weights or, if there is a constraint, the average."""
    dtype, taken = coefficients.dtype, ok > 0.0
    decay, pull, ratio, beta = (x.to(dtype) for x in (decay, pull, ratio, beta))
    y, z, G = weights.to(dtype), centre.to(dtype), rows.to(dtype)
    root = _root(rms.to(dtype), G.select(0, len(G) - 1), metric)
    D = root + metric.eps.to(dtype)
    u = torch.mv((G / D).mT, coefficients) + decay * y
    offset = ratio * (y - z)
    average = z + offset / beta
    new = torch.where(taken, z - u, z).to(centre.dtype)  # as rounded in the state
    moved = new.to(dtype) + pull * (offset - beta * (new.to(dtype) - z))
    moved = torch.where(taken, moved, y)
    rms.copy_(torch.where(taken, root, rms.to(dtype)))
    centre.copy_(new)
    if len(rows) > 1:
        _store_newest(rows, row, taken)
    return average if is_constrained else moved
