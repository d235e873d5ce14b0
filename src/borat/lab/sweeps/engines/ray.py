"""A Ray cluster: this machine or several. Ray schedules the jobs, and retries those whose process died."""

from __future__ import annotations

import logging
import os
import signal
import socket
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Self
from unittest import mock
from urllib.parse import urlsplit

import torch
from pydantic import Field, model_validator

from borat.lab.signals import Interrupted, handling
from borat.lab.strict import StrictModel
from borat.lab.sweeps.engines.base import GRACE, HEARTBEAT, Call, Ended

CONNECT_SECONDS = 5.0
CLUSTER = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Environment variable that lets Ray listen for other machines; on by default, except on macOS and Windows."""


class RayEngine(StrictModel):
    """A Ray cluster that reserves CPUs and GPUs for each run; runs share a GPU if they reserve a fraction of it.

    Without an address, Ray runs on this machine during the sweep, unless the program is already connected to a cluster.
    A cluster of several machines needs borat on each of them, and the folder of the runs on storage that they share.
    """

    address: str | None = None
    cpus_per_run: float = Field(default=1.0, ge=0)
    gpus_per_run: float = Field(default=0.0, ge=0)
    retries: int = Field(default=2, ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.gpus_per_run > 1 and self.gpus_per_run % 1:
            raise ValueError(f"gpus_per_run must be a fraction of one GPU or a whole number, got {self.gpus_per_run}")
        import_ray()
        return self

    def run(self, calls: Sequence[Call]) -> Generator[list[Ended]]:
        ray = import_ray()
        with self._connected(ray):
            self._warn_if_too_small(ray)
            start = ray.remote(
                num_cpus=self.cpus_per_run,
                num_gpus=self.gpus_per_run,
                max_retries=self.retries,
                retry_exceptions=[Interrupted],
            )(_work).remote
            pending = {start(call, self): index for index, call in enumerate(calls)}
            try:
                while pending:
                    done, _ = ray.wait(list(pending), timeout=HEARTBEAT)
                    yield [Ended(pending.pop(ref), _error(ray, ref)) for ref in done]
            finally:
                for ref in pending:
                    ray.cancel(ref)  # interrupts those that run: they save and stop
                if pending:
                    ray.wait(list(pending), num_returns=len(pending), timeout=GRACE)

    def _warn_if_too_small(self, ray: Any) -> None:
        """Warn if no machine is large enough for a run: Ray waits for one silently, possibly forever."""
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cpus, gpus = self.cpus_per_run, self.gpus_per_run
        if not any(machine.get("CPU", 0) >= cpus and machine.get("GPU", 0) >= gpus for machine in machines):
            needed = f"{cpus:g} CPUs and {gpus:g} GPUs"
            warnings.warn(f"no machine of the cluster has {needed}: the runs wait for one that has", stacklevel=2)

    @contextmanager
    def _connected(self, ray: Any) -> Iterator[None]:
        """Connect to Ray during the sweep, unless the program is connected already."""
        if ray.is_initialized():
            yield
            return
        if self.address is not None:
            _check_address(self.address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        sigterm = handling(signal.getsignal(signal.SIGTERM), signal.SIGTERM)  # Ray replaces the handler
        try:
            with sigterm, nullcontext() if self.address or CLUSTER in os.environ else _on_loopback(ray):
                options = {} if self.address else {"include_dashboard": False}
                ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ValueError(f"cannot connect to Ray at address {self.address!r}: {error}") from error
        try:
            yield
        finally:
            ray.shutdown()


def import_ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ValueError("the engine 'ray' needs Ray, which is missing: pip install 'borat[ray]'") from error
    return ray


def _work(call: Call, engine: RayEngine) -> str | None:
    torch.set_num_threads(max(1, int(engine.cpus_per_run)))
    if not engine.gpus_per_run:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves GPUs visible that it reserved for other runs
    return call()


def _error(ray: Any, ref: Any) -> str | None:
    try:
        return ray.get(ref)
    except ray.exceptions.RayError as failure:
        return f"Ray gave up: {failure}"


def _check_address(address: str) -> None:
    """Raise a ValueError if nothing answers at an address; Ray itself would try for minutes."""
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.hostname is None or place.port is None:
        return  # such as "auto", which Ray checks immediately
    try:
        socket.create_connection((place.hostname, place.port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise ValueError(f"no Ray cluster answers at address {address!r}: {error}") from error


@contextmanager
def _on_loopback(ray: Any) -> Iterator[None]:
    """Make Ray listen on the loopback interface only."""
    constants = ray._private.ray_constants  # read from the environment when Ray was imported
    with mock.patch.object(constants, "ENABLE_RAY_CLUSTER", False), mock.patch.dict(os.environ, {CLUSTER: "0"}):
        yield
