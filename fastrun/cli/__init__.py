"""The `fastrun` command."""

import sys

OURS = ("auth_service", "edge", "fastrun", "gpu_worker", "scheduler")


def main() -> None:
    """Run the command line; every foreseeable failure is one sentence on stderr and status 1."""
    if sys.platform not in ("linux", "darwin"):
        sys.exit("fastrun: runs on Linux and macOS: on Windows install it inside WSL 2")
    from fastrun.cli.app import make_app  # noqa: PLC0415 - elsewhere what it imports does not exist
    from fastrun.cli.errors import CommandError  # noqa: PLC0415 - beside its like
    from fastrun.local.errors import LocalError  # noqa: PLC0415 - beside its like

    called = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), None)
    try:
        make_app(called)()
    except (CommandError, LocalError) as error:
        sys.exit(f"fastrun: {error}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OURS:
            raise
        sys.exit(f"fastrun: {error.name} is missing: run pip install 'fastrun[local]'")
