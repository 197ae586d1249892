"""What surrounds every request: ids, routing, the error envelope, the log line and the metrics."""

import asyncio

import structlog
from aiohttp import hdrs, web

from edge.cors import Cors
from edge.exchange import Exchange
from edge.http_server import Connection
from edge.metrics import Metrics
from edge.routes import Routes, endpoint_of
from fastrun.service import tracing
from fastrun.service.tracing import TRACEPARENT, Tracer

log = structlog.get_logger()

CLIENT_LEFT = 499
# Neither health checks nor pages.
TRACED = "/v1/"


class Middleware:
    """The handler of all requests."""

    def __init__(self, routes: Routes, metrics: Metrics, cors: Cors, tracer: Tracer) -> None:
        self._routes = routes
        self._cors = cors
        self._metrics = metrics
        self._tracer = tracer
        self._running = 0
        metrics.runs(lambda: self._running)
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_draining = False
        """Once set, every connection is closed after the answer it waits for."""

    @property
    def running(self) -> int:
        """How many requests are being answered."""
        return self._running

    async def idle(self) -> None:
        """Return when no request is being answered."""
        await self._idle.wait()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request; called by the HTTP server."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.begin_request()
        exchange = Exchange(request, self._cors.headers(request.headers.get("Origin")))
        structlog.contextvars.bind_contextvars(request_id=exchange.request_id)
        self._trace(exchange)
        self._began()
        status = CLIENT_LEFT
        try:
            response = await self._answer(exchange)
            status = response.status
        finally:
            connection.end_request(request.content)
            self._ended(exchange, status)
        if self.is_draining or _may_leave_body(request):
            response.force_close()
        return response

    async def _answer(self, exchange: Exchange) -> web.StreamResponse:
        try:
            return await self._dispatch(exchange)
        except Exception as error:  # noqa: BLE001 - every failure is told in one envelope
            return exchange.refuse(exchange.failed(error))

    async def _dispatch(self, exchange: Exchange) -> web.StreamResponse:
        request = exchange.request
        route = self._routes.find(request.path)
        exchange.endpoint = route.name
        if request.method == "OPTIONS":
            wanted = request.headers.get("Access-Control-Request-Headers")
            preflight = self._cors.preflight(route.methods, wanted)
            return exchange.empty({"Allow": route.methods, **preflight})
        return await endpoint_of(route, request.method)(exchange)

    def _began(self) -> None:
        self._running += 1
        self._idle.clear()

    def _trace(self, exchange: Exchange) -> None:
        headers = exchange.request.headers
        if exchange.request.path.startswith(TRACED):
            exchange.span = self._tracer.admit(headers.get(TRACEPARENT, ""), exchange.started_at)
        # Also where it is not: the connection may have brought one before that was.
        tracing.bind(exchange.span.traceparent)

    def _ended(self, exchange: Exchange, status: int) -> None:
        if exchange.on_end is not None:
            exchange.on_end()
        self._running -= 1
        if self._running == 0:
            self._idle.set()
        elapsed_s = exchange.elapsed_s()
        self._metrics.ended(exchange.model, exchange.endpoint, status, elapsed_s)
        facts = exchange.facts
        if exchange.first_delta_s is not None:
            self._metrics.first_delta(exchange.model, exchange.first_delta_s)
            facts["first_delta_ms"] = round(exchange.first_delta_s * 1000, 1)
        if exchange.client_request_id is not None:
            facts["client_request_id"] = exchange.client_request_id
        line = {
            "request_id": exchange.request_id,
            "endpoint": exchange.endpoint,
            "method": _method(exchange.request.method),
            "status": status,
            "duration_ms": round(elapsed_s * 1000, 1),
            **facts,
        }
        log.info("request_finished", **line)
        ended_at = exchange.started_at + elapsed_s
        self._tracer.end(exchange.span, exchange.endpoint, ended_at, line, failed=status >= 500)


def _method(method: str) -> str:
    """Name a method for the log; one that nobody knows may say anything."""
    return method if method in hdrs.METH_ALL else "other"


def _may_leave_body(request: web.BaseRequest) -> bool:
    """Whether a client that was refused before `100 Continue` may or may not send its body."""
    return "Expect" in request.headers and not request.content.is_eof()
