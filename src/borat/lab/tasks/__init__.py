"""Other kinds of training: tasks with their own model, loss and score, by name or from a user's file."""

from __future__ import annotations

from importlib import import_module
from inspect import isabstract
from pathlib import Path
from runpy import run_path
from typing import Any

from borat.lab.files import unknown
from borat.lab.tasks import digits, reinforcement, synthetic
from borat.lab.tasks.run import TaskResult, run
from borat.lab.tasks.task import DataTask, SampledTask, TrainingTask

__all__ = ["TASKS", "DataTask", "SampledTask", "TaskResult", "TrainingTask", "find_task", "locate", "run"]

TASKS: dict[str, type[TrainingTask]] = {
    "autoencoder": digits.Autoencoder,
    "vae": digits.VAE,
    "diffusion": digits.Diffusion,
    "gan": synthetic.GAN,
    "noisy-regression": synthetic.NoisyRegression,
    "gaussian-likelihood": synthetic.GaussianLikelihood,
    "contrastive": digits.Contrastive,
    "triplet": digits.Triplet,
    "segmentation": synthetic.Segmentation,
    "seq2seq": synthetic.SequenceToSequence,
    "adding": synthetic.Adding,
    "distillation": digits.Distillation,
    "fine-tuning": digits.FineTuning,
    "physics": synthetic.Physics,
    "factorisation": synthetic.Factorisation,
    "reinforce": reinforcement.Reinforce,
    "ppo": reinforcement.PPO,
}


def find_task(name: str) -> TrainingTask:
    """Return a task with its data, given its name, ``file.py:Class`` or ``module:Class``.

    >>> find_task("autoencoder").metric
    'squared error per pixel'
    """
    return locate(name)()


def locate(name: str) -> type[TrainingTask]:
    """Return the class of a task; see :func:`find_task`."""
    if name in TASKS:
        return TASKS[name]
    source, colon, attribute = name.rpartition(":")
    if not colon:
        raise unknown("task", name, TASKS, forms=("NAME", "FILE.py:CLASS", "MODULE:CLASS"))
    types = {key: value for key, value in _load(source).items() if isinstance(value, type)}
    classes = {key: cls for key, cls in types.items() if issubclass(cls, TrainingTask) and not isabstract(cls)}
    if attribute not in classes:
        raise unknown(f"task of {source}", attribute, classes)
    return classes[attribute]


def _load(source: str) -> dict[str, Any]:
    """Return the names that a Python file or a module defines."""
    if source.endswith(".py"):
        path = Path(source).expanduser()
        if not path.is_file():
            raise ValueError(f"task must name a Python file that exists, got {source!r}")
        return run_path(str(path), run_name=f"borat_task_{path.stem}")
    try:
        return vars(import_module(source))
    except ModuleNotFoundError as error:
        if error.name is None or not source.startswith(error.name):
            raise
        raise ValueError(f"task must name a module that can be imported, got {source!r}: {error}") from error
