"""borat's optimizers in the ``Trainer`` of Hugging Face transformers: use ``BoratTrainer`` in its place.

Example::

    trainer = BoratTrainer(
        model=model,
        args=TrainingArguments("out", max_grad_norm=0, lr_scheduler_type="constant"),
        train_dataset=dataset,
        optimizer_cls_and_kwargs=(FreeBORAT, {}),
    )
    trainer.train()

All of it, to run: ``examples/huggingface_trainer.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from borat import FreeBORAT
from borat.integrations import unwrap, warn_of_clipping
from borat.integrations.result import ResultPoint

__all__ = ["BoratMixin", "BoratTrainer"]


class _ToResult(TrainerCallback):
    """Puts the model at the result after each step; the trainer itself goes back before the next batch."""

    def __init__(self, trainer: BoratMixin) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer._start(kwargs["model"], kwargs["optimizer"])

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        unwrap(kwargs["optimizer"]).forget_observed()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer._result.reach()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Not in the end of the training, where the model may be another one, the best."""
        self._trainer._result.measure()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer._result = ResultPoint()  # forget the batches


class BoratMixin(Trainer if TYPE_CHECKING else object):  # type: ignore[misc]
    """Makes any ``Trainer`` one for borat: ``class MyTrainer(BoratMixin, Seq2SeqTrainer): ...``.

    It tells the optimizer the loss of each batch as it is differentiated, also with gradient accumulation. Between two
    steps the model is at the result, which is FreeBORAT's average, or the centre of BORAT's open bundle: that is what
    is evaluated and saved, and what remains in the end. A bundle that is open then stays open, in the checkpoint too,
    and resuming continues as if nothing happened.

    With FreeBORAT, the running statistics of BatchNorm layers are measured again at the result, on the last training
    batches: before evaluations and checkpoints, and in the end. The model is run by ``compute_loss`` to that end.

    With BORAT and ALIG, set ``max_grad_norm=0``, as the trainer clips gradients otherwise, and bound the weights by a
    constraint of the optimizer: ``weight_decay`` is for FreeBORAT alone, which does not mind clipping.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        warn_of_clipping("max_grad_norm", self.args.max_grad_norm, [self.optimizer])
        self._result = ResultPoint()
        self.add_callback(_ToResult(self))

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        self._result.leave()
        loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
        unwrap(self.optimizer).observe(loss)
        self._result.remember(inputs)
        return loss

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        self._result.measure()
        return super().evaluation_loop(*args, **kwargs)

    def _start(self, model: nn.Module, optimizer: Any) -> None:
        ours = unwrap(optimizer)
        if self.args.weight_decay and not isinstance(ours, FreeBORAT):
            raise ValueError(
                f"weight_decay must be 0 with BORAT, got {self.args.weight_decay:g}: pass a constraint to the optimizer"
            )
        self._result = ResultPoint(model, [ours], self._run, self.compute_loss_context_manager)

    def _run(self, model: nn.Module, inputs: dict[str, Any]) -> None:
        self.compute_loss(model, self._prepare_inputs({**inputs}))


class BoratTrainer(BoratMixin, Trainer):
    """The ``Trainer`` of transformers with :class:`BoratMixin`."""
