"""FreeBORAT's rolling bundle on the device: its six steps as operations on vectors.

The pieces are in the order of their rows, the newest last. Those that are not there yet are copies of the target, with
a zero gradient: whatever weight they get is the target's. A batch that is dropped changes neither point nor row nor
count, as on the host.
"""

from __future__ import annotations

import math
from dataclasses import asdict, astuple
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from borat import kernels_on_device
from borat.bundle import StepInfo
from borat.dual import Array
from borat.flat import Flat
from borat.keeping import Constraint
from borat.measure import Loss, Measure
from borat.on_device import Groups, OnDevice, number, polyak_step
from borat.parameters import Slot
from borat.rolling import AIM, Reach, RollingBundle, describe, rows_of


class RollingOnDevice(OnDevice):
    """See :class:`borat.rolling.RollingBundle` for the numbers, and :class:`OnDevice` for the rest."""

    def __init__(self, slots: list[Slot], params: list[Tensor], groups: int, bundle: RollingBundle) -> None:
        size = bundle.size
        numbers = {"batches": (), "at_origin": (size - 2,), "reach": (3,), "beta": ()}
        scalars = dict.fromkeys(("batches", "eta", "step_norm", "lower_bound"), ())
        told = {"alpha": (size,), "problem": (size + 1, size), "lr": (groups,), **scalars}
        super().__init__(slots, params, size - 1, numbers, told)
        self._longest = min((torch.finfo(flat.dtype).max for flat in self.flats), default=math.inf)
        row = torch.arange(self.pieces - 1, dtype=torch.float64, device=self.device)
        self._rows, self._own_row = row, self.zero.reshape(1) + (self.pieces - 1)
        self._bars = torch.cat((row, self.zero.expand(2) - 1.0))
        """How many batches there must have been for each piece; the newest and the target are always there."""
        self.send(bundle)

    def take(self, loss: Loss, groups: Groups, measure: Measure, constraint: Constraint | None) -> None:
        first, old, more = groups[0], self.numbers.tensors()[0], self.numbers.one_more()
        k = more[0]["batches"]
        rates = self._sent(*first["betas"], first["lower_bound"], first["eps"], *(group["lr"] for group in groups))
        betas, (beta, _, bound, eps), lr = rates[:2], rates[:4].unbind(), rates[4:]

        # 1. and 2. The metric, and all inner products in it.
        warmth, memory = (1.0 - betas**k).unbind()
        metric = torch.stack((betas[1], memory.rsqrt(), eps))
        batches = [_batch_of(flat, constraint)(flat, metric) for flat in self.flats]
        products = self._total([batch.products() for batch in batches], self.pieces * (self.pieces + 1) + 1)
        value, products = measure.on_device(number(loss, self.device), products)
        pairs, at_centre, apart = products.split_with_sizes((self.pieces**2, self.pieces, 1))
        gram, newest = pairs.view(self.pieces, self.pieces), value + apart
        at_origin = newest - at_centre[-1]

        # 3. and 4. The target and the cap; the dual.
        above_bound = torch.cat((value.reshape(1), newest)) - bound
        target, eta, reach = _aim(above_bound, pairs[-1:], old["reach"], warmth, k, first["aim"])
        is_there = self._bars < old["batches"]
        older = old["at_origin"] + at_centre[:-1] - bound
        values = torch.cat((torch.where(is_there[:-2], older, target), above_bound[1:], target))
        Q = (gram + gram.mT) * (0.5 * eta)
        problem = torch.cat((values.unsqueeze(0), pad(Q, (0, 1, 0, 1))))
        alpha = self._folded(self.dual(problem.unsqueeze(0))[0], is_there & (eta > 0.0))
        steps = (eta * lr).unsqueeze(-1) * alpha[:-1]

        # 5. The step, unless it leaves the range of numbers: its length is NaN where any of the products is not finite.
        squares = [batch.find_step(steps[batch.flat.group]) for batch in batches]
        norm = self._total(squares, 1).sqrt()
        ok = norm + 0.0 * at_origin <= self._longest
        for batch in batches:
            own, decay = steps[batch.flat.group], groups[batch.flat.group]["weight_decay"]
            batch.move_centre(own.sum() * decay if decay else None, ok, is_constrained=constraint is not None)
        if constraint is not None:
            self._project(constraint, [z for batch in batches for z in batch.flat.shaped(batch.z)], ok)

        # 6. Its share in the average, and what is kept.
        pull = old["batches"] / (k + 1.0)
        ratio = (beta / old["beta"]).nan_to_num(nan=1.0, posinf=1.0)
        to_centre = torch.where(ok, pull * ratio - 1.0, self.zero).reshape(())
        row = torch.where(ok, old["batches"] % max(self.pieces - 1, 1), self._own_row)
        for batch in batches:
            batch.finish(ok, 1.0 - pull * beta, to_centre, row)
        told = {"alpha": alpha, "problem": problem, "lr": lr, "batches": old["batches"], "eta": eta}
        now = {
            "batches": k,
            "at_origin": torch.where(self._rows == row, at_origin, old["at_origin"]),
            "reach": reach,
            "beta": beta,
            "below": torch.minimum(old["below"], value - bound),
        }
        self._keep(ok, ok, value, more, now, {**told, "step_norm": norm, "lower_bound": bound})

    def send(self, bundle: RollingBundle) -> None:
        at_origin = [0.0] * (self.pieces - 1)
        for row, value in zip(bundle.rows, bundle.at_origin, strict=True):
            at_origin[row] = value
        self._send({**bundle.numbers(), "at_origin": at_origin, "reach": astuple(bundle.reach)})

    def _plain(self, numbers: dict[str, Array]) -> dict[str, Any]:
        batches = int(numbers["batches"])
        at_origin = [float(numbers["at_origin"][row]) for row in rows_of(batches, self.pieces - 1)]
        reach = asdict(Reach(*numbers["reach"].tolist()))
        return {"batches": batches, "at_origin": at_origin, **reach, "beta": float(numbers["beta"])}

    def _describe(self, told: dict[str, Array]) -> StepInfo:
        pieces = [*rows_of(int(told["batches"]), self.pieces - 1), -2, -1]  # the newest and the target are the last
        alpha, values, Q = told["alpha"], told["problem"][0], told["problem"][1:]
        return describe(
            alpha[pieces],
            values[pieces],
            eta=float(told["eta"]),
            dual_value=float(alpha @ values - 0.5 * alpha @ Q @ alpha),
            step_norm=float(told["step_norm"]),
            lower_bound=float(told["lower_bound"]),
            lr=told["lr"].tolist(),
        )


def _aim(
    above_bound: Tensor, square: Tensor, reach: Tensor, warmth: Tensor, k: Tensor, aim: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The target, measured from the bound, the cap of the step, and the new reach: see :class:`borat.rolling.Reach`.

    ``above_bound`` has the newest piece's values at the model and at the centre.
    """
    at_model, at_centre = above_bound.clamp_min(0.0).split_with_sizes((1, 1))
    lead = ((at_model - at_centre) / torch.maximum(at_model, at_centre)).nan_to_num(nan=0.0)
    stretch = torch.addcmul(reach[:1], lead, warmth / k).clamp_min(0.0)
    gap = stretch.exp() * at_model
    reach = torch.cat((stretch, reach[1:] + torch.cat((gap, square))))
    if aim is not None:
        return torch.addcmul(at_centre, at_centre, warmth, value=-aim), polyak_step(at_centre, square), reach
    gaps, squares = torch.cat((gap, square, reach[1:])).view(2, 2).unbind(-1)
    target = torch.addcmul(above_bound[1:], gap, warmth, value=-AIM)
    return target, polyak_step(gaps, squares).amin(0, keepdim=True), reach


def _batch_of(flat: Flat, constraint: Constraint | None) -> type[_RollingBatch]:
    """A projection comes between what a kernel does at once."""
    return _RollingBatchOfKernels if flat.has_kernels and constraint is None else _RollingBatch


class _RollingBatch:
    """The vectors of one flat at the time of one batch: ``y - z``, ``z`` and the metric ``D``.

    Args:
        flat: the parameters.
        metric: beta2, the correction of its start, and eps.
    """

    def __init__(self, flat: Flat, metric: Tensor) -> None:
        self.flat, self.z = flat, flat.kept["centre"]
        self.apart = flat.load().to(flat.precise).sub_(self.z)
        self.G = flat.precise_rows()
        beta2, correction, eps = metric.to(flat.device).unbind()
        self.root = torch.hypot(flat.kept["rms"] * beta2.sqrt(), self.G[-1] * (1.0 - beta2).sqrt())
        self.scaled = self.G / torch.addcmul(eps, self.root, correction)
        """The gradients in the metric, ``g_i / D``."""

    def products(self) -> Tensor:
        """``<g_i, g_j / D>`` of all pieces, then ``<g_i, z>``; last, for the newest, ``<g, z - y>``."""
        # Not as one product of matrices, which PyTorch may be told to take in TF32.
        vectors = (*self.scaled, self.z.to(self.G.dtype))
        return torch.cat((*(torch.mv(self.G, x) for x in vectors), -torch.mv(self.G[-1:], self.apart)))

    def find_step(self, steps: Tensor) -> Tensor:
        """The squared length of ``u``, which may not be finite."""
        self.u = torch.mv(self.scaled.mT, steps.to(self.flat.device, self.G.dtype))
        del self.G, self.scaled
        return torch.dot(self.u, self.u).reshape(1)

    def move_centre(self, decay: Tensor | None, ok: Tensor, *, is_constrained: bool) -> None:
        if decay is not None:
            decay = decay.to(self.u.device)
            self.u.addcmul_(self.apart, decay).addcmul_(self.z.to(self.u.dtype), decay)
        self.before = self.z.clone() if is_constrained else None
        torch.where(ok.to(self.u.device), self.u, self.flat.zero.to(self.u.dtype), out=self.u)
        self.z.sub_(self.u)

    def finish(self, ok: Tensor, with_centre: Tensor, to_centre: Tensor, row: Tensor) -> None:
        """``y += with_centre * (z' - z) + to_centre * (y - z)``, wherever a projection has put ``z'``; keep ``g``."""
        ok, rms = ok.to(self.z.device), self.flat.kept["rms"]
        with_centre, to_centre = with_centre.to(rms.device), to_centre.to(rms.device)
        if self.before is not None:  # a projection of what was projected before may differ in the last bit
            torch.where(ok, self.z, self.before, out=self.z)
            self.u = (self.before - self.z).to(self.u.dtype)
        self.flat.add(self.apart.mul_(to_centre).addcmul_(self.u, with_centre, value=-1.0))
        torch.where(ok, self.root, rms, out=rms)
        self.flat.keep(row.long().to(rms.device), ok)


class _RollingBatchOfKernels(_RollingBatch):
    """The same in two launches."""

    def __init__(self, flat: Flat, metric: Tensor) -> None:
        self.flat, self.metric = flat, metric
        self.vectors = flat.rows, flat.load(), flat.kept["centre"], flat.kept["rms"]

    def products(self) -> Tensor:
        pieces = len(self.flat.rows)
        sums: Tensor = kernels_on_device.rolling_products(*self.vectors, self.metric.to(self.flat.device))
        products, squares = sums.sum(0).split_with_sizes((pieces**2 + pieces + 1, pieces**2))
        self.squares = squares.view(pieces, pieces)
        return products

    def find_step(self, steps: Tensor) -> Tensor:
        self.steps = steps
        own = steps.to(self.squares.device, self.flat.precise).to(torch.float64)  # as far as the kernel can take them
        pairs = own * own.unsqueeze(-1)
        pairs = torch.where(pairs == 0.0, pairs, pairs * self.squares)  # pieces without a step may be of any length
        return pairs.sum().reshape(1).clamp_min(0.0)  # where others cancel each other, rounding may take it below

    def move_centre(self, decay: Tensor | None, ok: Tensor, *, is_constrained: bool) -> None:
        self.decay = torch.zeros_like(ok) if decay is None else decay.reshape(1)

    def finish(self, ok: Tensor, with_centre: Tensor, to_centre: Tensor, row: Tensor) -> None:
        step = (self.steps, self.decay, ok, with_centre.reshape(1), to_centre.reshape(1), row)
        kernels_on_device.rolling_move(*self.vectors, torch.cat((self.metric, *step)).to(self.flat.device))
        self.flat.put(self.vectors[1])
