"""Optimizers, losses and schedules by name, with a common interface."""

from borat.lab.baselines.optimizers import check_optimizer, make_loss, make_optimizer
from borat.lab.baselines.schedules import make_schedule
from borat.lab.baselines.stepping import drops_batches, evaluating, is_lost, needs_flush, step_size, take_step

__all__ = ["check_optimizer", "drops_batches", "evaluating", "is_lost", "make_loss"]
__all__ += ["make_optimizer", "make_schedule", "needs_flush", "step_size", "take_step"]
