"""Train one model: batch, loss, step, metrics, checkpoint.

A run can be stopped at any time; on the CPU, it resumes bit for bit. The order of the batches and their augmentation
depend only on the seed and the epoch, and the checkpoint holds everything else. It is written after every epoch, and
within an epoch if the process is asked to stop by a signal.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from borat.batchnorm import update_statistics
from borat.lab import baselines, data
from borat.lab.config import Execution, RunConfig
from borat.lab.files import check_writable
from borat.lab.methods import METHODS
from borat.lab.metrics import goodness, primary_measure
from borat.lab.signals import Interrupted, asking_to_stop
from borat.lab.store.run import Metrics, Run, exclusive
from borat.lab.tasks import find_task
from borat.lab.training.checkpoint import State
from borat.lab.training.model import check_last_batch, make_model_for, prepare, warn_of_few_batches
from borat.lab.training.objective import Objective, Tally, make_objective
from borat.lab.training.processes import launch, sum_over_processes, without_denormals
from borat.lab.training.tasks import train_task
from borat.lab.training.tensorboard import Events

EVALUATION_BATCH = 512
STATISTICS_BATCHES = 16
"""Number of batches on which running statistics are measured at an average."""
PATIENCE = 5.0
"""Seconds to wait for another process to release the run's folder."""


@dataclass
class Position:
    """Position of a run: the next batch to train on."""

    epoch: int = 0
    batch: int = 0


Listener = Callable[[Position, Tally, int], None]
"""Called after each batch with the position, the tally of the epoch and the number of batches in an epoch."""


class Training:
    """One run, from its configuration to its result."""

    def __init__(
        self,
        config: RunConfig,
        task: data.Task,
        objective: Objective,
        model: nn.Module,
        run: Run,
        fabric: Fabric,
        execution: Execution,
    ) -> None:
        self.config, self.objective, self.run = config, objective, run
        self.fabric, self.execution = fabric, execution
        self.task = task.to(fabric.device)
        self.batches = task.num_batches("train", config.batch_size)
        if execution.compile:
            model.compile()
        self.model = fabric.setup_module(model)
        torch.manual_seed(config.seed + 1_000_003 * fabric.global_rank)  # each process draws its own dropout masks
        self.optimizer: Any = baselines.make_optimizer(self.model, config)
        self.schedule = baselines.make_schedule(self.optimizer, config, self.batches)
        self.state = State(fabric, self.model.module, self.optimizer)
        self.position, self.tally, self.metrics = Position(), Tally(), Metrics()

    @property
    def _batches_done(self) -> int:
        return self.position.epoch * self.batches + self.position.batch

    def fit(self, listener: Listener | None = None) -> Metrics:
        """Train to the end of the budget, or until the loss is no longer finite, which is a result as well."""
        self._open()
        try:
            with asking_to_stop() as should_stop, self.events:
                while self.metrics.status == "running":
                    self._train_epoch(listener if self.fabric.is_global_zero else None, should_stop)
                    self._finish_epoch()
        except Interrupted:
            raise
        except Exception:
            with suppress(OSError):  # such as a full disk, which may be the failure itself
                self._write_metrics(replace(self.metrics, status="failed"))
            raise
        return self.metrics

    def _open(self) -> None:
        """Create the run's folder, now that the configuration is known to be valid, or resume the run in it."""
        if self.fabric.is_global_zero:
            about = {"data": asdict(self.task.description), "execution": self.execution.model_dump()}
            Run.create(self.run.path, self.config, **about)
        self.fabric.barrier()
        if (state := self.run.load("last.pt")) is not None:
            self.state.set(state)
            self.schedule.load_state_dict(state["schedule"])
            self.position = Position(**state["position"])
            self.tally = Tally(**state["tally"]) if self.fabric.is_global_zero else Tally()
            self.metrics = Metrics(**state["metrics"])
        if self.metrics.epochs or self.run.has_metrics():  # the last attempt failed, or was killed after its checkpoint
            self._write_metrics(self.metrics)
        has_events = self.execution.tensorboard and self.fabric.is_global_zero and self.metrics.status == "running"
        self.events = Events(self.run.path / "tensorboard" if has_events else None, self.optimizer, self._batches_done)

    def _train_epoch(self, listener: Listener | None, should_stop: Callable[[], bool]) -> None:
        self.model.train()
        start = time.perf_counter()
        for batch in self._batches("train", self.config.batch_size, start=self.position.batch):
            scores, loss = self._forward(batch)
            lost = baselines.is_lost(self.optimizer, loss.item())
            if math.isfinite(loss.item()) or lost:  # otherwise the optimizer drops the batch
                self.tally.add(self.objective.measure(scores, batch.labels, loss.item()))
            if any(sum_over_processes(self.fabric, lost)):
                return
            self.optimizer.zero_grad()
            self.fabric.backward(loss)
            self._update(partial(baselines.take_step, self.optimizer, loss.detach()))
            self.schedule.after_batch()
            self.position.batch += 1
            self.tally.seconds += time.perf_counter() - start
            start = time.perf_counter()
            self.events.batch(self._batches_done, loss)
            if listener is not None:
                listener(self.position, self.tally, self.batches)
            if any(sum_over_processes(self.fabric, should_stop())):
                self._save("last.pt")
                raise Interrupted(
                    f"stopped at epoch {self.position.epoch}, batch {self.position.batch}; resume to continue"
                )

    def _batches(self, split: str, batch_size: int, **options: Any) -> Iterator[data.Batch]:
        rank, processes = self.fabric.global_rank, self.fabric.world_size
        options |= {"seed": self.config.seed, "rank": rank, "world_size": processes}
        return self.task.batches(split, batch_size, epoch=self.position.epoch, **options)

    def _forward(self, batch: data.Batch) -> tuple[Tensor, Tensor]:
        scores = self.model(*(prepare(x, self.config) for x in batch.inputs))
        return scores.detach(), self.objective.loss(scores, batch.labels)

    def _update(self, update: Callable[[], None]) -> None:
        """Update the weights; record the kind and the size of the step if one was completed."""
        before = getattr(self.optimizer, "last_step", None)
        update()
        if baselines.drops_batches(self.optimizer):
            step = self.optimizer.last_step
            if step is None or step is before:
                return
            self.tally.kinds[step.kind] = self.tally.kinds.get(step.kind, 0) + 1
        size = baselines.step_size(self.optimizer)
        if size is not None:
            self.tally.step_sizes += size
            self.tally.steps += 1

    def _finish_epoch(self) -> None:
        """Evaluate the model, record the epoch and save the run."""
        if self.position.epoch + 1 == self.config.epochs and baselines.needs_flush(self.optimizer):
            self._update(self.optimizer.flush)
        record = self._record_epoch()
        watched = f"validation_{primary_measure(self.objective.measures)}"
        score = goodness(watched, record[watched])
        is_best = score >= max((goodness(watched, epoch[watched]) for epoch in self.metrics.epochs), default=-math.inf)
        self.schedule.after_epoch(score)
        self.metrics.epochs.append(record)
        self.position, self.tally = Position(self.position.epoch + 1), Tally()
        diverged = not (math.isfinite(record["train_loss"]) and math.isfinite(record["validation_loss"]))
        if diverged or self.position.epoch == self.config.epochs:
            self.metrics.status = "diverged" if diverged else "finished"
            tested = "test" if "test" in self.task.splits else "validation"
            self.metrics.result = self._evaluate(tested) | self._evaluate("train", "fit")
        self.events.epoch(self._batches_done, record)
        self._save(*(("best.pt", "last.pt") if is_best else ("last.pt",)))
        self._write_metrics(self.metrics)

    def _record_epoch(self) -> dict[str, Any]:
        tally = self.tally
        record: dict[str, Any] = {"epoch": self.position.epoch, "seconds": tally.seconds}
        record |= self._means("train", tally)
        record["lr"] = float(self.optimizer.param_groups[0]["lr"])
        record["step_size"] = tally.step_sizes / tally.steps if tally.steps else None
        record["kinds"] = dict(Counter(tally.kinds).most_common())
        self._measure_statistics()
        record |= self._evaluate("validation")
        if baselines.drops_batches(self.optimizer):
            record["dropped_batches"] = self.optimizer.dropped_batches
        return record

    def _write_metrics(self, metrics: Metrics) -> None:
        if self.fabric.is_global_zero:
            self.run.write_metrics(metrics)

    @torch.no_grad()
    def _evaluate(self, split: str, name: str = "") -> dict[str, float]:
        """Return the measures of a split at the optimizer's result, which may be a centre or an average."""
        self.model.eval()
        tally = Tally()
        with baselines.evaluating(self.optimizer):
            for batch in self._batches(split, EVALUATION_BATCH, shuffle=False, augment=False):
                scores, loss = self._forward(batch)
                tally.add(self.objective.measure(scores, batch.labels, loss.item()))
        return self._means(name or split, tally)

    def _measure_statistics(self) -> None:
        """Measure running statistics at the average; those from training belong to a different point."""
        if METHODS[self.config.optimizer].averages:
            self.model.eval()
            batches = self._batches("train", self.config.batch_size)
            count, forward = STATISTICS_BATCHES, lambda model, batch: self._forward(batch)
            update_statistics(self.model, batches, self.optimizer, count=count, forward=forward)

    def _means(self, split: str, tally: Tally) -> dict[str, float]:
        means = tally.over_processes(self.fabric).means()
        return {f"{split}_{name}": means[name] for name in self.objective.measures}

    def _save(self, *names: str) -> None:
        state = self.state.get() | {
            "schedule": self.schedule.state_dict(),
            "position": asdict(self.position),
            "tally": asdict(self.tally.over_processes(self.fabric)),
            "metrics": asdict(self.metrics),
        }
        if self.fabric.is_global_zero:
            for name in names:
                self.run.save(name, state)


def train(
    config: RunConfig,
    folder: Path,
    *,
    data_dir: Path | None = None,
    execution: Execution | None = None,
    listener: Listener | None = None,
) -> Metrics:
    """Train as configured and store the run in ``folder``; resume it if it was interrupted.

    ``listener`` is called after each batch. Errors in the configuration are raised before processes are started.
    """
    execution = execution or Execution()
    check_writable(folder)
    baselines.check_optimizer(config)
    if config.task is not None:
        if execution.devices > 1:
            raise ValueError(f"devices must be 1 for a task, got {execution.devices}")
        other_task = find_task(config.task)
        with exclusive(folder, PATIENCE), without_denormals():
            return train_task(other_task, config, Run(folder))
    task = data.load_for(config, data_dir)
    objective = make_objective(config, task.description)
    torch.manual_seed(config.seed)
    model = make_model_for(task, config)
    check_last_batch(model, len(task.split("train")), config.batch_size, execution.devices)
    with exclusive(folder, PATIENCE), without_denormals():
        fabric = launch(execution, config.precision)
        if fabric.is_global_zero:
            warn_of_few_batches(config, task.num_batches("train", config.batch_size))
        return Training(config, task, objective, model, Run(folder), fabric, execution).fit(listener)
