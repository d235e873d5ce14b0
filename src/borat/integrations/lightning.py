"""BORAT in Lightning's ``Trainer``: return it from ``configure_optimizers``, and pass one callback.

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

from borat.integrations import unwrap, warn_of_clipping
from borat.loss_optimizer import LossOptimizer

__all__ = ["BoratCallback"]


class BoratCallback(Callback):
    """Tells the optimizer its losses, and shows the rest of Lightning the model at the centre.

    It is what automatic optimization needs, with gradient accumulation and with every precision. Between two batches
    the model is at the centre of the open bundle: that is what is validated, tested, averaged and saved, and what the
    model is left at when ``fit`` ends. A bundle that is open then stays open, in the checkpoint too, so that resuming
    continues as if nothing had happened; ``optimizer.flush()`` would complete it with the pieces it has.

    Put it before other callbacks that look at the weights after a batch. With manual optimization it leaves the losses
    to you: ``optimizer.step(closure=lambda: loss)``.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        warn_of_clipping("gradient_clip_val", trainer.gradient_clip_val)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        for optimizer in _optimizers(trainer):
            optimizer.train()

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if pl_module.automatic_optimization:
            unwrap(trainer.optimizers[0]).observe(_unscaled(loss.detach(), trainer))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        _to_centre(trainer)

    # A batch that is skipped or interrupted has no end.

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _to_centre(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _to_centre(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        _to_centre(trainer)


def _optimizers(trainer: Trainer) -> list[LossOptimizer]:
    """Those that are ours: with manual optimization there may be others beside them."""
    return [optimizer for optimizer in trainer.optimizers if isinstance(optimizer, LossOptimizer)]


def _to_centre(trainer: Trainer) -> None:
    for optimizer in _optimizers(trainer):
        optimizer.eval()


def _unscaled(loss: Tensor, trainer: Trainer) -> Tensor:
    """With ``16-mixed``, Lightning shows the loss only after scaling it."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return loss if scaler is None else loss / scaler.scale(torch.ones_like(loss))
