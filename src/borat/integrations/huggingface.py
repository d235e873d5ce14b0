"""BORAT in the ``Trainer`` of Hugging Face transformers: use ``BoratTrainer`` in its place.

Example::

    trainer = BoratTrainer(
        model=model,
        args=TrainingArguments("out", max_grad_norm=0, lr_scheduler_type="constant"),
        train_dataset=dataset,
        optimizer_cls_and_kwargs=(BORAT, {"lr": 1.0}),
    )
    trainer.train()

All of it, to run: ``examples/huggingface_trainer.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import Trainer, TrainerCallback

from borat.integrations import unwrap, warn_of_clipping

__all__ = ["BoratMixin", "BoratTrainer"]


class _Centre(TrainerCallback):
    """Puts the model at the centre after each step; the trainer itself goes back before the next batch."""

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        unwrap(kwargs["optimizer"]).forget_observed()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        unwrap(kwargs["optimizer"]).eval()


class BoratMixin(Trainer if TYPE_CHECKING else object):  # type: ignore[misc]
    """Makes any ``Trainer`` one for BORAT: ``class MyTrainer(BoratMixin, Seq2SeqTrainer): ...``.

    It tells the optimizer the loss of each batch as it is differentiated, also with gradient accumulation. Between two
    steps the model is at the centre of the open bundle: that is what is evaluated and saved, and what remains in the
    end. A bundle that is open then stays open, in the checkpoint too, and resuming continues as if nothing happened.

    Set ``max_grad_norm=0``, as the trainer clips gradients otherwise, and bound the weights by a constraint of the
    optimizer instead of ``weight_decay``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        warn_of_clipping("max_grad_norm", self.args.max_grad_norm)
        if self.args.weight_decay:
            raise ValueError(
                f"weight_decay must be 0 with BORAT, got {self.args.weight_decay:g}: pass a constraint to the optimizer"
            )
        self.add_callback(_Centre())

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().training_step(*args, **kwargs)
        unwrap(self.optimizer).observe(loss)
        return loss


class BoratTrainer(BoratMixin, Trainer):
    """The ``Trainer`` of transformers with :class:`BoratMixin`."""
