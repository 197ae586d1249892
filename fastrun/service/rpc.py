"""gRPC as fastrun uses it: channel and server options, interceptors, health and reflection."""

from __future__ import annotations  # grpc's classes are generic in their stubs only

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from fastrun.service import errors, logs
from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason

log = structlog.get_logger()

MAX_MESSAGE_BYTES = 32 << 20
REQUEST_ID = "x-request-id"
_REQUEST_ID_FORM = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_SIZES = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *_SIZES,
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Our own services are never behind the machine's web proxy.
    ("grpc.enable_http_proxy", 0),
    # One TCP connection for each channel: an edge's links do not share fate.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_SIZES,
    # Two servers must not share a port in silence.
    ("grpc.so_reuseport", 0),
    # Below the clients' 20 s, or they are told too_many_pings.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_concurrent_streams", 10_000),
]


def channel(address: str) -> grpc.aio.Channel:
    """Open a channel to ``host:port``; it connects when first used."""
    return grpc.aio.insecure_channel(
        address,
        options=CHANNEL_OPTIONS,
        interceptors=[_RequestIdOut(), _RequestIdOutStream()],
    )


class RpcServer:
    """A gRPC server with health, reflection and our interceptors."""

    def __init__(self) -> None:
        self._server = grpc.aio.server(options=SERVER_OPTIONS, interceptors=[_ServerInterceptor()])
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._names: list[str] = []

    def add(
        self,
        descriptor: ServiceDescriptor,
        register: Callable[[Any, grpc.aio.Server], None],
        servicer: Any,
    ) -> None:
        """Serve one service; ``register`` is the generated add_XServicer_to_server."""
        register(servicer, self._server)
        self._names.append(descriptor.full_name)

    async def start(self, address: str) -> int:
        """Listen on ``host:port``; port 0 takes a free one.

        Returns:
            The port.

        Raises:
            OSError: the port cannot be had.
        """
        reflection.enable_server_reflection(
            [*self._names, reflection.SERVICE_NAME, health.SERVICE_NAME], self._server
        )
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: is the port in use?") from error
        await self._server.start()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        return port

    async def not_serving(self) -> None:
        """Answer NOT_SERVING to health checks from now on; calls are still taken."""
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Take no new calls, give those that run grace_s seconds, then cancel them."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)

    async def _set_health(self, status: int) -> None:
        for name in ("", *self._names):
            await self._health.set(name, status)


class _ServerInterceptor(grpc.aio.ServerInterceptor):
    """Binds the request id to the log, and turns exceptions into status and trailer."""

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(details)
        # Reflection and health are async generators of the library's own and fail by themselves.
        if handler is None or not details.method.startswith("/fastrun."):
            return handler
        request_id = _request_id_of(details.invocation_metadata)
        make: Any
        inner: Any
        if handler.response_streaming:
            kind = "stream_stream" if handler.request_streaming else "unary_stream"
            inner, make = getattr(handler, kind), getattr(grpc, f"{kind}_rpc_method_handler")
            guarded: Any = _guard_stream(inner, request_id)
        else:
            kind = "stream_unary" if handler.request_streaming else "unary_unary"
            inner, make = getattr(handler, kind), getattr(grpc, f"{kind}_rpc_method_handler")
            guarded = _guard(inner, request_id)
        result: grpc.RpcMethodHandler[Any, Any] = make(
            guarded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
        return result


def _guard(inner: Callable[..., Awaitable[Any]], request_id: str | None) -> Callable[..., Any]:
    async def run(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        _bind(request_id)
        try:
            return await inner(request, context)
        except Exception as error:  # noqa: BLE001 - the boundary: every failure gets its trailer
            await _fail(context, error)

    return run


def _guard_stream(inner: Callable[..., Any], request_id: str | None) -> Callable[..., Any]:
    """Guard a handler that is an async generator, or a coroutine that uses context.write()."""

    async def run(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        _bind(request_id)
        try:
            result = inner(request, context)
            if isinstance(result, AsyncIterator):
                async for message in result:
                    await context.write(message)
            else:
                await result
        except Exception as error:  # noqa: BLE001 - the boundary: every failure gets its trailer
            await _fail(context, error)

    return run


async def _fail(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, ServiceError):
        await errors.abort(context, error)
    log.error("call_failed", trace=logs.trace(error))
    await errors.abort(
        context, ServiceError(ErrorReason.ERROR_REASON_INTERNAL, "internal error, see the logs")
    )


def _bind(request_id: str | None) -> None:
    structlog.contextvars.clear_contextvars()
    if request_id:
        structlog.contextvars.bind_contextvars(request_id=request_id)


def _request_id_of(metadata: Any) -> str | None:
    for key, value in metadata or ():
        if key == REQUEST_ID and isinstance(value, str) and _REQUEST_ID_FORM.fullmatch(value):
            return value
    return None


def _with_request_id(details: Any) -> Any:
    request_id = structlog.contextvars.get_contextvars().get("request_id")
    if not request_id:
        return details
    metadata: Sequence[tuple[str, str]] = [*(details.metadata or ()), (REQUEST_ID, request_id)]
    return details._replace(metadata=grpc.aio.Metadata(*metadata))


class _RequestIdOut(grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        return await continuation(_with_request_id(client_call_details), request)


class _RequestIdOutStream(grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        return await continuation(_with_request_id(client_call_details), request)
