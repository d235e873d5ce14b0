"""Tasks by name, and tasks of a user from a file or a module."""

from __future__ import annotations

import sys
from importlib import import_module, util
from inspect import isabstract
from pathlib import Path
from types import ModuleType

from borat.lab.files import unknown
from borat.lab.tasks.task import TrainingTask

TASKS = {
    "autoencoder": "digits:Autoencoder",
    "vae": "digits:VAE",
    "diffusion": "digits:Diffusion",
    "gan": "synthetic:GAN",
    "noisy-regression": "synthetic:NoisyRegression",
    "gaussian-likelihood": "synthetic:GaussianLikelihood",
    "contrastive": "digits:Contrastive",
    "triplet": "digits:Triplet",
    "segmentation": "synthetic:Segmentation",
    "seq2seq": "sequences:SequenceToSequence",
    "adding": "sequences:Adding",
    "distillation": "digits:Distillation",
    "fine-tuning": "digits:FineTuning",
    "physics": "synthetic:Physics",
    "factorisation": "synthetic:Factorisation",
    "reinforce": "reinforcement:Reinforce",
    "ppo": "reinforcement:PPO",
}
"""Module of :mod:`borat.lab.tasks` and class of each task."""


def find_task(name: str) -> TrainingTask:
    """Return a task with its data, by its name, or as ``file.py:Class`` or ``module:Class``.

    >>> find_task("autoencoder").metric
    'squared error per pixel'
    """
    return locate(name)()


def locate(name: str) -> type[TrainingTask]:
    """Return the class of a task."""
    place = f"{__package__}.{TASKS[name]}" if name in TASKS else name
    source, colon, attribute = place.rpartition(":")
    if not colon:
        raise unknown("task", name, TASKS, forms=("NAME", "FILE.py:CLASS", "MODULE:CLASS"))
    module = _load_file(Path(source)) if source.endswith(".py") else _import(source)
    classes = {key: value for key, value in vars(module).items() if _is_task(value)}
    if attribute not in classes:
        raise unknown(f"task of {source}", attribute, classes)
    found: type[TrainingTask] = classes[attribute]
    return found


def _is_task(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, TrainingTask) and not isabstract(value)


def _load_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ValueError(f"task must name a Python file that exists, got {path}")
    name = f"borat_task_{path.stem}"
    spec = util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _import(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise ValueError(f"task must name a module that can be imported, got {name!r}: {error}") from error
