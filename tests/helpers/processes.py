"""Start programs, and wait for processes."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from pathlib import Path

PRELOADED = (
    "borat.lab.training.train",
    "borat.integrations.lightning",
    "borat.integrations.huggingface",
    "sklearn.datasets",
)


def start_warm(target: Callable[..., object], *arguments: object, **environment: str) -> BaseProcess:
    """Call a function in a new process with environment variables; large libraries are already imported."""
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


def start_borat(*words: str, output: str | Path = os.devnull, leader: bool = False, **environment: str) -> BaseProcess:
    """Start the command ``borat`` like :func:`start_warm`, with its output in a file, which may be a terminal.

    As the leader of a process group it receives signals together with its child processes, as in a terminal.
    """
    return start_warm(_borat, words, output, leader, **environment)


def ended(process: BaseProcess, seconds: float = 120.0) -> int | None:
    """Return the exit code of a process; kill it if it does not end by itself."""
    process.join(timeout=seconds)
    process.kill()
    return process.exitcode


def _borat(words: Sequence[str], output: str | Path, leader: bool) -> None:
    from borat.__main__ import main

    if leader:
        os.setsid()
    _say(output, 1, 2)
    sys.argv = ["borat", *words]
    sys.modules["__main__"].__spec__ = find_spec("borat.__main__")  # with which the command starts itself again
    main()


def _say(path: str | Path, *streams: int) -> None:
    with open(path, "w") as file:  # noqa: PTH123
        for stream in streams:
            os.dup2(file.fileno(), stream)


def start_program(code: str, folder: Path, *words: str, **environment: str) -> BaseProcess:
    """Run code as a program in a folder, in a new process; large libraries are already imported."""
    return start_warm(_run_here, code, folder, words, **environment)


def output_of(program: BaseProcess, folder: Path) -> str:
    """Wait for a program started in a folder; return its output."""
    code = ended(program, 300.0)
    output, complaints = ((folder / name).read_text(encoding="utf-8") for name in ("stdout.txt", "stderr.txt"))
    assert code == 0, complaints
    return output


def run_program(code: str, folder: Path, *words: str) -> str:
    return output_of(start_program(code, folder, *words), folder)


def _run_here(code: str, folder: Path, words: Sequence[str]) -> None:
    os.chdir(folder)
    sys.argv = ["program", *words]
    _say("stdout.txt", 1)
    _say("stderr.txt", 2)
    exec(compile(code, "program", "exec"), {"__name__": "__main__"})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def count_group(leader: BaseProcess, word: str = "") -> int:
    """Return the number of processes in a group whose command contains a string."""
    command = ["ps", "-e", "-o", "pgid=,args="]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return sum(line.split()[0] == str(leader.pid) and word in line for line in lines)
