"""Which session is of which peer, when a newer one of the same peer may replace it."""

from typing import Generic, TypeVar

import structlog

from scheduler.ports import EdgeLink, Link, WorkerLink

log = structlog.get_logger()

LinkT = TypeVar("LinkT", EdgeLink, WorkerLink)
PeerT = TypeVar("PeerT")
ItemT = TypeVar("ItemT")


class ProtocolError(Exception):
    """The peer does not speak as it must; its session ends."""


class StrangerError(Exception):
    """The peer says that it is another one, whose certificate it does not have."""


def check_certificate(link: EdgeLink | WorkerLink, peer: str, known: str) -> None:
    """Let a session be that of a peer which is known already.

    Args:
        link: the session.
        peer: what the peer is called, such as `worker 'gpu-1'`.
        known: the name in the certificate that it was first heard with.

    Raises:
        StrangerError: this session has a certificate of another name.
    """
    if link.certificate != known:
        raise StrangerError(
            f"{peer} is known by the certificate of {known or 'nobody'}, and this one is of "
            f"{link.certificate or 'nobody'}: use that certificate, or an id of your own"
        )


def send(link: Link[ItemT] | None, item: ItemT) -> None:
    """Append to what a peer will be sent, if it has a session; never raises.

    A session that cannot take it ends. The next one begins with a Hello, and what the peer lacks is
    found by that.
    """
    if link is None:
        return
    try:
        link.send(item)
    except Exception:
        log.exception("item_not_sent")
        link.close()


class Links(Generic[LinkT, PeerT]):
    """The sessions with peers of one kind."""

    def __init__(self) -> None:
        self._peers: dict[LinkT, PeerT] = {}
        self._replaced: set[LinkT] = set()

    def is_replaced(self, link: LinkT) -> bool:
        """Tell whether a newer session has replaced this one: what it still says is ignored."""
        return link in self._replaced

    def peer(self, link: LinkT) -> PeerT | None:
        """Return whose session it is; None before its Hello."""
        return self._peers.get(link)

    def bind(self, link: LinkT, peer: PeerT) -> None:
        """Note whose session it is."""
        self._peers[link] = peer

    def replace(self, link: LinkT) -> None:
        """End a session because its peer has a newer one."""
        del self._peers[link]
        self._replaced.add(link)
        link.close()

    def end(self, link: LinkT) -> PeerT | None:
        """Note that a session has ended.

        Returns:
            Whose it was; None if it has been replaced, or there was no Hello.
        """
        self._replaced.discard(link)
        return self._peers.pop(link, None)

    def close(self) -> None:
        """End all sessions."""
        for link in self._peers:
            link.close()
