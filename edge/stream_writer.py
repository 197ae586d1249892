"""Writes an event stream to its client: the one module that goes past aiohttp to the transport.

PushStream is what runs: whoever has the next event writes it straight to the client's socket, with
no task to be woken, and the framing of HTTP/1.1 done here. It stands on aiohttp letting a handler
write its whole response by itself; ResponseStream gives the same bytes without that, for the day
when an upgrade breaks it.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from aiohttp import web

from edge.http_server import SERVER, Connection, date_now, head

_LAST_CHUNK = b"0\r\n\r\n"


class ClientStream(Protocol):
    """One event stream to one client."""

    @property
    def is_congested(self) -> bool:
        """Whether so much lies unsent that the next events should be held back."""

    def write(self, data: bytes) -> None:
        """Send one or more whole events; the first call also sends status and headers."""

    async def end(self, data: bytes, *, close: bool = False) -> web.StreamResponse:
        """Send the last events and return when the client has taken nearly all.

        Args:
            data: whole events.
            close: end the connection too.

        Returns:
            What the handler returns.
        """

    def cut(self) -> None:
        """Drop the connection: the client reads too slowly."""

    def release(self) -> None:
        """Let go of the connection, whatever state the stream is in. Idempotent."""


class _Written(web.StreamResponse):
    """A response that has been written already: all that is left to aiohttp is the connection."""

    def __init__(self, *, keep_alive: bool) -> None:
        super().__init__()
        self._stays = keep_alive

    @property
    def keep_alive(self) -> bool:
        """Whether the connection stays open."""
        return self._stays

    def force_close(self) -> None:
        """End the connection too."""
        self._stays = False

    async def prepare(self, request: web.BaseRequest) -> None:
        """Nothing is left to prepare."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""


class PushStream:
    """Writes to the transport."""

    def __init__(
        self,
        request: web.BaseRequest,
        headers: Callable[[], Mapping[str, str]],
        on_writable: Callable[[], None],
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            request: what is answered.
            headers: returns those beside what every stream has, when the first event goes out.
            on_writable: called when the stream is no longer congested.
        """
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.on_writable = on_writable
        self._connection = connection
        self._transport = request.transport
        self._is_chunked = request.version >= (1, 1)
        self._stays = request.keep_alive and self._is_chunked
        self._version = f"{request.version[0]}.{request.version[1]}"
        self._headers: Callable[[], Mapping[str, str]] | None = headers

    @property
    def is_congested(self) -> bool:
        """See ClientStream."""
        return self._connection.writing_paused

    def write(self, data: bytes) -> None:
        """See ClientStream."""
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._headers is not None:
            data = self._head() + data
        self._send(data)

    async def end(self, data: bytes, *, close: bool = False) -> web.StreamResponse:
        """See ClientStream."""
        self._stays = self._stays and not close
        last = b""
        if self._headers is not None:
            last = self._head()
        if self._is_chunked:
            last += b"%x\r\n%b\r\n" % (len(data), data) + _LAST_CHUNK
        else:
            last += data
        self._send(last)
        await self._connection.caught_up()
        return _Written(keep_alive=self._stays)

    def cut(self) -> None:
        """See ClientStream."""
        if self._transport is not None:
            self._transport.abort()

    def release(self) -> None:
        """See ClientStream."""
        self._connection.on_writable = None

    def _head(self) -> bytes:
        assert self._headers is not None
        headers = stream_headers(self._headers())
        self._headers = None
        if self._is_chunked:
            headers["Transfer-Encoding"] = "chunked"
            if not self._stays:
                headers["Connection"] = "close"
        return head(200, headers, self._version)

    def _send(self, data: bytes) -> None:
        # Between the loss of a connection and the end of its handler there is nobody to write to.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


class ResponseStream:
    """Writes through aiohttp's StreamResponse, by a task of its own."""

    def __init__(
        self,
        request: web.BaseRequest,
        headers: Callable[[], Mapping[str, str]],
        on_writable: Callable[[], None],
    ) -> None:
        """Prepare; see PushStream."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.on_writable = on_writable
        self._connection = connection
        self._request = request
        self._response = web.StreamResponse()
        self._headers = headers
        if request.version < (1, 1):
            self._response.force_close()
        self._unsent: list[bytes] = []
        self._more = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._is_ending = False

    @property
    def is_congested(self) -> bool:
        """See ClientStream."""
        return self._connection.writing_paused

    def write(self, data: bytes) -> None:
        """See ClientStream."""
        self._unsent.append(data)
        self._more.set()
        if self._pump is None:
            self._pump = asyncio.create_task(self._write_all(), name="stream-pump")

    async def end(self, data: bytes, *, close: bool = False) -> web.StreamResponse:
        """See ClientStream."""
        if close:
            self._response.force_close()
        self._is_ending = True
        self.write(data)
        assert self._pump is not None
        await self._pump
        await self._response.write_eof()
        return self._response

    def cut(self) -> None:
        """See ClientStream."""
        if self._request.transport is not None:
            self._request.transport.abort()

    def release(self) -> None:
        """See ClientStream."""
        self._connection.on_writable = None
        if self._pump is not None:
            self._pump.cancel()

    async def _write_all(self) -> None:
        self._response.headers.update(stream_headers(self._headers()))
        await self._response.prepare(self._request)
        while self._unsent or not self._is_ending:
            await self._more.wait()
            self._more.clear()
            while self._unsent:
                await self._response.write(self._unsent.pop(0))


def stream_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers of every event stream: proxies must neither keep nor gather it."""
    return {
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-cache",
        "X-Accel-Buffering": "no",
        "Date": date_now(),
        "Server": SERVER,
        **headers,
    }
