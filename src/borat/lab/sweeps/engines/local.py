"""Worker processes on this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from unittest import mock

import numpy as np
import torch

from borat.lab.config import Count
from borat.lab.signals import Interrupted, ctrl_c_ignored
from borat.lab.strict import StrictModel
from borat.lab.sweeps.engines.base import GRACE, HEARTBEAT, Call, Ended


class LocalEngine(StrictModel):
    """Persistent worker processes, by default one for each core. They share the cores.

    Two runs side by side are faster than one after the other with two threads each. The job of a worker that dies is
    started again, up to ``retries`` times.
    """

    workers: Count | None = None
    retries: int = 2

    def run(self, calls: Sequence[Call]) -> Generator[list[Ended]]:
        context = _process_context({name for call in calls for name in getattr(call, "modules", ())})
        count = min(self.workers or usable_cores(), len(calls))
        threads = max(1, usable_cores() // count)
        waiting, deaths = deque(range(len(calls))), Counter[int]()
        workers: list[_Worker] = []
        try:
            while waiting or any(worker.job is not None for worker in workers):
                while waiting and len(workers) < count:
                    workers.append(_Worker(context, threads))
                for worker in workers:
                    if waiting and worker.is_ready and worker.job is None:
                        worker.send(waiting[0], calls[waiting.popleft()])
                messages = wait([worker.pipe for worker in workers], HEARTBEAT)
                ended = [worker.receive() for worker in workers if worker.pipe in messages]
                for job, death in [(worker.job, worker.death) for worker in workers if worker.death]:
                    if job is not None and deaths[job] < self.retries:
                        deaths[job] += 1
                        waiting.appendleft(job)
                    elif job is not None:
                        ended.append(Ended(job, f"{death} in attempt {self.retries + 1}"))
                workers[:] = [worker for worker in workers if not worker.death]
                yield [end for end in ended if end is not None]
        finally:
            _stop(workers)


class _Worker:
    """A process that runs one job at a time. It has its own pipe, so that its death affects no other worker."""

    def __init__(self, context: BaseContext, threads: int) -> None:
        self.pipe, far_end = context.Pipe()
        arguments = (far_end, threads, dict(os.environ))
        self.process = context.Process(target=_work, args=arguments)  # type: ignore[attr-defined]
        self.process.start()
        far_end.close()
        self.is_ready = False
        self.job: int | None = None
        self.death = ""

    def send(self, job: int, call: Call) -> None:
        self.job = job
        with suppress(OSError):  # of a worker that died meanwhile, which receive() reports
            self.pipe.send(call)

    def receive(self) -> Ended | None:
        """Return the job that ended, or None for the first message, which says that the worker is ready."""
        try:
            error: str | None = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self.death = f"the worker process died ({cause})"
            if not self.is_ready:
                hint = "a script must call the sweep below if __name__ == '__main__':"
                raise RuntimeError(f"{self.death} before its first job; {hint}") from None
            return None
        ended = None if self.job is None else Ended(self.job, error)
        self.is_ready, self.job = True, None
        return ended


def _stop(workers: Iterable[_Worker]) -> None:
    """Ask all workers to save and end; kill those that take too long."""
    for worker in workers:
        worker.process.terminate()
    deadline = time.monotonic() + GRACE
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()


def _work(pipe: Connection, threads: int, environment: Mapping[str, str]) -> None:
    """Run jobs from the pipe until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes; the sweep handles it
    os.environ.clear()
    os.environ.update(environment, OMP_NUM_THREADS=str(threads))  # the server has the environment of its start
    torch.set_num_threads(threads)
    np.random.seed()  # noqa: NPY002 - processes forked from one server would all draw the same numbers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        pipe.send(None)
        while True:
            call = pipe.recv()
            try:
                pipe.send(call())
            except Interrupted:
                signal.raise_signal(signal.SIGTERM)  # saved: now end as asked


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)


def _process_context(modules: Iterable[str]) -> BaseContext:
    """Return a context that forks workers from a server, which has imported the modules once for all.

    On platforms other than Linux each worker imports them itself, since forking is not safe there.
    """
    if sys.platform != "linux" or sys.flags.ignore_environment:
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *modules])
    # import modules from where this process does, and none from the working directory
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
    try:
        with ctrl_c_ignored(), mock.patch.dict(os.environ, paths):
            forkserver.ensure_running()
    except ChildProcessError:  # this process was forked from one whose server it cannot reach
        return multiprocessing.get_context("spawn")
    return context


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
