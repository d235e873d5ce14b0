"""Integration with the ``Trainer`` of Hugging Face transformers: use ``BoratTrainer`` instead.

Example::

    trainer = BoratTrainer(
        model=model,
        args=TrainingArguments("out", max_grad_norm=0, lr_scheduler_type="constant"),
        train_dataset=dataset,
        optimizer_cls_and_kwargs=(FreeBORAT, {}),
    )
    trainer.train()

Complete program: ``examples/huggingface_trainer.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from borat import FreeBORAT
from borat.integrations import unwrap, warn_about_clipping
from borat.integrations.result import ResultPoint

__all__ = ["BoratMixin", "BoratTrainer"]


class _ToResult(TrainerCallback):
    """Move the model to the result after each step; ``training_step`` moves it back."""

    def __init__(self, trainer: BoratMixin) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer._start(kwargs["model"], kwargs["optimizer"])

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        unwrap(kwargs["optimizer"]).forget_observed()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer._result.eval()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure here and not in ``on_train_end``, when the best model may have been loaded."""
        self._trainer._result.measure()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer._result = ResultPoint()  # release the batches


class BoratMixin(Trainer if TYPE_CHECKING else object):  # type: ignore[misc]
    """Add support for borat to any ``Trainer``: ``class MyTrainer(BoratMixin, Seq2SeqTrainer): ...``.

    The mixin passes the loss of each batch to the optimizer, also with gradient accumulation. Between two steps, the
    model is at the result: FreeBORAT's average, or the centre of BORAT's open bundle. So the result is evaluated and
    saved, and it is the final model. An open bundle is part of the checkpoint, and training resumes exactly.

    With FreeBORAT, the running statistics of BatchNorm layers are measured at the result: before evaluations, before
    checkpoints, and at the end. To do so, ``compute_loss`` runs the model on the last training batches.

    With BORAT and ALIG, set ``max_grad_norm=0``, because the trainer clips gradients by default, and use a constraint
    of the optimizer instead of ``weight_decay``. FreeBORAT supports ``weight_decay`` and tolerates clipping.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        warn_about_clipping("max_grad_norm", self.args.max_grad_norm, [self.optimizer])
        self._result = ResultPoint()
        self.add_callback(_ToResult(self))

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        self._result.train()
        loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
        unwrap(self.optimizer).observe(loss)
        self._result.store(inputs)
        return loss

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        self._result.measure()
        return super().evaluation_loop(*args, **kwargs)

    def _start(self, model: nn.Module, optimizer: Any) -> None:
        inner = unwrap(optimizer)
        if self.args.weight_decay and not isinstance(inner, FreeBORAT):
            raise ValueError(
                f"weight_decay must be 0 with BORAT, got {self.args.weight_decay:g}: pass a constraint to the optimizer"
            )
        self._result = ResultPoint(model, [inner], self._run, self.compute_loss_context_manager)

    def _run(self, model: nn.Module, inputs: dict[str, Any]) -> None:
        self.compute_loss(model, self._prepare_inputs({**inputs}))


class BoratTrainer(BoratMixin, Trainer):
    """The ``Trainer`` of transformers with :class:`BoratMixin`."""
