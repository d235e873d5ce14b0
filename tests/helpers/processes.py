"""Running programs, and waiting for other processes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

PRELOADED = (
    "borat.lab.training.train",
    "borat.integrations.lightning",
    "borat.integrations.huggingface",
    "sklearn.datasets",
)


def start_warm(target: Callable[..., object], *arguments: object, **environment: str) -> BaseProcess:
    """Call a function in a process that need not import the large libraries, with these environment variables."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    variables = {**os.environ, **environment}
    process = context.Process(target=_call_in, args=(variables, target, *arguments))
    process.start()
    return process


def _call_in(variables: dict[str, str], target: Callable[..., object], *arguments: object) -> None:
    os.environ.clear()
    os.environ.update(variables)
    target(*arguments)


def command(*words: str) -> None:
    """The command ``borat``, to be started warm; what it says is lost."""
    from borat.lab.cli import app

    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), 1)
    app([*words])


def run_program(code: str, folder: Path) -> str:
    """Run code as a program in a folder and a process of its own; what it printed.

    The process is forked from one that has imported the large libraries, which takes longer than most programs do.
    """
    process = start_warm(_run_here, code, folder)
    process.join(timeout=300)
    process.kill()
    said, complaints = ((folder / name).read_text(encoding="utf-8") for name in ("stdout.txt", "stderr.txt"))
    assert process.exitcode == 0, complaints
    return said


def _run_here(code: str, folder: Path) -> None:
    os.chdir(folder)
    sys.argv = ["program"]
    for stream, name in ((1, "stdout.txt"), (2, "stderr.txt")):
        with open(name, "w") as file:  # noqa: PTH123
            os.dup2(file.fileno(), stream)
    exec(compile(code, "program", "exec"), {"__name__": "__main__"})


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def count_group(leader: subprocess.Popen, word: str = "") -> int:
    """How many processes, with this in their command, are in the group of one that has a group of its own."""
    command = ["ps", "-e", "-o", "pgid=,args="]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return sum(line.split()[0] == str(leader.pid) and word in line for line in lines)
