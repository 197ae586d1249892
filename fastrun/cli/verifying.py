"""`fastrun worker verify`: is the installed TensorRT-LLM what the worker was written for?"""

import typer

from fastrun.cli.errors import CommandError
from fastrun.cli.output import Json, print_json
from gpu_worker.engine.tensorrt_llm.verify import verify as compare


def verify(as_json: Json = False) -> None:
    """List where TensorRT-LLM is not what the worker relies on.

    Exits with status 1 if there is any. To be run in the image that the worker runs in.
    """
    lines: list[str] = []
    fits = compare(lines.append if as_json else typer.echo)
    if as_json:
        print_json({"fits": fits, "says": lines})
    if not fits:
        raise CommandError("this is not the TensorRT-LLM that the worker relies on")
