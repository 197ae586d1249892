"""Which data folder, and so which stack, a command is about."""

import os
from pathlib import Path
from typing import Annotated

import typer

from fastrun.local.folder import DataFolder, default_path

Data = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="The data folder of the stack that is meant."),
]


def data_folder(chosen: Path | None) -> DataFolder:
    """The data folder that is meant."""
    return DataFolder((chosen or default_path(os.environ)).expanduser().absolute())
