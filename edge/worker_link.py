"""The edge's links to workers: opened by the first grant, kept while they live.

To each worker instance there is one channel with two Attach streams, one of them for large
requests, so that no Start or Abort waits behind a prompt of 10 MiB.
"""

import asyncio
import functools
import itertools
from collections.abc import Callable

import grpc.aio
import structlog

from edge.attach import Attach, Call, Leases, Sink
from edge.turns import Grant
from fastrun.service import rpc
from fastrun.service.identity import Role
from fastrun.service.tls import Tls
from fastrun.v1.generation_pb2 import GenerateRequest

log = structlog.get_logger()


class Workers:
    """Starts generations on whichever worker a grant names."""

    def __init__(
        self,
        leases: Leases,
        *,
        connect_timeout_s: float,
        abort_timeout_s: float,
        large_request_bytes: int,
        tls: Tls | None,
    ) -> None:
        """Prepare; each link is made when it is first needed.

        Args:
            leases: told what became of each lease.
            connect_timeout_s: how long a worker may take to accept a connection.
            abort_timeout_s: how long the end of an aborted generation is waited for.
            large_request_bytes: a request over it goes on the second stream.
            tls: for the links; each begins with the certificate that is current then.
        """
        self._make_attach = functools.partial(
            Attach,
            leases=leases,
            connect_timeout_s=connect_timeout_s,
            abort_timeout_s=abort_timeout_s,
        )
        self._large_request_bytes = large_request_bytes
        self._tls = tls
        self._links: dict[tuple[str, str], _Link] = {}
        self._stream_ids = itertools.count(1)
        self._closing: set[asyncio.Task[None]] = set()

    def start(self, grant: Grant, request: GenerateRequest, sink: Sink, *, gathers: bool) -> Call:
        """Begin a generation; what happens to it goes to the sink."""
        link = self._link(grant)
        large = request.ByteSize() > self._large_request_bytes
        attach = link.large if large else link.normal
        return attach.start(next(self._stream_ids), grant, request, sink, gathers=gathers)

    async def close(self) -> None:
        """End every stream and channel."""
        await asyncio.gather(*(link.close() for link in self._links.values()))
        await asyncio.gather(*self._closing)

    def _link(self, grant: Grant) -> "_Link":
        key = (grant.address, grant.instance_id)
        link = self._links.get(key)
        if link is None:
            channel = rpc.channel(grant.address, Role.WORKER, self._tls)
            link = self._links[key] = _Link(key, channel, self._make_attach, self._drop)
        return link

    def _drop(self, link: "_Link") -> None:
        """Forget a link whose streams have ended: the next grant makes a new one."""
        if self._links.get(link.key) is link:
            del self._links[link.key]
            task = asyncio.create_task(link.channel.close(), name="close-channel")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


class _Link:
    """One worker instance."""

    def __init__(
        self,
        key: tuple[str, str],
        channel: grpc.aio.Channel,
        make_attach: Callable[..., Attach],
        on_gone: Callable[["_Link"], None],
    ) -> None:
        self.key = key
        self.channel = channel
        self.normal = make_attach(self.channel, on_end=self._on_end)
        self.large = make_attach(self.channel, on_end=self._on_end)
        self._on_gone = on_gone

    def _on_end(self, reason: str, lost: int) -> None:
        address, instance = self.key
        log.info(
            "worker_link_ended", address=address, instance_id=instance, reason=reason, lost=lost
        )
        if not (self.normal.is_open or self.large.is_open):
            self._on_gone(self)

    async def close(self) -> None:
        await self.normal.close()
        await self.large.close()
        await self.channel.close()
