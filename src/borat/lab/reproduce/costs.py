"""What an experiment costs, estimated before it is run.

A run reads each training example once an epoch, each validation example once an epoch without a backward pass, and the
test set and the training set so at its end. The work on an example is that of the model: the floating-point operations
of a forward and a backward pass, counted by PyTorch on the model itself. For the GPU, they are divided by the rate that
the paper's own table of run times implies: 51.0 s for 45,000 images by a WRN-40-4 on a TITAN Xp. On a CPU, rates differ
too much between models, so times are measured, on one core of a 2-core x86-64 machine with AVX-512; models that were
not are taken to have the rate of WRN-10-1.
"""

from __future__ import annotations

from dataclasses import dataclass

from borat.lab.config import RunConfig
from borat.lab.reproduce.plan import further_runs, plan
from borat.lab.reproduce.spec import Study
from borat.lab.timing.runtime import Runtime

GPU_RATE = 7.79 * 45_000 / 51.0
"""GFLOP a second."""
CPU_RATE = 0.0742 / 1.4e-3
"""GFLOP a second on one core."""
CORES = 2
FORWARD = 1 / 3
"""The share of the forward pass."""

GFLOP = {
    "wrn-40-4": 7.79,
    "wrn-16-4": 2.35,
    "wrn-10-1": 0.0742,
    "densenet-bc-40-40": 4.79,
    "densenet-bc-10-12": 0.0578,
    "densenet-bc-10-24": 0.226,
    "resnet-18": 0.217,
    "infersent": 6.1,
    "infersent-64": 0.012,
    "cnn": 0.025,
}
"""For an image of 32 x 32 pixels (28 x 28 for the cnn), or a pair of sentences with 26 words (counted by hand)."""

CPU_MILLISECONDS = {
    "cnn": 0.55,
    "infersent-64": 1.2,
    "infersent-32": 1.1,
    "densenet-bc-10-12": 1.9,
    "densenet-bc-10-24": 4.6,
    "gpt-2-64": 1.6,
    "ngram-6-96": 0.45,
    "mlp-64": 0.02,
    "logistic": 0.01,
}
"""For one example, where the rate of WRN-10-1 is far off; of text, a window of 64 characters."""

SIZES = {
    "digits": (1_258, 180, 359),
    "mnist": (50_000, 10_000, 10_000),
    "fashion_mnist": (50_000, 10_000, 10_000),
    "cifar10": (45_000, 5_000, 10_000),
    "cifar100": (45_000, 5_000, 10_000),
    "svhn": (598_388, 6_000, 26_032),
    "snli": (549_367, 9_842, 9_824),
    "tiny_imagenet": (100_000, 10_000, 10_000),
    "imagenet": (1_281_167, 50_000, 50_000),
    "topics": (5_813, 726, 726),
    "a9a": (29_305, 3_256, 16_281),
    "ijcnn1": (44_991, 4_999, 91_701),
}
"""Training, validation and test examples; where there is no test set, the last is validated once more."""

SIDES = {"mnist": 28, "fashion_mnist": 28, "tiny_imagenet": 64, "imagenet": 224}
"""The height of an image where it is not 32; the work of the cnn is known for 28."""


@dataclass(frozen=True)
class Cost:
    """An estimate."""

    runs: int
    passes: int
    """Over the training set, of all runs."""
    gpu_hours: float
    cpu_minutes: float
    """With a run on each of two cores."""


def estimate(study: Study) -> Cost:
    """The cost of an experiment at a scale."""
    if study.runtime:
        return _runtime_cost(study.runtime)
    cells = plan(study)
    configs = [config for cell in cells for config in cell.configs]
    repeats = further_runs(study, cells)
    share = 1.0 + repeats / len(configs)  # which ones are repeated is not known yet
    return Cost(
        runs=len(configs) + repeats,
        passes=round(share * sum(config.epochs for config in configs)),
        gpu_hours=share * sum(gpu_seconds(config) for config in configs) / 3600,
        cpu_minutes=share * sum(cpu_seconds(config) for config in configs) / 60 / CORES,
    )


def gpu_seconds(config: RunConfig) -> float:
    return _examples(config) * _gflop(config) / GPU_RATE


def cpu_seconds(config: RunConfig) -> float:
    """On one core."""
    known = CPU_MILLISECONDS.get(config.model)
    seconds = _gflop(config) / CPU_RATE if known is None else known / 1e3 * _pixels(config)
    return _examples(config) * seconds


def _examples(config: RunConfig) -> float:
    """Examples that are trained on, and the others by their share of the work."""
    train, validation, test = SIZES.get(config.data, SIZES["digits"])
    if config.data == "snli" and config.train_split == "validation":
        train, validation = validation - validation // 10, validation // 10
    train = min(train, config.train_limit or train)
    validation = config.validation_size or validation
    return config.epochs * (train + FORWARD * validation) + FORWARD * (test + train)


def _gflop(config: RunConfig) -> float:
    return GFLOP.get(config.model, GFLOP["wrn-10-1"]) * _pixels(config)


def _pixels(config: RunConfig) -> float:
    """Of an image, relative to those that the work is known for."""
    side = config.image_size or SIDES.get(config.data, 32)
    return (side / (28 if config.model == "cnn" else 32)) ** 2


def _runtime_cost(runtime: Runtime) -> Cost:
    """A pass over a batch for each gradient of the largest bundle; what optimizers do with them is small beside it."""
    gflop = max(runtime.bundle_sizes) * runtime.batch_size * GFLOP[runtime.model] * (runtime.input_shape[-1] / 32) ** 2
    return Cost(len(runtime.bundle_sizes), 0, gflop / GPU_RATE / 3600, gflop / CPU_RATE / CORES / 60)
