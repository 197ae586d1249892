"""`fastrun worker verify`: is the installed TensorRT-LLM what the worker was written for?"""

import typer

from fastrun.cli.errors import CommandError
from gpu_worker.engine.tensorrt_llm.verify import verify as compare


def verify() -> None:
    """Compare the installed TensorRT-LLM with what the worker relies on, and list differences.

    Exits with status 1 if there is any. To be run in the image that the worker runs in.
    """
    if not compare(typer.echo):
        raise CommandError("the installed TensorRT-LLM differs from what the worker relies on")
