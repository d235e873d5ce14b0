"""Train one model: batch, loss, step, metrics, store.

A run can be stopped at any moment and continues bit for bit on the CPU: the order of the batches and their augmentation
depend only on the seed and the epoch, and the checkpoint holds everything else. It is written after every epoch, and
within one when the process is asked to end.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from borat.batchnorm import measure_again
from borat.bundle import StepInfo
from borat.lab import data
from borat.lab.baselines import (
    drops_batches,
    evaluating,
    last_step,
    make_optimizer,
    make_schedule,
    step_size,
    take_step,
)
from borat.lab.baselines.stepping import unwrap
from borat.lab.config import Execution, RunConfig
from borat.lab.files import check_writable
from borat.lab.methods import METHODS
from borat.lab.metrics import goodness, judge
from borat.lab.store.lock import exclusive
from borat.lab.store.run import Metrics, Run
from borat.lab.training.checkpoint import State
from borat.lab.training.checks import check_last_batch, warn_of_few_batches
from borat.lab.training.model import laid_out, make_model_for
from borat.lab.training.objective import make_objective
from borat.lab.training.processes import ask_before_ending, launch, sum_over_processes, without_denormals
from borat.lab.training.tally import Position, Tally
from borat.lab.training.tensorboard import Events

EVALUATION_BATCH = 512
STATISTICS_BATCHES = 16
PATIENCE = 5.0
"""Seconds to wait for another process that is about to leave the run's folder."""

DATA_KEYS = (
    "label_noise",
    "seed",
    "train_limit",
    "validation_size",
    "augment",
    "train_split",
    "glove",
    "image_size",
    "image_column",
    "label_column",
    "window",
)
"""What data depend on, beside their name."""


class Interrupted(Exception):  # noqa: N818 - it is no error
    """The process was asked to end; the run was saved and can be resumed."""


Listener = Callable[[Position, Tally, int], None]
"""Called after each batch with the position, the epoch so far and the number of batches in an epoch."""


def silent(position: Position, tally: Tally, batches: int) -> None:
    """Listener nothing."""


class Training:
    """One run, from its configuration to its result."""

    def __init__(self, config: RunConfig, task: data.Task, folder: Path, execution: Execution) -> None:
        self.config = config
        self.objective = make_objective(config, task.description)
        self.dtype = torch.float64 if config.precision == "64" else torch.float32
        torch.manual_seed(config.seed)
        model = make_model_for(task, config).to(self.dtype)
        check_last_batch(model, len(task.split("train")), config.batch_size, execution.devices)
        make_optimizer(model, config)  # what is wrong with the configuration is said before processes are started
        self.fabric = launch(execution, config.precision)
        self.task = task.to(self.fabric.device)
        self.batches = task.num_batches("train", config.batch_size)
        if self.fabric.is_global_zero:
            warn_of_few_batches(config, self.batches)
        if execution.compile:
            model.compile()
        self.model = self.fabric.setup_module(model)
        torch.manual_seed(config.seed + 1_000_003 * self.fabric.global_rank)  # each process has its own dropout
        self.optimizer = make_optimizer(self.model, config)
        self.schedule = make_schedule(self.optimizer, config, self.batches)
        self.state = State(self.fabric, self.model.module, self.optimizer)
        self.position, self.tally, self.metrics = Position(), Tally(), Metrics()
        self.run, self.execution = Run(folder), execution

    @property
    def _batches_done(self) -> int:
        return self.position.epoch * self.batches + self.position.batch

    def fit(self, report: Listener = silent) -> Metrics:
        """Train to the end of the budget, or until the loss is not finite any more: that is a result, too."""
        with exclusive(self.run.path, PATIENCE):
            self._open()
            return self._train(report)

    def _open(self) -> None:
        """Create the run's folder, now that nothing in the configuration can be wrong, or go on where it is."""
        is_first = self.fabric.is_global_zero
        if is_first:
            about = {"data": asdict(self.task.description), "execution": self.execution.as_dict()}
            Run.create(self.run.path, self.config, **about)
        self._restore()
        if is_first and self.metrics.epochs:  # a kill may have come after the checkpoint and before them
            self.run.write_metrics(self.metrics)
        wanted = self.execution.tensorboard and is_first and self.metrics.status == "running"
        self.events = Events(self.run.path / "tensorboard" if wanted else None, self.optimizer, self._batches_done)

    def _train(self, report: Listener) -> Metrics:
        with ask_before_ending() as wanted, self.events:
            while self.metrics.status == "running":
                self._train_epoch(report if self.fabric.is_global_zero else silent, wanted)
                self._finish_epoch()
        return self.metrics

    def _train_epoch(self, report: Listener, wanted: Callable[[], bool]) -> None:
        self.model.train()
        start = time.perf_counter()
        for batch in self._batches("train", self.config.batch_size, start=self.position.batch):
            scores, loss = self._forward(batch)
            if math.isfinite(loss.item()) or self._is_lost(loss):  # or the batch is dropped, as if it had not been
                self.tally.add(loss.item(), len(batch.labels), self.objective.count(scores, batch.labels))
            if any(sum_over_processes(self.fabric, self._is_lost(loss))):
                return
            self.optimizer.zero_grad()
            self.fabric.backward(loss)
            self._step(loss.detach())
            self.schedule.after_batch()
            self.position.batch += 1
            self.tally.seconds += time.perf_counter() - start
            start = time.perf_counter()
            self.events.batch(self._batches_done, loss)
            report(self.position, self.tally, self.batches)
            if any(sum_over_processes(self.fabric, wanted())):
                self._save("last.pt")
                raise Interrupted(
                    f"stopped at epoch {self.position.epoch}, batch {self.position.batch}; resume to continue"
                )

    def _batches(self, split: str, batch_size: int, **options: Any) -> Iterator[data.Batch]:
        return self.task.batches(
            split,
            batch_size,
            epoch=self.position.epoch,
            seed=self.config.seed,
            rank=self.fabric.global_rank,
            world_size=self.fabric.world_size,
            device=self.fabric.device,
            **options,
        )

    def _forward(self, batch: data.Batch) -> tuple[Tensor, Tensor]:
        scores = self.model(*(laid_out(x, self.dtype) for x in batch.inputs))
        return scores.detach(), self.objective.loss(scores, batch.labels)

    def _step(self, loss: Tensor) -> None:
        """One step, and what is noted of it."""
        before = last_step(self.optimizer)
        take_step(self.optimizer, loss)
        self._note_step(before)

    def _flush(self) -> None:
        """At the end of the run, an update of the batches that are left: too few for a whole bundle."""
        inner = unwrap(self.optimizer)
        if hasattr(inner, "flush"):
            before = last_step(inner)
            inner.flush()
            self._note_step(before)

    def _note_step(self, before: StepInfo | None) -> None:
        step = last_step(self.optimizer)
        if drops_batches(self.optimizer):
            if step is None or step is before:
                return
            self.tally.kinds[step.kind] = self.tally.kinds.get(step.kind, 0) + 1
        size = step_size(self.optimizer)
        if size is not None:
            self.tally.step_sizes += size
            self.tally.steps += 1

    def _is_lost(self, loss: Tensor) -> bool:
        """Whether no batch to come can repair the weights. The optimizers of this library drop such a batch."""
        return not drops_batches(self.optimizer) and not math.isfinite(loss.item())

    def _finish_epoch(self) -> None:
        if self.position.epoch + 1 == self.config.epochs:
            self._flush()
        tally = self.tally
        record: dict[str, Any] = {"epoch": self.position.epoch, "seconds": tally.seconds}
        record |= self._means("train", tally)
        record["lr"] = float(self.optimizer.param_groups[0]["lr"])
        record["step_size"] = tally.step_sizes / tally.steps if tally.steps else None
        record["kinds"] = dict(Counter(tally.kinds).most_common())
        self._measure_statistics()
        record |= self._evaluate("validation")
        if drops_batches(self.optimizer):
            record["dropped_batches"] = self.optimizer.dropped_batches  # type: ignore[attr-defined]
        watched = f"validation_{judge(self.objective.measures)}"
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
        if self.fabric.is_global_zero:
            self.run.write_metrics(self.metrics)

    @torch.no_grad()
    def _evaluate(self, split: str, name: str = "") -> dict[str, float]:
        """Loss and accuracy of the model where its optimizer wants it evaluated: at a centre, or at an average."""
        self.model.eval()
        tally = Tally()
        with evaluating(self.optimizer):
            for batch in self._batches(split, EVALUATION_BATCH, shuffle=False, augment=False):
                scores, loss = self._forward(batch)
                tally.add(loss.item(), len(batch.labels), self.objective.count(scores, batch.labels))
        return self._means(name or split, tally)

    def _measure_statistics(self) -> None:
        """Those of normalisation layers belong to where gradients are measured: an average needs its own."""
        if not METHODS[self.config.optimizer].averages:
            return
        self.model.eval()

        def forward(model: nn.Module, batch: data.Batch) -> object:
            return model(*(laid_out(x, self.dtype) for x in batch.inputs))

        batches = self._batches("train", self.config.batch_size)
        measure_again(self.model, batches, unwrap(self.optimizer), count=STATISTICS_BATCHES, forward=forward)

    def _means(self, split: str, tally: Tally) -> dict[str, float]:
        means = tally.over_processes(self.fabric).means()
        return {f"{split}_{name}": means[name] for name in self.objective.measures}

    # Checkpoints

    def _save(self, *names: str) -> None:
        state = self.state.get() | {
            "schedule": self.schedule.state_dict(),
            "position": asdict(self.position),
            "tally": asdict(self.tally.over_processes(self.fabric)),
            "metrics": vars(self.metrics),
        }
        if self.fabric.is_global_zero:
            for name in names:
                self.run.save(name, state)

    def _restore(self) -> None:
        self.fabric.barrier()
        state = self.run.load("last.pt")
        if state is None:
            return
        self.state.set(state)
        self.schedule.load_state_dict(state["schedule"])
        self.position = Position(**state["position"])
        self.tally = Tally(**state["tally"]) if self.fabric.is_global_zero else Tally()
        self.metrics = Metrics(**state["metrics"])


def load_data(config: RunConfig, data_dir: Path | None) -> data.Task:
    """The data that a run trains on."""
    return data.load(config.data, data_dir=data_dir, **{key: getattr(config, key) for key in DATA_KEYS})


def train(
    config: RunConfig,
    folder: Path,
    *,
    data_dir: Path | None = None,
    execution: Execution | None = None,
    report: Listener = silent,
) -> Metrics:
    """Train as configured, in a folder of its own; a run that was interrupted there goes on."""
    check_writable(folder)
    task = load_data(config, data_dir)
    with without_denormals():
        return Training(config, task, folder, execution or Execution()).fit(report)
