"""Train one model: batch, loss, step, metrics, store.

A run can be stopped at any moment and continues bit for bit on the CPU: the order of the batches and their augmentation
depend only on the seed and the epoch, and the checkpoint holds everything else. It is written after every epoch, and
within one when the process is asked to end.
"""

from __future__ import annotations

import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from borat.lab import data
from borat.lab.baselines import make_loss, make_optimizer
from borat.lab.config import RunConfig
from borat.lab.models import make_model
from borat.lab.store import Metrics, Run
from borat.optimizer import BORAT

EVALUATION_BATCH = 512
WORD_DIMENSION = 50
"""Of random word vectors, where none are given."""


class Interrupted(Exception):  # noqa: N818 - it is no error
    """The process was asked to end; the run was saved and can be resumed."""


@dataclass
class Tally:
    """Sums over the batches of an epoch, part of the checkpoint."""

    loss: float = 0.0
    correct: int = 0
    examples: int = 0
    seconds: float = 0.0
    kinds: dict[str, int] = field(default_factory=dict)

    def add(self, loss: Tensor, scores: Tensor, labels: Tensor) -> None:
        self.loss += loss.item() * len(labels)
        self.correct += int((scores.argmax(1) == labels).sum())
        self.examples += len(labels)

    def means(self) -> dict[str, float]:
        return {"loss": self.loss / max(self.examples, 1), "accuracy": self.correct / max(self.examples, 1)}


@dataclass
class Position:
    """Where a run stands: the next batch to train on."""

    epoch: int = 0
    batch: int = 0


Report = Callable[[Position, Tally, int], None]
"""Called after each batch with the position, the epoch so far and the number of batches in an epoch."""


class Training:
    """One run, from its configuration to its result."""

    def __init__(self, config: RunConfig, task: data.Task, folder: Path) -> None:
        self.config, self.task = config, task
        self.dtype = torch.float64 if config.precision == "64" else torch.float32
        torch.manual_seed(config.seed)
        self.model = _make_model(config, task).to(self.dtype)
        self.optimizer = make_optimizer(self.model, config)
        self.criterion = make_loss(config)
        self.position, self.tally, self.metrics = Position(), Tally(), Metrics()
        self.run = Run.create(folder, config, data=asdict(task.description))  # after all that can be wrong
        self._restore()

    def fit(self, report: Report = lambda position, tally, batches: None) -> Metrics:
        """Train to the end of the budget, or until the loss is not finite any more: that is a result, too."""
        with _ask_before_ending() as wanted:
            while self.metrics.status == "running":
                self._train_epoch(report, wanted)
                self._finish_epoch()
        return self.metrics

    def _train_epoch(self, report: Report, wanted: Callable[[], bool]) -> None:
        config, position = self.config, self.position
        batches = self.task.num_batches("train", config.batch_size)
        self.model.train()
        start = time.perf_counter()
        for batch in self.task.batches(
            "train", config.batch_size, epoch=position.epoch, start=position.batch, seed=config.seed
        ):
            scores, loss = self._loss(batch)
            self.optimizer.zero_grad()
            torch.autograd.backward(loss)
            self._step(loss)
            self.tally.add(loss.detach(), scores, batch.labels)
            position.batch += 1
            self.tally.seconds += time.perf_counter() - start
            start = time.perf_counter()
            report(position, self.tally, batches)
            if wanted():
                self._save("last.pt")
                raise Interrupted(f"stopped at epoch {position.epoch}, batch {position.batch}; resume to continue")

    def _step(self, loss: Tensor) -> None:
        if not isinstance(self.optimizer, BORAT):
            self.optimizer.step()
            return
        before = self.optimizer.last_step
        self.optimizer.step(loss=loss)
        step = self.optimizer.last_step
        if step is not None and step is not before:
            self.tally.kinds[step.kind] = self.tally.kinds.get(step.kind, 0) + 1

    def _finish_epoch(self) -> None:
        record: dict[str, Any] = {"epoch": self.position.epoch, "seconds": self.tally.seconds}
        record |= {f"train_{name}": value for name, value in self.tally.means().items()}
        record["kinds"] = dict(Counter(self.tally.kinds).most_common())
        record |= self._evaluate("validation")
        if isinstance(self.optimizer, BORAT):
            record["dropped_batches"] = self.optimizer.dropped_batches
        is_best = record["validation_accuracy"] >= max(
            (epoch["validation_accuracy"] for epoch in self.metrics.epochs), default=0.0
        )
        self.metrics.epochs.append(record)
        self.position, self.tally = Position(self.position.epoch + 1), Tally()
        diverged = not (math.isfinite(record["train_loss"]) and math.isfinite(record["validation_loss"]))
        if diverged or self.position.epoch == self.config.epochs:
            self.metrics.status = "diverged" if diverged else "finished"
            self.metrics.result = self._evaluate("test" if "test" in self.task.splits else "validation")
        if is_best:
            self._save("best.pt")
        self._save("last.pt")
        self.run.write_metrics(self.metrics)

    @torch.no_grad()
    def _evaluate(self, split: str) -> dict[str, float]:
        """Loss and accuracy of the model at the centre of its bundle."""
        if isinstance(self.optimizer, BORAT):
            self.optimizer.eval()
        self.model.eval()
        tally = Tally()
        for batch in self.task.batches(split, EVALUATION_BATCH):
            scores, loss = self._loss(batch)
            tally.add(loss, scores, batch.labels)
        if isinstance(self.optimizer, BORAT):
            self.optimizer.train()
        return {f"{split}_{name}": value for name, value in tally.means().items()}

    def _loss(self, batch: data.Batch) -> tuple[Tensor, Tensor]:
        inputs = [x.to(self.dtype) if x.is_floating_point() else x for x in batch.inputs]
        with torch.autocast("cpu", torch.bfloat16, enabled=self.config.precision == "bf16-mixed"):
            scores = self.model(*inputs)
            return scores.detach(), self.criterion(scores, batch.labels)

    # Checkpoints

    def _save(self, name: str) -> None:
        self.run.save(
            name,
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "position": asdict(self.position),
                "tally": asdict(self.tally),
                "metrics": vars(self.metrics),
                "random": torch.get_rng_state(),
            },
        )

    def _restore(self) -> None:
        state = self.run.load("last.pt")
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.position, self.tally = Position(**state["position"]), Tally(**state["tally"])
        self.metrics = Metrics(**state["metrics"])
        torch.set_rng_state(state["random"])


def _make_model(config: RunConfig, task: data.Task) -> nn.Module:
    shape, options = task.description.input_shape, {}
    if task.vocabulary:  # sentences: the model looks words up in a frozen matrix
        shape = (len(task.vocabulary), WORD_DIMENSION) if task.embeddings is None else tuple(task.embeddings.shape)
        options = {"embeddings": task.embeddings}
    classes = task.description.num_classes
    return make_model(config.model, input_shape=shape, classes=classes, dropout=config.dropout, **options)


def train(
    config: RunConfig,
    folder: Path,
    *,
    data_dir: Path | None = None,
    report: Report = lambda position, tally, batches: None,
) -> Metrics:
    """Train as configured, in a folder of its own; a run that was interrupted there goes on."""
    task = data.load(
        config.data,
        data_dir=data_dir,
        label_noise=config.label_noise,
        seed=config.seed,
        train_limit=config.train_limit,
        augment=config.augment,
        train_split=config.train_split,
        glove=config.glove,
    )
    if task.description.num_classes < 2:
        raise ValueError(f"data must be a classification problem, got {config.data}")
    return Training(config, task, folder).fit(report)


@contextmanager
def _ask_before_ending() -> Iterator[Callable[[], bool]]:
    """Turn SIGTERM and SIGINT into a question that is answered between two batches."""
    asked: list[int] = []
    previous = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        previous[number] = signal.signal(number, lambda received, frame: asked.append(received))
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
