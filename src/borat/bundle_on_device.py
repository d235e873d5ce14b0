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

from borat import kernels_on_device
from borat.bundle import Bundle, StepInfo
from borat.checks import has_no_end
from borat.dual import Array
from borat.flat import Flat
from borat.keeping import Constraint
from borat.measure import Loss, Measure
from borat.on_device import Groups, OnDevice, number, polyak_step
from borat.parameters import Slot


class BundleOnDevice(OnDevice):
    """See :class:`borat.bundle.Bundle` for the numbers, and :class:`OnDevice` for the rest."""

    def __init__(self, slots: list[Slot], params: list[Tensor], bundle: Bundle) -> None:
        for slot in slots:
            _scale_velocity(slot)
        shapes = {name: getattr(bundle, name).shape for name in ("gram", "offsets", "alpha")}
        shapes |= {"settings": (len(bundle.lr) + 1,), "position": ()}
        super().__init__(slots, params, len(bundle.offsets), shapes, shapes)
        self.size = bundle.size
        self.has_cap = True
        piece = torch.arange(self.pieces, dtype=torch.float64, device=self.device)
        always = self.zero.reshape(1) - 1.0
        self._bars = torch.cat((piece, always, piece - 0.5, always, self.zero.reshape(1), always + self.pieces - 0.5))
        """What the number of pieces has to be above, see :class:`_Masks`."""
        self._own_row = always + self.pieces
        self._longest = min((torch.finfo(flat.precise).max for flat in self.flats), default=math.inf)
        self.send(bundle)

    def take(self, loss: Loss, groups: Groups, measure: Measure, constraint: Constraint | None) -> None:
        old, more = self.numbers.tensors()[0], self.numbers.one_more()
        masks = _Masks(self._bars < old["position"], self.pieces)
        self.has_cap = not has_no_end(groups[0]["lr"])

        # 1. The gradient's row of the Gram matrix, in which only the pieces up to it count.
        batches = [_batch_of(flat)(flat, masks.is_open, keeps_centre=self.size > 2) for flat in self.flats]
        products = self._products(batches, len(groups))
        value, products = measure.on_device(number(loss, self.device), products)
        row = torch.where(masks.before, products, products.narrow(-1, self.pieces - 1, 1))
        gram = torch.where(masks.is_new.unsqueeze(-1), row.unsqueeze(-2), old["gram"])
        gram = torch.where(masks.is_new, row.unsqueeze(-1), gram)

        # 2. and 3. The new offset needs no weights; the dual over all pieces and the bound.
        settings = self._settings_of(groups, masks, old["settings"], value, row)
        lr, bound = settings.split_with_sizes((len(groups), 1))
        trial = torch.where(masks.before, old["alpha"].narrow(0, 0, self.pieces), self.zero)
        above_bound = value - bound
        offset = above_bound + torch.dot(trial, torch.mv(row.mT, lr))
        offsets = torch.where(masks.is_new, offset, old["offsets"])
        Q = torch.mv(gram.flatten(1).mT, lr).view(self.pieces, self.pieces)
        alpha = self._weights(torch.cat((offsets.unsqueeze(0), Q)), masks)
        steps = lr.unsqueeze(-1) * alpha.narrow(0, 0, self.pieces)
        # The offset is NaN where any of the products is not finite; a step may be too long for the parameters' type.
        ok = (offset.abs() < math.inf) & (steps.abs().amax() <= self._longest)

        # 4. The trial point for the next piece or, with the last one, the new centre.
        completes = ok & masks.is_last
        kept_row = torch.where(ok, old["position"], self._own_row).long()
        steps = torch.where(ok, steps, lr.unsqueeze(-1) * trial)
        for batch in batches:
            batch.move(steps[batch.flat.group], kept_row, ok, completes, groups[batch.flat.group]["momentum"])
        if constraint is not None:
            self._project(constraint, [slot.param for flat in self.flats for slot in flat.slots], completes)
            for batch in batches:
                batch.undo_projection(completes)
        new = {"gram": gram, "offsets": offsets, "alpha": alpha, "settings": settings}
        position = more[0]["position"]
        below = old["below"] if self.size == 1 else torch.minimum(old["below"], above_bound)
        now = {**new, "position": torch.where(completes, self.zero, position), "below": below}
        self._keep(ok, completes, value, more, now, {**new, "position": position})

    def _products(self, batches: list[_BundleBatch], groups: int) -> Tensor:
        """With the gradients in all rows, for each parameter group."""
        found = [(batch.flat.group, batch.products()) for batch in batches]
        sums = [self._total([x for own, x in found if own == group], self.pieces) for group in range(groups)]
        return torch.stack(sums) if groups > 1 else sums[0].unsqueeze(0)

    def _settings_of(self, groups: Groups, masks: _Masks, old: Tensor, value: Tensor, row: Tensor) -> Tensor:
        """Learning rates and bound of the open bundle; without a cap, rates for which the Polyak step has weight 1."""
        bound = groups[0]["lower_bound"]
        if not self.has_cap:
            rate = polyak_step((value - bound).clamp_min(0.0), row.sum()).expand(len(groups))
            return torch.cat((rate, self._sent(bound)))
        return torch.where(masks.is_open, old, self._sent(*(group["lr"] for group in groups), bound))

    def _weights(self, problem: Tensor, masks: _Masks) -> Tensor:
        """Offsets are measured from the bound; a bundle of one has none."""
        if self.size == 1:
            return self.zero.reshape(1) + 1.0
        is_there = masks.is_there & masks.is_known.unsqueeze(-1)
        problem = pad(torch.where(is_there, problem, self.zero), (0, 1, 0, 1))
        return self._folded(self.dual(problem.unsqueeze(0))[0], masks.is_there_or_bound)

    def to_trial(self) -> None:
        """Put the weights back at the trial point, bit for bit."""
        old = self.numbers.tensors()[0]
        trial = torch.where(self._bars.narrow(0, 0, self.pieces) < old["position"], old["alpha"][: self.pieces], 0.0)
        steps = old["settings"][:-1].unsqueeze(-1) * trial
        for flat in self.flats:
            flat.put(flat.kept["centre"] - flat.combined(steps[flat.group]))

    def send(self, bundle: Bundle) -> None:
        for slot in self.slots:
            _scale_velocity(slot)
        n, alpha = bundle.position, bundle.alpha.copy()
        alpha[n:], alpha[-1] = 0.0, bundle.alpha[min(n, bundle.size - 1)]
        self._send({**bundle.numbers(), "alpha": alpha, "settings": [*bundle.lr, bundle.lower_bound]})

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
        *lr, bound = numbers["settings"].tolist()
        return {**numbers, "alpha": alpha, "position": n, "lr": lr, "lower_bound": bound}

    def _describe(self, told: dict[str, Array]) -> StepInfo:
        plain = self._plain(told)
        bundle = Bundle(self.size, len(plain["lr"]), {**plain, "dropped": 0, "evaluating": False})
        bundle.has_cap = self.has_cap
        return bundle.description()()


class _Masks:
    """Where in the bundle the batch at hand is, by one comparison."""

    def __init__(self, is_above: Tensor, pieces: int) -> None:
        self.before = is_above.narrow(0, 0, pieces)
        """The pieces before this one."""
        self.is_there = is_above.narrow(0, pieces + 1, pieces)
        self.is_new = self.before ^ self.is_there
        self.is_known = is_above.narrow(0, pieces, pieces + 1)
        """The offsets, and the rows of the pieces that are there."""
        self.is_there_or_bound = is_above.narrow(0, pieces + 1, pieces + 1)
        self.is_open = is_above.narrow(0, 2 * pieces + 2, 1)
        """Whether there was a piece before this one."""
        self.is_last = is_above.narrow(0, 2 * pieces + 3, 1)


def _batch_of(flat: Flat) -> type[_BundleBatch]:
    return _BundleBatchOfKernels if flat.has_kernels else _BundleBatch


class _BundleBatch:
    """The vectors of one flat at the time of one batch. Where a bundle has one linear piece, no centre is kept."""

    def __init__(self, flat: Flat, is_open: Tensor, *, keeps_centre: bool) -> None:
        self.flat = flat
        self.base = flat.load()
        if keeps_centre:
            weights, self.base = self.base, flat.kept["centre"]
            torch.where(is_open.to(flat.device), self.base, weights, out=self.base)

    def products(self) -> Tensor:
        """With the gradients in all rows; the last one is its own."""
        G = self.flat.precise_rows()
        return torch.mv(G, G[-1])

    def move(self, steps: Tensor, row: Tensor, ok: Tensor, completes: Tensor, momentum: float) -> None:
        """Nesterov's update where the bundle is complete, and the step alone where it is not.

        ``u = sum of step * gradient; v = momentum * v + u; weights = base - u - momentum * v``
        """
        flat = self.flat
        flat.keep(row.to(flat.device), ok.to(flat.device))
        u = flat.combined(steps)
        self.point = self.base - u
        if "velocity" in flat.kept:
            v, completes = flat.kept["velocity"], completes.to(flat.device)
            torch.where(completes, torch.add(u, v, alpha=momentum).to(v.dtype), v, out=v)
            self.point.addcmul_(v.to(u.dtype), completes.to(u.dtype), value=-momentum)
        flat.put(self.point)

    def undo_projection(self, completes: Tensor) -> None:
        """Trial points are not projected."""
        self.flat.put(torch.where(completes.to(self.flat.device), self.flat.weights(), self.point))


class _BundleBatchOfKernels(_BundleBatch):
    """The same in two launches."""

    def __init__(self, flat: Flat, is_open: Tensor, *, keeps_centre: bool) -> None:
        self.flat, self.point = flat, flat.load()
        self.centre = flat.kept["centre"] if keeps_centre else None
        self.is_open = is_open.to(flat.device)

    def products(self) -> Tensor:
        sums: Tensor = kernels_on_device.bundle_products(self.flat.rows, self.point, self.centre, self.is_open)
        return sums.sum(0)

    def move(self, steps: Tensor, row: Tensor, ok: Tensor, completes: Tensor, momentum: float) -> None:
        numbers = torch.cat((steps, row, ok, completes, number(momentum, steps.device).reshape(1))).to(
            self.point.device
        )
        velocity = self.flat.kept.get("velocity")
        kernels_on_device.bundle_move(self.flat.rows, self.point, self.centre, velocity, numbers)
        self.flat.put(self.point)


def _scale_velocity(slot: Slot) -> None:
    """On the host it may be kept in other units, see :func:`borat.vectors.descend_with_momentum`."""
    if "velocity" in slot.tensors and slot.state["velocity_scale"] != 1.0:
        slot.tensors["velocity"].mul_(slot.state["velocity_scale"])
        slot.state["velocity_scale"] = 1.0
