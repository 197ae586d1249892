"""The `fastrun` command."""

import os
import signal
import sys

import fastrun.service  # noqa: F401 - sets what gRPC reads as it is loaded
from fastrun.cli import standard_files

OURS = ("auth_service", "edge", "fastrun", "gpu_worker", "scheduler")
INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    """Run the command line; every foreseeable failure is one sentence on stderr and status 1."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        # While modules are loaded there is nothing to tidy up, and a trace would be no answer.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    standard_files.prepare()
    _check_call()
    from fastrun.cli.app import called, make_app  # noqa: PLC0415 - elsewhere what it imports does not exist
    from fastrun.cli.errors import CommandError  # noqa: PLC0415 - beside its like
    from fastrun.local.errors import LocalError  # noqa: PLC0415 - beside its like
    from fastrun.service.terminal import printable_lines  # noqa: PLC0415 - beside its like

    try:
        app = make_app(called(sys.argv[1:], os.environ))
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            app()
        finally:
            sys.stdout.flush()  # Python would, too, but without a word for who reads it
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (CommandError, LocalError) as error:
        sys.exit(f"fastrun: {printable_lines(str(error))}")
    except OSError as error:
        standard_files.give_up_output()
        if isinstance(error, BrokenPipeError):  # nobody reads
            sys.exit(1)
        sys.exit(f"fastrun: {printable_lines(_told(error))}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OURS:
            raise
        sys.exit(
            f"fastrun: {error.name} is missing: run pip install '.[local]' in fastrun's folder"
        )


def _check_call() -> None:
    if sys.platform not in ("linux", "darwin"):
        sys.exit("fastrun: runs on Linux and macOS: on Windows install it inside WSL 2")
    for argument in sys.argv[1:]:
        if not _is_utf8(argument):
            sys.exit(f"fastrun: {argument!r} is not UTF-8: type it anew")


def _told(error: OSError) -> str:
    reason = error.strerror or str(error)
    return reason if error.filename is None else f"{error.filename}: {reason}"


def _is_utf8(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:  # of bytes that Python could not decode
        return False
    return True
