"""The command line: ``borat`` or ``python -m borat``. The commands live in the lab, which is an extra."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

SHOW_CURSOR = b"\x1b[?25h"


def main() -> None:
    """Run the command line, or say what is missing."""
    signal.signal(signal.SIGINT, _end)
    hear_ctrl_c()
    try:
        from borat.lab.cli import app

        app()
    except ModuleNotFoundError as error:
        sys.exit(f"borat's commands need the lab, but {error.name} is missing: pip install 'borat[lab]'")


def hear_ctrl_c() -> None:
    """One of several processes is started deaf, as Python itself would answer a Ctrl-C by a traceback."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end(number: int, frame: FrameType | None) -> None:
    """Ctrl-C, but where a command asks to be interrupted, as it must save first.

    While libraries are imported an interrupt may be swallowed, or come out as another error.
    """
    if os.environ.get("LOCAL_RANK", "0") == "0":  # one of several processes speaks
        with suppress(RuntimeError):  # it may be writing just now
            sys.stdout.flush()
        os.write(1, (SHOW_CURSOR if os.isatty(1) else b"") + b"stopped; the same command starts again\n")
    os._exit(130)


if __name__ == "__main__":
    main()
