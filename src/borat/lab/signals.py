"""Handlers of Ctrl-C and SIGTERM, which end a command, interrupt it, or let it save first."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Any

SHOW_CURSOR = b"\x1b[?25h"


class Interrupted(Exception):  # noqa: N818 - not an error
    """A signal stopped a run, which was saved and can be resumed."""


def exit_on_ctrl_c() -> None:
    """Exit on Ctrl-C with one line instead of a traceback, until a command installs another handler.

    During the import of libraries, a KeyboardInterrupt may be swallowed or turn into another error.
    """
    signal.signal(signal.SIGINT, _exit)
    unblock_ctrl_c()


def _exit(number: int, frame: FrameType | None) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":  # only the first of several processes prints
        with suppress(RuntimeError):  # stdout may be in use
            sys.stdout.flush()
        os.write(1, (SHOW_CURSOR if os.isatty(1) else b"") + b"stopped; rerun the command to start again\n")
    os._exit(130)


def unblock_ctrl_c() -> None:
    """Undo :func:`ctrl_c_blocked` in a process that was started under it."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """Block Ctrl-C in processes that are started here until they call :func:`exit_on_ctrl_c`, to avoid a traceback."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        unblock_ctrl_c()


def ctrl_c_ignored() -> AbstractContextManager[None]:
    """Make processes that are started here ignore Ctrl-C. A handler installed from C is left alone."""
    is_foreign = signal.getsignal(signal.SIGINT) is None
    return handling(signal.SIG_IGN, *(() if is_foreign else (signal.SIGINT,)))


def interrupted_by_sigterm() -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt on SIGTERM and on Ctrl-C."""
    return handling(signal.default_int_handler, signal.SIGTERM, signal.SIGINT)


@contextmanager
def asking_to_stop() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True once SIGTERM or SIGINT has arrived, to be called between batches."""
    asked: list[int] = []
    with handling(lambda number, frame: asked.append(number), signal.SIGTERM, signal.SIGINT):
        yield lambda: bool(asked)


@contextmanager
def handling(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    """Install a signal handler temporarily; a no-op outside the main thread."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    previous = {number: signal.signal(number, handler) for number in numbers if in_main_thread}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
