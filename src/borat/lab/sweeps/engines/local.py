"""Worker processes on this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import torch
from pebble import ProcessExpired, ProcessPool

from borat.lab.signals import ctrl_c_ignored
from borat.lab.sweeps.engines.base import GRACE, HEARTBEAT, Call, Ended, Stopped


@dataclass(frozen=True)
class LocalEngine:
    """Persistent processes that share the cores: one process for each core, with one thread, unless told otherwise.

    Two runs side by side are faster than one after the other with two threads each.
    """

    workers: int | None = None
    threads: int | None = None
    retries: int = 2

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("threads", 1), ("retries", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")

    def run(self, calls: Sequence[Call]) -> Generator[list[Ended]]:
        context = _process_context(sorted({name for call in calls for name in getattr(call, "modules", ())}))
        waiting = deque(range(len(calls)))
        deaths = Counter[int]()
        for _ in range(self.retries + 1):
            yield from self._run_pool(context, calls, waiting, deaths)
            if not waiting:
                return
        raise RuntimeError(
            "worker processes die before they begin to work; "
            "a script must call the sweep below if __name__ == '__main__':"
        )

    def _run_pool(
        self, context: BaseContext, calls: Sequence[Call], waiting: deque[int], deaths: Counter[int]
    ) -> Generator[list[Ended]]:
        """Do what is waiting; some of it is left when the pool breaks, as it does when an idle process dies."""
        workers = min(self.workers or usable_cores(), len(calls))
        threads = self.threads or max(1, usable_cores() // workers)
        running: dict[Future[str | None], int] = {}
        with _leashed_pool(context, workers, threads, running) as pool:
            while running or (waiting and pool.active):
                while waiting and pool.active and len(running) < workers:
                    index = waiting.popleft()
                    running[pool.schedule(_work, args=(calls[index],))] = index
                done, _ = wait(running, timeout=HEARTBEAT, return_when=FIRST_COMPLETED)
                ended = []
                for future in done if pool.active else list(running):
                    index = running.pop(future)
                    try:
                        ended.append(Ended(index, future.result(timeout=0)))
                    except (BrokenProcessPool, TimeoutError):
                        waiting.appendleft(index)
                    except (ProcessExpired, Stopped) as death:
                        deaths[index] += 1
                        if deaths[index] <= self.retries:
                            waiting.appendleft(index)
                        else:
                            ended.append(Ended(index, f"{_reason(death)} in attempt {deaths[index]}"))
                yield ended


def _process_context(modules: Sequence[str]) -> BaseContext:
    """Workers are forked from a process that has imported all they need, and done nothing else.

    So a sweep imports once, and not once for each core. Where that cannot be relied on, each worker imports by itself.
    """
    if sys.platform != "linux" or sys.flags.ignore_environment:
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *modules])
    try:
        with ctrl_c_ignored(), _path_inherited():
            forkserver.ensure_running()
    except ChildProcessError:  # this process was forked from one that has such a server, which is out of reach
        return multiprocessing.get_context("spawn")
    if modules:  # wait until they are imported: a Ctrl-C meanwhile leaves no worker behind that misses its pool
        # (for a user's function, which names none, this would import the user's script once more)
        try:
            context.Process(target=int).start()
        except BaseException:  # nor the server itself, which would see only after its imports that nobody waits
            os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
            raise
    return context


@contextmanager
def _path_inherited() -> Iterator[None]:
    """Start processes that import the same modules as this one, and none from the working directory."""
    path = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in path}
    os.environ.update(path)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


@contextmanager
def _leashed_pool(
    context: BaseContext, workers: int, threads: int, running: Mapping[Future[Any], int]
) -> Iterator[ProcessPool]:
    """Processes that save and end when they are let go: at the end of the sweep, or when it dies."""
    far_end, leash = context.Pipe(duplex=False)
    start = (threads, far_end, dict(os.environ))
    pool = ProcessPool(workers, initializer=_start_worker, initargs=start, context=context)
    try:
        yield pool
    finally:
        leash.close()
        try:
            wait(running, timeout=GRACE)
        finally:
            pool.stop()  # type: ignore[no-untyped-call]
            pool.join()
            far_end.close()


def _start_worker(threads: int, far_end: Connection, environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment, OMP_NUM_THREADS=str(threads))  # the process that this was forked from may be older
    torch.set_num_threads(threads)
    np.random.seed()  # noqa: NPY002 - forked from one process, all would draw the same numbers
    threading.Thread(target=_LEASH.follow, args=(far_end,), daemon=True).start()


class _Leash:
    """In a worker process: asks the job that it is doing to save, when the sweep lets go.

    Between two jobs it does nothing, since a process that dies while it takes a job or hands a result over may hold
    the lock that the others need for that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._working = self._let_go = False

    def work(self, call: Call) -> str | None:
        with self._lock:
            if self._let_go:
                raise Stopped("the sweep has ended")
            self._working = True
        try:
            return call()
        finally:
            with self._lock:
                self._working = False

    def follow(self, far_end: Connection) -> None:
        with suppress(EOFError, OSError):
            far_end.recv()  # nothing is ever sent: it returns when the other end is closed
        with self._lock:
            self._let_go = True
            if self._working:
                os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os.kill(os.getpid(), signal.SIGKILL)


_LEASH = _Leash()


def _work(call: Call) -> str | None:
    return _LEASH.work(call)


def _reason(death: Exception) -> str:
    code = getattr(death, "exitcode", -signal.SIGTERM)
    cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"the worker process died ({cause})"


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
