"""Logging of updates to TensorBoard, W&B, MLflow or your own function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from borat._checks import check_count
from borat._numbers.step_info import StepInfo
from borat._optim.base import LossOptimizer

Numbers = dict[str, float]


@runtime_checkable
class Writer(Protocol):
    """A TensorBoard ``SummaryWriter``, or an object with the same method."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> object: ...


class Monitor:
    """Log the numbers of each completed update.

    The monitor is a hook of the optimizer's ``step`` and works in every trainer. Its cost is negligible if steps run on
    the host. If they run on the device, it causes a device sync after each step.

    It logs, with the prefix in front of each name,

    - ``alpha/0``, ``alpha/1``, … and ``alpha/bound``: weight of each piece, that of the constant one last;
    - ``support``: number of pieces with a positive weight;
    - ``kind/SGD``, ``kind/ALIG``, …: number of updates of that kind so far, for bundles of up to three;
    - ``dual_value``, ``step_norm``: see :class:`borat.StepInfo`;
    - ``gap``: the gap that the step aims to close;
    - ``step_size``: effective learning rate; with several parameter groups ``step_size/0``, ``step_size/1``, …;
    - ``dropped_batches``, ``zero_steps``: their counts so far.

    Args:
        optimizer: the optimizer to monitor.
        to: a ``SummaryWriter``, or a function that takes a dictionary of numbers, such as ``wandb.log``,
            ``mlflow.log_metrics`` or the ``log_dict`` of a ``LightningModule``.
        every: log every ``every``-th completed update.
        prefix: prefix of all names.
        first_step: number of steps done before, for the ``SummaryWriter`` of a resumed run.

    Example:
        >>> import torch
        >>> from borat import BORAT
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer, rows = BORAT(model.parameters(), bundle_size=2), []
        >>> monitor = Monitor(optimizer, rows.append)
        >>> loss = model(torch.ones(4)).square().sum()
        >>> loss.backward()
        >>> _ = optimizer.step(loss=loss)
        >>> rows[0]["borat/step_size"] == optimizer.last_step.alpha[0] * 0.1
        True
        >>> monitor.close()
    """

    def __init__(
        self,
        optimizer: LossOptimizer,
        to: Writer | Callable[[Numbers], object],
        *,
        every: int = 1,
        prefix: str = "borat/",
        first_step: int = 0,
    ) -> None:
        check_count("every", every)
        if not isinstance(to, Writer) and not callable(to):
            raise ValueError(f"to must be a SummaryWriter or a function of a dictionary, got {to!r}")
        self.steps = first_step
        self.kinds: Counter[str] = Counter()
        self._to = to
        self._every = every
        self._prefix = prefix
        self._seen = (optimizer.last_step, optimizer.dropped_batches)
        self._hook = optimizer.register_step_post_hook(self._after_step)

    def close(self) -> None:
        """Stop logging."""
        self._hook.remove()

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.steps += 1
        (seen, dropped), info = self._seen, optimizer.last_step
        self._seen = (info, optimizer.dropped_batches)
        if info is not seen:
            self.kinds[info.kind] += 1
            if self.kinds.total() % self._every == 0:
                self._write(optimizer, info)
        elif optimizer.dropped_batches != dropped:  # do not wait for the next completed update
            self._send({"dropped_batches": float(optimizer.dropped_batches)})

    def _write(self, optimizer: LossOptimizer, info: StepInfo) -> None:
        numbers = describe(info)
        if optimizer.bundle_size <= 3:
            numbers |= {f"kind/{kind}": float(count) for kind, count in self.kinds.items()}
        numbers["zero_steps"] = float(optimizer.zero_steps)
        self._send({**numbers, "dropped_batches": float(optimizer.dropped_batches)})

    def _send(self, numbers: Numbers) -> None:
        numbers = {self._prefix + name: number for name, number in numbers.items()}
        if isinstance(self._to, Writer):
            for name, number in numbers.items():
                self._to.add_scalar(name, number, self.steps)
        else:
            self._to(numbers)


def describe(info: StepInfo) -> Numbers:
    """Return the numbers of an update, by name."""
    has_bound = info.target is not None
    pieces = info.alpha[:-1] if has_bound else info.alpha
    numbers = {f"alpha/{n}": weight for n, weight in enumerate(pieces)}
    if has_bound:
        numbers["alpha/bound"] = info.alpha[-1]
    if isinstance(info.step_size, tuple):
        numbers |= {f"step_size/{group}": size for group, size in enumerate(info.step_size)}
    else:
        numbers["step_size"] = info.step_size
    return numbers | {
        "support": float(len(info.support)),
        "dual_value": info.dual_value,
        "gap": info.gap,
        "step_norm": info.step_norm,
    }
