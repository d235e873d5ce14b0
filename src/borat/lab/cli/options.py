"""Flags that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RUNS = Path("runs")
Out = Annotated[Path, typer.Option(help="Folder of the runs, each in a folder named by its configuration.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="A folder of the data set's files, or a file of your own for csv and text; the hub without it."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE in all configurations, such as precision=bf16-mixed; as the flag KEY."),
]
Workers = Annotated[int | None, typer.Option(help="Processes on this machine; one for each core without it.")]
Threads = Annotated[int | None, typer.Option(help="Threads of each process; its share of the cores without it.")]
EngineName = Annotated[str, typer.Option(help="local: processes on this machine; ray: a Ray cluster.")]
Address = Annotated[str | None, typer.Option(help="The Ray cluster; --out must be on storage that its machines share.")]
CpusPerRun = Annotated[float | None, typer.Option(help="CPUs that Ray reserves for a run; 1 without it.")]
GpusPerRun = Annotated[
    float | None, typer.Option(help="GPUs that Ray reserves for a run; none without it, 0.5 lets two runs share one.")
]
