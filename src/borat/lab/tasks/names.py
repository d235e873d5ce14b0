"""Tasks by name, and a user's own task from a file or a module."""

from __future__ import annotations

import sys
from importlib import import_module, util
from pathlib import Path
from types import ModuleType

from borat.lab.files import unknown
from borat.lab.tasks.task import TrainingTask

_HERE = "borat.lab.tasks"
TASKS = {
    "autoencoder": f"{_HERE}.autoencoders:Autoencoder",
    "vae": f"{_HERE}.autoencoders:VAE",
    "diffusion": f"{_HERE}.diffusion:Diffusion",
    "gan": f"{_HERE}.gan:GAN",
    "noisy-regression": f"{_HERE}.regression:NoisyRegression",
    "gaussian-likelihood": f"{_HERE}.regression:GaussianLikelihood",
    "contrastive": f"{_HERE}.embeddings:Contrastive",
    "triplet": f"{_HERE}.embeddings:Triplet",
    "segmentation": f"{_HERE}.segmentation:Segmentation",
    "seq2seq": f"{_HERE}.sequences:SequenceToSequence",
    "adding": f"{_HERE}.sequences:Adding",
    "distillation": f"{_HERE}.transfer:Distillation",
    "fine-tuning": f"{_HERE}.transfer:FineTuning",
    "physics": f"{_HERE}.physics:Physics",
    "factorisation": f"{_HERE}.factorisation:Factorisation",
    "reinforce": f"{_HERE}.reinforcement:Reinforce",
    "ppo": f"{_HERE}.reinforcement:PPO",
}
"""The place of each task: a module and the name of a class in it."""


def find_task(name: str) -> TrainingTask:
    """Return the task of this name, with its data; ``file.py:Class`` and ``module:Class`` are tasks of one's own.

    >>> find_task("autoencoder").metric
    'squared error per pixel'
    """
    return locate(name)()


def locate(name: str) -> type[TrainingTask]:
    """Return the class of a task."""
    place = TASKS.get(name, name)
    if ":" not in place:
        raise unknown("task", name, TASKS, forms=("NAME", "FILE.py:CLASS", "MODULE:CLASS"))
    source, _, attribute = place.rpartition(":")
    module = _load_file(Path(source)) if source.endswith(".py") else _import(source, name)
    found = vars(module).get(attribute)
    if not (isinstance(found, type) and issubclass(found, TrainingTask)):
        classes = [key for key, value in vars(module).items() if _is_own_task(value, module)]
        raise unknown(f"task of {source}", attribute, classes)
    return found


def _is_own_task(value: object, module: ModuleType) -> bool:
    return isinstance(value, type) and issubclass(value, TrainingTask) and value.__module__ == module.__name__


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


def _import(module: str, task: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise ValueError(f"task must name a module that can be imported, got {task!r}: {error}") from error
