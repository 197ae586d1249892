"""`fastrun up`: everything on this machine, from one command."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fastrun.cli.group import group
from fastrun.local.up import Request, run

app = group()


class Precision(StrEnum):
    """How the CPU engine computes."""

    F32 = "f32"
    FAST = "fast"


class Engine(StrEnum):
    """What generates."""

    CPU = "cpu"
    TENSORRT_LLM = "tensorrt-llm"
    SCRIPTED = "scripted"


@app.command(epilog="Example: fastrun up --model qwen=./Qwen3-4B-Q4_K_M.gguf --port 9000")
def up(
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Where the API is served; 0: a free port.  [8000]"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=PATH",
            help="A GGUF file or an OpenVINO folder, a model file (.toml), or an id that fastrun "
            "model list shows.  [SmolLM2-135M-Instruct]",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="How many run the model.")] = 1,
    slots: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Requests at once, per worker.  [32]")
    ] = None,
    edges: Annotated[int, typer.Option(min=1, max=64, help="How many serve the port.")] = 1,
    schedulers: Annotated[
        int, typer.Option(min=1, max=8, help="How many hand out slots: one leads.")
    ] = 1,
    precision: Annotated[
        Precision | None,
        typer.Option(help="f32: the same answer cached and resumed; fast: 8-bit integers.  [f32]"),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="CMD",
            help="Run CMD with OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL set, then stop; "
            "exit with its status.",
        ),
    ] = None,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Use a free port and leave nothing behind.")
    ] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Forget accounts and keys of earlier runs.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where data is kept.  [the user's data folder]"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="When ready, print one line of JSON.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show all that the services log.")
    ] = False,
    engine: Annotated[Engine | None, typer.Option(hidden=True)] = None,
) -> None:
    """Start everything on this machine: Postgres, services, a model."""
    if ephemeral and data is not None:
        raise typer.BadParameter("--ephemeral keeps nothing: leave out --data")
    settings = {"model": model, "slots": slots, "precision": precision, "engine": engine}
    request = Request(
        port=port,
        workers=workers,
        edges=edges,
        schedulers=schedulers,
        worker_settings=settings,
        command=command,
        data=data,
        ephemeral=ephemeral,
        reset=reset,
        json=as_json,
        verbose=verbose,
    )
    sys.exit(run(request))
