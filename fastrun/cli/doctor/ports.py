"""Whether a service runs where it should, or could: what answers at its ports."""

import errno
import http.client
import re
import socket
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path

from fastrun.cli.doctor.finding import Finding, ok, wrong
from fastrun.service.config import host_and_port

TIMEOUT_S = 2.0
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - only compared
_LISTENING = "0A"


@dataclass(frozen=True, slots=True)
class Readiness:
    """What the admin port of a running service says."""

    version: str
    now: float
    """By its clock, in whole seconds since 1970."""
    problem: str
    """Why it is not ready; empty: it is."""


def readiness(address: str) -> Readiness | None:
    """Ask an admin port; None: no service of ours answers there."""
    host, port = host_and_port(address)
    connection = http.client.HTTPConnection(_ANYWHERE.get(host, host), port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        text = answer.read(1 << 10).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    name, _, version = answer.getheader("server", "").partition("/")
    date = answer.getheader("date")
    if name != "fastrun" or date is None:
        return None
    return Readiness(
        version=version,
        now=parsedate_to_datetime(date).timestamp(),
        problem="" if answer.status == http.HTTPStatus.OK else text,
    )


def check(address: str, setting: str) -> Finding:
    """Whether a service that does not run could listen there.

    Args:
        address: host:port.
        setting: where it is chosen.
    """
    host, port = host_and_port(address)
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(kind) as probe:
        # As a server binds: connections of a former one that linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except PermissionError:
            return wrong("port", f"port {port} is for root only: choose one over 1023 by {setting}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return wrong("port", f"{address} is no address of this machine: correct {setting}")
            return wrong(
                "port",
                f"port {port} is taken by {holder(port) or 'another program'}: stop that, or "
                f"choose another one by {setting}",
            )
    return ok("port", f"{port} is free")


def holder(port: int) -> str:
    """Say which process listens at a port; empty where nobody can tell."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not wanted:
        return ""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(link.readlink()) in wanted for link in (process / "fd").iterdir()):
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
        except OSError:  # another user's, or it has just ended
            continue
    return ""


def _inodes(port: int) -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (Path("/proc/net") / table).read_text().splitlines()[1:]
        except OSError:  # not Linux
            continue
        for line in lines:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _LISTENING and re.fullmatch(rf"[0-9A-F]+:{port:04X}", local):
                found.add(inode)
    return found
