"""Integration with Lightning's ``Trainer``: a callback for optimizers returned by ``configure_optimizers``.

Example::

    trainer = lightning.Trainer(callbacks=[BoratCallback()])
    trainer.fit(model, batches)

Complete program: ``examples/lightning_trainer.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from borat import FreeBORAT
from borat._checks import check_count
from borat._optim.base import LossOptimizer
from borat.integrations import unwrap, warn_about_clipping
from borat.integrations.result import Forward, ResultPoint, has_statistics

__all__ = ["BoratCallback"]


class BoratCallback(Callback):
    """Pass the losses to the optimizer, and keep the model at the result between batches.

    The callback supports automatic optimization with gradient accumulation and with every precision. Between two
    batches, the model is at the result: FreeBORAT's average, or the centre of BORAT's open bundle. So the result is
    validated, tested, averaged and saved, and it is the final model. Training resumes exactly from a checkpoint. A
    bundle of BORAT that is open at the end stays open, also in the checkpoint; ``optimizer.flush()`` completes it with
    the pieces it has.

    With FreeBORAT, the running statistics of BatchNorm layers are measured at the result, on the last training batches:
    before each validation, before a checkpoint is written, and when ``fit`` ends. This costs nothing for models without
    such layers and for other optimizers.

    Put the callback before others that read the weights after a batch. With manual optimization, pass the losses
    yourself: ``optimizer.step(closure=lambda: loss)``.

    Args:
        forward: function that runs the module on a training batch to measure the statistics; by default
            ``module(batch)``, or ``module(batch[0])`` for tuples and lists. Needed if the module has no ``forward`` or
            takes other parts of a batch: ``BoratCallback(forward=lambda module, batch: module.net(batch["image"]))``.
            The return value is ignored. Do not use ``training_step``, which may log or take steps.
        batches: number of batches on which to measure the statistics; they are kept on the device.
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
        warn_about_clipping("gradient_clip_val", trainer.gradient_clip_val, _optimizers(trainer))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._result.train()

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if pl_module.automatic_optimization:
            unwrap(trainer.optimizers[0]).observe(_unscaled(loss.detach(), trainer))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._result.store(batch)
        self._result.eval()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._result.measure()

    # on_train_batch_end is not called for a batch that is skipped or interrupted.

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._result.eval()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._result.eval()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._result.measure()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._result = ResultPoint()  # release the batches

    def _check_forward(self, pl_module: LightningModule) -> None:
        if self._forward is None and type(pl_module).forward is LightningModule.forward:
            raise ValueError(
                f"forward must be given: {type(pl_module).__name__} has no forward method, which is needed to measure "
                "the statistics of its BatchNorm layers at FreeBORAT's result; for example "
                "BoratCallback(forward=lambda module, batch: module.net(batch[0]))"
            )


def _optimizers(trainer: Trainer) -> list[LossOptimizer]:
    """Return borat's optimizers; with manual optimization there may be others."""
    return [optimizer for optimizer in trainer.optimizers if isinstance(optimizer, LossOptimizer)]


def _unscaled(loss: Tensor, trainer: Trainer) -> Tensor:
    """Return the unscaled loss: with ``16-mixed``, Lightning passes the scaled one."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return loss if scaler is None else loss / scaler.scale(torch.ones_like(loss))
