"""Signals: Ctrl-C and SIGTERM end a command, interrupt it, or let it save first."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

SHOW_CURSOR = b"\x1b[?25h"


def exit_on_ctrl_c() -> None:
    """Answer Ctrl-C by one line instead of a traceback, until a command asks for something else.

    While libraries are imported, a KeyboardInterrupt may be swallowed or come out as another error.
    """
    signal.signal(signal.SIGINT, _exit)
    unblock_ctrl_c()


def _exit(number: int, frame: FrameType | None) -> None:
    if os.environ.get("LOCAL_RANK", "0") == "0":  # one of several processes speaks
        with suppress(RuntimeError):  # stdout may be in use
            sys.stdout.flush()
        os.write(1, (SHOW_CURSOR if os.isatty(1) else b"") + b"stopped; the same command starts again\n")
    os._exit(130)


def unblock_ctrl_c() -> None:
    """Undo :func:`ctrl_c_blocked` in a process that was started under it."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """Start processes that receive Ctrl-C only after :func:`exit_on_ctrl_c`: before, Python prints a traceback."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        unblock_ctrl_c()


@contextmanager
def ctrl_c_ignored() -> Iterator[None]:
    """Start processes that ignore Ctrl-C; leave a program alone that handles it in C."""
    own = signal.getsignal(signal.SIGINT) is None
    with _handling(signal.SIG_IGN, *(() if own else (signal.SIGINT,))):
        yield


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and on Ctrl-C, which until now has ended the process."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handling(interrupt, signal.SIGTERM, signal.SIGINT):
        yield


@contextmanager
def asking_to_stop() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True once SIGTERM or SIGINT has arrived, for a look between two batches."""
    asked: list[int] = []
    with _handling(lambda number, frame: asked.append(number), signal.SIGTERM, signal.SIGINT):
        yield lambda: bool(asked)


@contextmanager
def _handling(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals for a while, in the main thread; others cannot."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    previous = {number: signal.signal(number, handler) for number in numbers if in_main_thread}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
