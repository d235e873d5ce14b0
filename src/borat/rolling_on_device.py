"""FreeBORAT's rolling bundle on the device: its six steps as operations on vectors.

The pieces are in the order of their rows, the newest last. Those that are not there yet are copies of the target, with
a zero gradient: whatever weight they get is the target's. A batch that is dropped changes neither point nor row nor
count, as on the host.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from borat.bundle import StepInfo
from borat.dual import Array
from borat.dual_on_device import maximise
from borat.flat import Flat
from borat.keeping import Constraint
from borat.measure import Loss, Measure
from borat.on_device import Groups, OnDevice, folded, number, polyak_step
from borat.parameters import Slot
from borat.rolling import AIM, RollingBundle, describe, rows_of


class RollingOnDevice(OnDevice):
    """See :class:`borat.rolling.RollingBundle` for the numbers, and :class:`OnDevice` for the rest."""

    def __init__(self, slots: list[Slot], params: list[Tensor], groups: int, bundle: RollingBundle) -> None:
        size = bundle.size
        numbers = {"batches": (), "at_origin": (size - 2,), "gaps": (), "squares": (), "beta": ()}
        scalars = dict.fromkeys(("batches", "eta", "dual_value", "step_norm", "lower_bound"), ())
        super().__init__(
            slots, params, size - 1, numbers, {"alpha": (size,), "values": (size,), "lr": (groups,), **scalars}
        )
        self._longest = min((torch.finfo(flat.dtype).max for flat in self.flats), default=math.inf)
        self.send(bundle)

    def take(self, loss: Loss, groups: Groups, measure: Measure, constraint: Constraint | None) -> None:
        first, old = groups[0], self.numbers.tensors()
        beta, beta2 = first["betas"]
        k = old["batches"] + 1.0
        lr = [number(group["lr"], self.device) for group in groups]

        # 1. and 2. The metric, and all inner products in it.
        batches = [_RollingBatch(flat, beta2, (1.0 - beta2**k).rsqrt(), first["eps"]) for flat in self.flats]
        zeros = torch.zeros(self.pieces * (self.pieces + 1) + 1, dtype=torch.float64, device=self.device)
        products = sum((batch.products().to(self.device) for batch in batches), start=zeros)
        value, products = measure.on_device(number(loss, self.device), products)
        gram, at_centre, apart = products.split_with_sizes((self.pieces**2, self.pieces, 1))
        newest = value + apart
        is_there = torch.arange(self.pieces - 1, device=self.device) < old["batches"]

        # 3. and 4. The target and the cap; the dual.
        bound, aim = first["lower_bound"], first["aim"]
        gap = (newest - bound).clamp_min(0.0)
        target = gap * (1.0 - (AIM if aim is None else aim) * (1.0 - beta**k))
        gram = gram.view(self.pieces, self.pieces)
        gaps, squares = old["gaps"] + gap[0], old["squares"] + gram[-1, -1]
        eta = polyak_step(gap, gram[-1, -1])
        if aim is None:
            eta = torch.minimum(eta, polyak_step(gaps, squares))
        older = torch.where(is_there, old["at_origin"] + at_centre[:-1] - bound, target)
        values = torch.cat((older, newest - bound, target))
        Q = pad(eta * (gram + gram.mT) / 2.0, (0, 1, 0, 1))
        alpha = folded(maximise(Q, values), pad(is_there, (0, 1), value=True) & (eta > 0.0))
        steps = eta * alpha[:-1]

        # 5. The step, unless it leaves the range of numbers.
        for batch in batches:
            batch.find_step(lr[batch.flat.group] * steps)
        norm = sum((batch.squared_norm().to(self.device) for batch in batches), start=zeros[0]).sqrt()
        ok = torch.cat((products, value.reshape(1))).isfinite().all() & (norm <= self._longest)
        for batch in batches:
            decay = groups[batch.flat.group]["weight_decay"]
            batch.move_centre(lr[batch.flat.group] * steps.sum() * decay if decay else None, ok)
        if constraint is not None:
            self._project(constraint, [z for batch in batches for z in batch.flat.shaped(batch.z)], ok)

        # 6. Its share in the average, and what is kept.
        pull = 1.0 - 2.0 / (k + 1.0)
        ratio = torch.where(old["beta"] > 0.0, beta / old["beta"], 1.0)
        row = torch.remainder(old["batches"], max(self.pieces - 1, 1)).where(ok, self.pieces - 1).long()
        for batch in batches:
            batch.finish(ok, pull, ratio, beta, is_constrained=constraint is not None)
            batch.flat.keep(batch.newest, row.to(batch.flat.device))
        self.told.put(
            {
                "alpha": alpha,
                "values": values,
                "lr": torch.stack(lr),
                "batches": old["batches"],
                "eta": eta,
                "dual_value": alpha @ values - 0.5 * alpha @ Q @ alpha,
                "step_norm": norm,
                "lower_bound": number(bound, self.device),
            },
            where=ok,
        )
        self._count(ok, ok, value, bound)
        kept = torch.arange(self.pieces - 1, device=self.device) == row
        at_origin = torch.where(kept, newest - at_centre[-1], old["at_origin"])
        now = {"batches": k, "at_origin": at_origin, "gaps": gaps, "squares": squares}
        self.numbers.put({**now, "beta": number(beta, self.device)}, where=ok)
        self.is_ahead = True

    def send(self, bundle: RollingBundle) -> None:
        at_origin = [0.0] * (self.pieces - 1)
        for row, value in zip(bundle.rows, bundle.at_origin, strict=True):
            at_origin[row] = value
        self._send({**bundle.numbers(), "at_origin": at_origin})

    def _plain(self, numbers: dict[str, Array]) -> dict[str, Any]:
        batches = int(numbers["batches"])
        at_origin = [float(numbers["at_origin"][row]) for row in rows_of(batches, self.pieces - 1)]
        scalars = {name: float(numbers[name]) for name in ("gaps", "squares", "beta")}
        return {"batches": batches, "at_origin": at_origin, **scalars}

    def _describe(self, told: dict[str, Array]) -> StepInfo:
        pieces = [*rows_of(int(told["batches"]), self.pieces - 1), -2, -1]  # the newest and the target are the last
        return describe(
            told["alpha"][pieces],
            told["values"][pieces],
            eta=float(told["eta"]),
            dual_value=float(told["dual_value"]),
            step_norm=float(told["step_norm"]),
            lower_bound=float(told["lower_bound"]),
            lr=told["lr"].tolist(),
        )


class _RollingBatch:
    """The vectors of one flat at the time of one batch: ``y``, ``z`` and the metric ``D``."""

    def __init__(self, flat: Flat, beta2: float, correction: Tensor, eps: float) -> None:
        self.flat = flat
        self.newest = flat.newest()
        self.G = flat.all_with(self.newest)
        self.y = flat.weights()
        self.z = flat.kept["centre"]
        self.z_before = self.z.clone()
        self.apart = self.y.to(self.G.dtype) - self.z
        self.root = torch.hypot(flat.kept["rms"] * math.sqrt(beta2), self.G[-1] * math.sqrt(1.0 - beta2))
        self.D = self.root * correction.to(flat.device) + eps

    def products(self) -> Tensor:
        """``<g_i, g_j / D>`` of all pieces, then ``<g_i, z>``; last, for the newest, ``<g, z - y>``."""
        pairs = [torch.mv(self.G, g / self.D) for g in self.G]
        at_centre = torch.mv(self.G, self.z.to(self.G.dtype))
        return torch.cat((*pairs, at_centre, -torch.mv(self.G[-1:], self.apart))).to(torch.float64)

    def find_step(self, steps: Tensor) -> None:
        self.u = torch.mv(self.G.mT, steps.to(self.flat.device, self.G.dtype)) / self.D

    def squared_norm(self) -> Tensor:
        return torch.dot(self.u, self.u).to(torch.float64)

    def move_centre(self, decay: Tensor | None, ok: Tensor) -> None:
        u = self.u if decay is None else torch.addcmul(self.u, self.y.to(self.u.dtype), decay.to(self.u))
        self.z.sub_(torch.where(ok.to(u.device), u, 0.0))

    def finish(self, ok: Tensor, pull: Tensor, ratio: Tensor, beta: float, *, is_constrained: bool) -> None:
        """``y' = z' + pull * (ratio * (y - z) - beta * (z' - z))``, wherever a projection has put ``z'``."""
        ok, pull, ratio = ok.to(self.z.device), pull.to(self.z.device), ratio.to(self.z.device)
        if is_constrained:  # a projection of what was projected before may differ in the last bit
            torch.where(ok, self.z, self.z_before, out=self.z)
        moved = (self.z - self.z_before).to(self.u.dtype)
        y = torch.addcmul(self.apart * (pull * ratio), moved, -beta * pull) + self.z
        self.flat.put(torch.where(ok, y.to(self.y.dtype), self.y))
        rms = self.flat.kept["rms"]
        torch.where(ok, self.root, rms, out=rms)
