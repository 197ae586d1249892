"""What can be seen to be missing before anything is started, said in one sentence."""

import platform
import socket
import sys
from importlib.util import find_spec

from fastrun.local.environment import LOOPBACK
from fastrun.local.errors import LocalError

MACHINES = ("x86_64", "amd64", "aarch64", "arm64")
_MODULES = (
    *("aiohttp", "asyncpg"),
    *("gguf", "jinja2", "llguidance", "numpy", "openvino", "openvino_genai", "tokenizers"),
)


def check_machine() -> None:
    """Make sure that what runs a model here can be installed here.

    Raises:
        LocalError: it cannot.
    """
    if sys.platform not in ("linux", "darwin") or platform.machine().lower() not in MACHINES:
        raise LocalError(
            f"fastrun up cannot run a model on {platform.system()} {platform.machine()}: "
            "use Linux or macOS on x86_64 or arm64 (on Windows: WSL 2)"
        )


def check_packages() -> None:
    """Make sure that the packages of the extra `local` are there.

    Raises:
        LocalError: one is missing.
    """
    missing = [name for name in _MODULES if find_spec(name) is None]
    if missing:
        raise LocalError(
            f"fastrun up needs packages that are missing here ({', '.join(missing)}): "
            "run pip install 'fastrun[local]'"
        )


def check_port(port: int) -> None:
    """Make sure that the public port can be had.

    Raises:
        LocalError: it cannot.
    """
    with socket.socket() as probe:
        # As a server binds: connections of a former one that linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen()
        except PermissionError as error:
            raise LocalError(
                f"port {port} is for root only: choose one over 1023 with --port"
            ) from error
        except OSError as error:
            raise LocalError(
                f"port {port} is in use: choose another one with --port, or --port 0 for a free one"
            ) from error
