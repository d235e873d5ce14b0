"""borat's optimizers in Lightning's ``Trainer``: return one from ``configure_optimizers``, and pass one callback.

Example::

    trainer = lightning.Trainer(callbacks=[BoratCallback()])
    trainer.fit(model, batches)

All of it, to run: ``examples/lightning_trainer.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from borat import FreeBORAT
from borat._checks import check_count
from borat._optim.base import LossOptimizer
from borat.integrations import unwrap, warn_of_clipping
from borat.integrations.result import Forward, ResultPoint, has_statistics

__all__ = ["BoratCallback"]


class BoratCallback(Callback):
    """Tells the optimizer its losses, and shows the rest of Lightning the model at the result.

    It is what automatic optimization needs, with gradient accumulation and with every precision. Between two batches
    the model is at the result, which is FreeBORAT's average, or the centre of BORAT's open bundle: that is what is
    validated, tested, averaged and saved, and what the model is left at when ``fit`` ends. Resuming from a checkpoint
    continues as if nothing had happened. A bundle of BORAT's that is open in the end stays open, in the checkpoint too;
    ``optimizer.flush()`` would complete it with the pieces it has.

    With FreeBORAT, the running statistics of BatchNorm layers are measured again at the result, on the last training
    batches: before each validation, before a checkpoint is written, and when ``fit`` ends. Models without such layers
    and other optimizers do not pay for it.

    Put it before other callbacks that look at the weights after a batch. With manual optimization it leaves the losses
    to you: ``optimizer.step(closure=lambda: loss)``.

    Args:
        forward: runs the module on a training batch to measure the statistics; by default ``module(batch)``, or
            ``module(batch[0])`` for tuples and lists. A module that has no ``forward``, or wants more than the first
            part of a batch, needs it: ``BoratCallback(forward=lambda module, batch: module.net(batch["image"]))``.
            Its result is not used. ``training_step`` would not do, as it may log, or step by itself.
        batches: measure the statistics on so many batches; they are kept on the device.
    """

    def __init__(self, forward: Forward | None = None, batches: int = 8) -> None:
        if forward is not None and not callable(forward):
            raise ValueError(f"forward must be None or a callable on the module and a batch, got {forward!r}")
        check_count("batches", batches)
        self._forward = forward
        self._count = batches
        self._result = ResultPoint()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizers = _optimizers(trainer)
        if any(isinstance(optimizer, FreeBORAT) for optimizer in optimizers) and has_statistics(pl_module):
            self._check_forward(pl_module)
        around = trainer.precision_plugin.forward_context
        self._result = ResultPoint(pl_module, optimizers, self._forward, around, self._count)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        warn_of_clipping("gradient_clip_val", trainer.gradient_clip_val, _optimizers(trainer))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._result.leave()

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if pl_module.automatic_optimization:
            unwrap(trainer.optimizers[0]).observe(_unscaled(loss.detach(), trainer))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._result.remember(batch)
        self._result.reach()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._result.measure()

    # A batch that is skipped or interrupted has no end.

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._result.reach()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._result.reach()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._result.measure()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._result = ResultPoint()  # forget the batches

    def _check_forward(self, pl_module: LightningModule) -> None:
        if self._forward is None and type(pl_module).forward is LightningModule.forward:
            raise ValueError(
                f"forward must be given: {type(pl_module).__name__} has BatchNorm layers, whose statistics FreeBORAT's "
                "result needs, and no forward of its own; for example "
                "BoratCallback(forward=lambda module, batch: module.net(batch[0]))"
            )


def _optimizers(trainer: Trainer) -> list[LossOptimizer]:
    """Those that are ours: with manual optimization there may be others beside them."""
    return [optimizer for optimizer in trainer.optimizers if isinstance(optimizer, LossOptimizer)]


def _unscaled(loss: Tensor, trainer: Trainer) -> Tensor:
    """With ``16-mixed``, Lightning shows the loss only after scaling it."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return loss if scaler is None else loss / scaler.scale(torch.ones_like(loss))
