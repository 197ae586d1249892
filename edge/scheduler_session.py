"""One session with one scheduler: opened, kept, and opened again whenever it ends."""

from __future__ import annotations  # grpc's classes are generic in their stubs only

import asyncio
from collections.abc import Callable

import structlog

from fastrun.service import rpc
from fastrun.service.identity import Role
from fastrun.service.streams import (
    CLOSED,
    SCHEDULER_RETRY_S,
    DuplexStream,
    Outbox,
    backoff_s,
)
from fastrun.service.tls import Tls
from fastrun.v1 import scheduler_pb2_grpc
from fastrun.v1.scheduler_pb2 import EdgeMessage, EdgeMessages, EdgeReply
from fastrun.v1.worker_pb2 import Ping

log = structlog.get_logger()


class SchedulerSession:
    """What is open with one scheduler."""

    def __init__(
        self,
        address: str,
        tls: Tls | None,
        *,
        hello: Callable[[], EdgeMessage],
        on_reply: Callable[[SchedulerSession, EdgeReply], None],
        on_end: Callable[[int], None],
    ) -> None:
        """Prepare; keep() connects.

        Args:
            address: host:port.
            tls: each session begins with the certificate that is current then.
            hello: makes the first item.
            on_reply: called for each item that comes; must not block.
            on_end: called when a session that had a welcome has ended, with the term it had.
        """
        self.address = address
        self.term: int | None = None
        """As last told by the scheduler; 0: it stands by; None: it has said no welcome."""
        self._hello = hello
        self._on_reply = on_reply
        self._on_end = on_end
        self._tls = tls
        self._outbox: Outbox[EdgeMessage] = Outbox(EdgeMessages)
        self._stream: DuplexStream | None = None

    def put(self, message: EdgeMessage) -> None:
        """Send soon, after all that was put before; without a session the next Hello tells all."""
        if self._stream is not None:
            self._outbox.put(message)
            self._stream.wake()

    async def keep(self) -> None:
        """Stay connected until cancelled."""
        attempt = 0
        while True:
            try:
                reason = await self._run()
            except Exception:
                log.exception("scheduler_session_failed", address=self.address)
                reason = "an item could not be taken"
            attempt = 1 if self.term is not None else attempt + 1
            if reason == CLOSED:
                log.info("scheduler_left", address=self.address)
            elif attempt == 1:
                log.warning("scheduler_session_ended", address=self.address, reason=reason)
            if (term := self.term) is not None:
                self.term = None
                self._on_end(term)
            await asyncio.sleep(backoff_s(attempt, cap_s=SCHEDULER_RETRY_S))

    async def _run(self) -> str:
        outbox: Outbox[EdgeMessage] = Outbox(EdgeMessages)
        self._outbox = outbox
        outbox.put(self._hello())
        channel = rpc.channel(self.address, Role.SCHEDULER, self._tls)
        call = scheduler_pb2_grpc.SchedulerServiceStub(channel).EdgeSession()
        stream = DuplexStream(
            call,
            outbox,
            on_item=lambda reply: self._on_reply(self, reply),
            ping=lambda: outbox.put(EdgeMessage(ping=Ping())),
        )
        stream.wake()
        self._stream = stream
        try:
            return await stream.run()
        finally:
            self._stream = None
            call.cancel()
            await channel.close()
