"""How a run is carried out: on which devices, by how many processes, compiled or not.

None of it belongs to the configuration of a run, since none of it should change what comes out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from borat.checks import check_count, check_flag

STRATEGIES = ("auto", "ddp", "fsdp")
ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")


@dataclass(frozen=True)
class Execution:
    """Where and how to train.

    Args:
        devices: how many processes, each with a device of its own; the batch is shared among them.
        strategy: ``"ddp"`` copies the model, ``"fsdp"`` spreads it (FSDP2); ``"auto"`` is DDP with several devices.
        accelerator: ``"cpu"``, ``"gpu"``, …; the best there is for ``"auto"``.
        compile: whether to compile the model.
        tensorboard: whether to write events for TensorBoard.
    """

    devices: int = 1
    strategy: str = "auto"
    accelerator: str = "auto"
    compile: bool = False
    tensorboard: bool = True

    def __post_init__(self) -> None:
        check_count("devices", self.devices)
        check_flag("compile", self.compile)
        check_flag("tensorboard", self.tensorboard)
        for name, allowed in (("strategy", STRATEGIES), ("accelerator", ACCELERATORS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
