"""BORAT's bundle on the device: Algorithm 2 as operations on vectors.

How many pieces there are is a number on the device too, so that a batch which is dropped changes nothing, as on the
host. Each batch finds the solution of the bundle as it is with it; whether that is a trial point or the new centre is a
mask. Pieces that are not there yet are copies of the bound: whatever weight they get is the bound's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from borat.bundle import Bundle, StepInfo
from borat.checks import has_no_end
from borat.dual import Array
from borat.dual_on_device import maximise
from borat.flat import Flat
from borat.keeping import Constraint
from borat.measure import Loss, Measure
from borat.on_device import Groups, OnDevice, folded, number, polyak_step
from borat.parameters import Slot
from borat.vectors import at_least


class BundleOnDevice(OnDevice):
    """See :class:`borat.bundle.Bundle` for the numbers, and :class:`OnDevice` for the rest."""

    def __init__(self, slots: list[Slot], params: list[Tensor], bundle: Bundle) -> None:
        for slot in slots:
            _scale_velocity(slot)
        names = ("gram", "offsets", "alpha", "lr")
        shapes = {**{name: getattr(bundle, name).shape for name in names}, "lower_bound": (), "position": ()}
        super().__init__(slots, params, len(bundle.offsets), shapes, shapes)
        self.size = bundle.size
        self.has_cap = True
        self.send(bundle)

    def take(self, loss: Loss, groups: Groups, measure: Measure, constraint: Constraint | None) -> None:
        old = self.numbers.tensors()
        n, is_first = old["position"], old["position"] == 0
        piece = torch.arange(self.pieces, device=self.device)
        self.has_cap = not has_no_end(groups[0]["lr"])

        # 1. The gradient's row of the Gram matrix, in which only the pieces up to it count.
        batches = [_BundleBatch(flat, is_first.to(flat.device), keeps_centre=self.size > 2) for flat in self.flats]
        rows = list(torch.zeros(len(groups), self.pieces, dtype=torch.float64, device=self.device))
        for batch in batches:
            rows[batch.flat.group] = rows[batch.flat.group] + batch.products().to(self.device)
        value, products = measure.on_device(number(loss, self.device), torch.stack(rows))
        row = torch.where(piece < n, products, torch.where(piece == n, products[:, -1:], 0.0))
        gram = torch.where((piece == n).unsqueeze(-1), row.unsqueeze(-2), old["gram"])
        gram = torch.where(piece == n, row.unsqueeze(-1), gram)

        # 2. and 3. The new offset needs no weights; the dual over all pieces and the bound.
        bound = torch.where(is_first, groups[0]["lower_bound"], old["lower_bound"])
        lr = self._rates(groups, is_first, old["lr"], value - bound, row)
        is_there = piece <= n
        Q = torch.where(is_there & is_there.unsqueeze(-1), (lr.view(-1, 1, 1) * gram).sum(0), 0.0)
        Q_row = (lr.unsqueeze(-1) * row).sum(0)
        offset = value - bound + torch.where(piece < n, old["alpha"][: self.pieces] * Q_row, 0.0).sum()
        offsets = torch.where(piece == n, offset, old["offsets"])
        alpha = self._weights(Q, torch.where(is_there, offsets, 0.0), is_there)
        ok = torch.cat((Q_row, offset.reshape(1))).isfinite().all()

        # 4. The trial point for the next piece or, with the last one, the new centre.
        completes = ok & (n == self.pieces - 1)
        kept_row = torch.where(ok, n, self.pieces - 1).long()
        for batch in batches:
            steps = torch.where(is_there, lr[batch.flat.group] * alpha[: self.pieces], 0.0)
            batch.move(steps, kept_row, ok, completes, float(groups[batch.flat.group]["momentum"]))
        if constraint is not None:
            self._project(constraint, [slot.param for flat in self.flats for slot in flat.slots], completes)
            for batch in batches:
                batch.undo_projection(completes)
        new = {"gram": gram, "offsets": offsets, "alpha": alpha, "lr": lr, "lower_bound": bound}
        self.told.put({**new, "position": n + 1.0}, where=completes)
        self._count(ok, completes, value, bound if self.size > 1 else -math.inf)
        self.numbers.put({**new, "position": torch.where(completes, 0.0, n + 1.0)}, where=ok)
        self.is_ahead = True

    def _rates(self, groups: Groups, is_first: Tensor, old: Tensor, above_bound: Tensor, row: Tensor) -> Tensor:
        """The learning rates of the open bundle; without a cap, those for which the Polyak step has the weight 1."""
        if not self.has_cap:
            return polyak_step(above_bound.clamp_min(0.0), row.sum()).expand(len(groups))
        return torch.where(is_first, torch.stack([number(group["lr"], self.device) for group in groups]), old)

    def _weights(self, Q: Tensor, offsets: Tensor, is_there: Tensor) -> Tensor:
        """Offsets are measured from the bound; a bundle of one has none."""
        if self.size == 1:
            return torch.ones_like(offsets)
        return folded(maximise(pad(Q, (0, 1, 0, 1)), pad(offsets, (0, 1))), is_there)

    def to_trial(self) -> None:
        """Put the weights back at the trial point, bit for bit."""
        old = self.numbers.tensors()
        is_there = torch.arange(self.pieces, device=self.device) < old["position"]
        for flat in self.flats:
            steps = torch.where(is_there, old["lr"][flat.group] * old["alpha"][: self.pieces], 0.0)
            flat.put(flat.kept["centre"] - _combined(flat, steps))

    def send(self, bundle: Bundle) -> None:
        for slot in self.slots:
            _scale_velocity(slot)
        n, alpha = bundle.position, bundle.alpha.copy()
        alpha[n:], alpha[-1] = 0.0, bundle.alpha[min(n, bundle.size - 1)]
        self._send({**bundle.numbers(), "alpha": alpha})

    def read(self) -> tuple[dict[str, Any], StepInfo | None]:
        numbers, info = super().read()
        for slot in self.slots:
            if "active" in slot.state:
                slot.state["active"] = int(numbers["position"] > 0)
        return numbers, info

    def _plain(self, numbers: dict[str, Array]) -> dict[str, Any]:
        n, alpha = int(numbers["position"]), numbers["alpha"].copy()
        if self.size > 1:
            alpha[n], alpha[n + 1 :] = numbers["alpha"][-1], 0.0
        return {**numbers, "alpha": alpha, "position": n, "lower_bound": float(numbers["lower_bound"])}

    def _describe(self, told: dict[str, Array]) -> StepInfo:
        bundle = Bundle(self.size, len(told["lr"]), {**self._plain(told), "dropped": 0, "evaluating": False})
        bundle.has_cap = self.has_cap
        return bundle.description()()


class _BundleBatch:
    """The vectors of one flat at the time of one batch. Where a bundle has one linear piece, no centre is kept."""

    def __init__(self, flat: Flat, is_first: Tensor, *, keeps_centre: bool) -> None:
        self.flat = flat
        self.newest = flat.newest()
        self.weights = self.base = flat.weights()
        if keeps_centre:
            self.base = flat.kept["centre"]
            torch.where(is_first, self.weights, self.base, out=self.base)

    def products(self) -> Tensor:
        """With the gradients in all rows; the last one is its own."""
        G = self.flat.all_with(self.newest)
        return torch.mv(G, G[-1]).to(torch.float64)

    def move(self, steps: Tensor, row: Tensor, ok: Tensor, completes: Tensor, momentum: float) -> None:
        """Nesterov's update where the bundle is complete, the step alone where it is not, and none for a dropped batch.

        ``u = sum of step * gradient; v = momentum * v + u; weights = base - u - momentum * v``
        """
        ok, completes = ok.to(self.flat.device), completes.to(self.flat.device)
        self.flat.keep(self.newest, row.to(self.flat.device))
        u = torch.where(ok, _combined(self.flat, steps), 0.0)
        point = self.base - u
        if "velocity" in self.flat.kept:
            velocity = self.flat.kept["velocity"]
            torch.where(completes, torch.add(u, velocity, alpha=momentum).to(velocity), velocity, out=velocity)
            point = torch.addcmul(point, velocity.to(u.dtype), -momentum * completes.to(u.dtype))
        self.point = torch.where(ok, point.to(self.weights.dtype), self.weights)
        self.flat.put(self.point)

    def undo_projection(self, completes: Tensor) -> None:
        """Trial points are not projected."""
        self.flat.put(torch.where(completes.to(self.flat.device), self.flat.weights(), self.point))


def _combined(flat: Flat, steps: Tensor) -> Tensor:
    return torch.mv(at_least(flat.rows, torch.float32).mT, steps.to(flat.device, flat.precise))


def _scale_velocity(slot: Slot) -> None:
    """On the host it may be kept in other units, see :func:`borat.vectors.descend_with_momentum`."""
    if "velocity" in slot.tensors and slot.state["velocity_scale"] != 1.0:
        slot.tensors["velocity"].mul_(slot.state["velocity_scale"])
        slot.state["velocity_scale"] = 1.0
