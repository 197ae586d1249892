"""What can be seen to be missing before anything is started, said in one sentence."""

import os
import platform
import re
import socket
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution, requires

from fastrun.local.environment import LOOPBACK
from fastrun.local.errors import LocalError

MACHINES = ("x86_64", "amd64", "aarch64", "arm64")
REACHED_S = 5.0
_EXTRAS = ("cpu", "server")
_REQUIREMENT = re.compile(r"""(?P<name>[\w.-]+).*\bextra == ['"](?P<extra>\w+)['"]""")


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
    """Make sure that what the extra `local` brings is there; a Postgres may also be the machine's.

    Raises:
        LocalError: one is missing.
    """
    if missing := [name for name in needed(requires("fastrun") or ()) if not _is_there(name)]:
        raise LocalError(
            f"fastrun up needs packages that are missing here ({', '.join(missing)}): "
            "run pip install '.[local]' in fastrun's folder"
        )


def needed(requirements: Iterable[str]) -> list[str]:
    """Return the names of the packages that `fastrun up` needs, as our own metadata has them.

    Args:
        requirements: Requires-Dist lines, such as ``aiohttp>=3.14; extra == 'server'``.
    """
    matches = filter(None, map(_REQUIREMENT.match, requirements))
    return [match["name"] for match in matches if match["extra"] in _EXTRAS]


def _is_there(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def check_loopback() -> None:
    """Make sure that the parts of a stack can reach each other.

    Raises:
        LocalError: they cannot.
    """
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), timeout=REACHED_S).close()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise LocalError(
            f"the parts of a stack cannot reach each other at {LOOPBACK} ({reason}): "
            "see to the loopback interface, as by ip link set lo up"
        ) from error


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
