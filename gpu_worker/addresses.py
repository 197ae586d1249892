"""Where edges reach this worker, when nobody has said it."""

import asyncio
import socket
from collections.abc import Sequence

from fastrun.service.config import host_and_port

_ANY = ("0.0.0.0", "[::]", "::", "")  # noqa: S104 - compared, not bound


async def advertised(listen: str, port: int, schedulers: Sequence[str]) -> str:
    """host:port of this worker, for edges.

    One that listens everywhere is reached by the address by which it reaches the schedulers: names
    of hosts are often known on their own machine only.

    Args:
        listen: host:port, as set.
        port: the real one.
        schedulers: host:port of each.
    """
    host = listen.rpartition(":")[0]  # with the brackets of an IPv6 one
    if host in _ANY:
        family = socket.AF_INET if host == "0.0.0.0" else socket.AF_UNSPEC  # noqa: S104 - compared
        host = await _own_address(schedulers, family) or socket.gethostname()
    return f"{host}:{port}"


async def _own_address(schedulers: Sequence[str], family: socket.AddressFamily) -> str | None:
    loop = asyncio.get_running_loop()
    for address in schedulers:
        host, port = host_and_port(address)
        try:
            found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_DGRAM)
        except OSError:
            continue
        for kind, _, _, _, where in found:
            own = _towards(kind, where)
            if own is not None:
                return own
    return None


def _towards(family: socket.AddressFamily, where: tuple[object, ...]) -> str | None:
    """Which of our addresses would be the sender's; nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(where)
        except OSError:
            return None
        own = str(probe.getsockname()[0])
    return f"[{own}]" if family == socket.AF_INET6 else own
