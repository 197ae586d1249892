"""The HTTP server under the edge: aiohttp's, with our answers to what it refuses by itself.

Here stand all limits of a connection: how long its head may take, how much may lie unsent for it,
and how long it may read nothing before it is cut off.
"""

import asyncio
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast

import structlog
from aiohttp import HttpVersion10, HttpVersion11, StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_parser import RawRequestMessage

from edge.errors import INTERNAL, Refusal

log = structlog.get_logger()

SERVER = "fastrun"
REQUEST_ID = "X-Request-Id"
STALL_CHECK_S = 1.0
LINGER_S = 2.0
MAX_HEADERS = 128
UNPARSED = "UNKNOWN"
"""What aiohttp calls the method of a head that it cannot read."""
SPOKEN = (HttpVersion10, HttpVersion11)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one client may take."""

    header_bytes: int
    """Longest request line, longest header."""
    header_timeout_s: float
    idle_timeout_s: float
    unsent_bytes: int
    """Beyond it nothing more is given to the socket."""
    stall_timeout_s: float
    """With something unsent and nothing read for so long, the client is cut off."""


class HttpServer(web.Server):
    """Makes a Connection for each client."""

    def __init__(self, handler: Handler, limits: ConnectionLimits) -> None:
        # Without handler_cancellation a handler never learns that its client has left.
        super().__init__(handler, handler_cancellation=True, request_factory=self._request)
        self._limits = limits
        self._event_loop = asyncio.get_running_loop()

    def __call__(self) -> "Connection":
        """Called by the event loop for each connection."""
        return Connection(self, self._limits, self._event_loop)

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        connection: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        # aiohttp answers in the version that a head says, 0.9 and 2.0 too, and takes what it
        # cannot read for 1.0.
        if message.method == UNPARSED or message.version not in SPOKEN:
            message = message._replace(version=HttpVersion11)
        return web.BaseRequest(message, payload, connection, writer, task, self._event_loop)


class Connection(web.RequestHandler):
    """One client's connection."""

    def __init__(
        self, server: HttpServer, limits: ConnectionLimits, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type] # None turns it off: the edge logs itself
            auto_decompress=False,
            keepalive_timeout=limits.idle_timeout_s,
            lingering_time=LINGER_S,
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
            max_headers=MAX_HEADERS,
        )
        self.on_writable: Callable[[], None] | None = None
        """Called when a client that read slowly has caught up."""
        self._limits = limits
        self._event_loop = loop
        self._in_request = False
        self._last_body: StreamReader | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._caught_up: asyncio.Future[None] | None = None

    def begin_request(self) -> None:
        """A whole head has come: its time limit is over."""
        self._in_request = True
        self._stop_head_timer()

    def end_request(self, body: StreamReader) -> None:
        """The answer is given; what is left of the body may come, and then the next head."""
        self._in_request = False
        self._last_body = body

    async def caught_up(self) -> None:
        """Return when no more lies unsent than may."""
        while self.writing_paused:
            if self._caught_up is None:
                self._caught_up = self._event_loop.create_future()
            await asyncio.shield(self._caught_up)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket up. aiohttp itself sets TCP_NODELAY."""
        super().connection_made(transport)
        # uvloop's is one of these without saying so.
        cast("asyncio.WriteTransport", transport).set_write_buffer_limits(
            high=self._limits.unsent_bytes
        )
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            # Also ends a connection whose last bytes are never read.
            limit_ms = int(self._limits.stall_timeout_s * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the timers; aiohttp cancels the handler."""
        super().connection_lost(exc)
        self._stop_head_timer()
        self._stop_stall_timer()
        self.on_writable = None
        self._set_caught_up()

    def data_received(self, data: bytes) -> None:
        """Take bytes; those that begin a request must complete its head in time."""
        is_head = not self._in_request and (self._last_body is None or self._last_body.is_eof())
        super().data_received(data)
        if is_head and data and self._head_timer is None:
            self._head_timer = self._event_loop.call_later(
                self._limits.header_timeout_s, self._head_too_slow
            )

    def pause_writing(self) -> None:
        """Watch that the client goes on reading."""
        super().pause_writing()
        self._watch_stall(self._unsent(), self._event_loop.time())

    def resume_writing(self) -> None:
        """Tell whoever holds something back."""
        super().resume_writing()
        self._stop_stall_timer()
        self._set_caught_up()
        if self.on_writable is not None:
            self.on_writable()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what aiohttp refuses by itself, such as a malformed head."""
        request_id = secrets.token_hex(12)
        if status == HTTPStatus.BAD_REQUEST:
            refusal = self._bad_head(exc, message)
            log.info(
                "request_refused",
                request_id=request_id,
                status=refusal.status,
                remote=request.remote,
            )
        else:
            log.error("handler_failed", request_id=request_id, exc_info=exc)
            refusal = Refusal(500, INTERNAL)
        response = refusal_response(refusal, {REQUEST_ID: request_id})
        response.force_close()
        return response

    def _bad_head(self, exc: BaseException | None, message: str | None) -> Refusal:
        if isinstance(exc, LineTooLong) or (message or "").startswith("Too many"):
            limit = self._limits.header_bytes
            return Refusal(
                431,
                f"the request line and each header may have {limit} bytes, "
                f"and there may be {MAX_HEADERS} headers",
            )
        return Refusal(400, "the request is not valid HTTP/1.1")

    def _head_too_slow(self) -> None:
        self._head_timer = None
        if self.transport is not None and not self._in_request:
            limit = f"{self._limits.header_timeout_s:g}"
            refusal = Refusal(408, f"the head of the request did not come within {limit} s")
            self.transport.write(refusal_bytes(refusal))
            self.force_close()

    def _watch_stall(self, unsent: int, since: float) -> None:
        now = self._event_loop.time()
        if self._unsent() != unsent:
            unsent, since = self._unsent(), now
        if now - since >= self._limits.stall_timeout_s:
            log.info("client_stalled", unsent_bytes=unsent)
            assert self.transport is not None
            self.transport.abort()
            return
        self._stall_timer = self._event_loop.call_later(
            min(STALL_CHECK_S, self._limits.stall_timeout_s), self._watch_stall, unsent, since
        )

    def _unsent(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def _set_caught_up(self) -> None:
        if self._caught_up is not None:
            self._caught_up.set_result(None)
            self._caught_up = None

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


def refusal_response(refusal: Refusal, headers: dict[str, str]) -> web.Response:
    """The envelope as aiohttp sends it."""
    return web.Response(
        status=refusal.status,
        body=refusal.body(),
        headers={
            "Content-Type": "application/json",
            "Server": SERVER,
            **refusal.all_headers(),
            **headers,
        },
    )


def refusal_bytes(refusal: Refusal) -> bytes:
    """The envelope for a connection that has no request yet, and is closed after it."""
    return (
        head(
            refusal.status,
            {
                "Content-Type": "application/json",
                "Content-Length": str(len(refusal.body())),
                "Date": date_now(),
                "Server": SERVER,
                REQUEST_ID: secrets.token_hex(12),
                "Connection": "close",
            },
        )
        + refusal.body()
    )


def head(status: int, headers: dict[str, Any], version: str = "1.1") -> bytes:
    """Status line and headers as they go over the wire."""
    lines = [f"HTTP/{version} {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def date_now() -> str:
    """What the Date header of an answer says."""
    return _date(int(time.time()))


@lru_cache(maxsize=1)
def _date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)
