"""Settings with which trainers equal a hand-written loop."""

from __future__ import annotations

from pathlib import Path

from transformers import TrainingArguments


def huggingface_arguments(folder: Path, batch_size: int, **options: object) -> TrainingArguments:
    """Return arguments for one epoch in the order of the data, without clipping or files, unless overridden."""
    plain = {
        "per_device_train_batch_size": batch_size,
        "num_train_epochs": 1,
        "train_sampling_strategy": "sequential",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(folder, **{**plain, **options})
