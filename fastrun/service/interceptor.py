"""What happens around every call that a server handles: who calls, ids for logs, and failures."""

from __future__ import annotations  # grpc's classes are generic in their stubs only

import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import structlog

from fastrun.service import errors, identity, tracing
from fastrun.service.errors import ServiceError
from fastrun.service.tracing import TRACEPARENT, Tracer
from fastrun.v1.error_pb2 import ErrorReason

log = structlog.get_logger()

REQUEST_ID = "x-request-id"
_REQUEST_ID_FORM = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_Context = grpc.aio.ServicerContext[Any, Any]
_Begin = Callable[[_Context], None]


Authorize = Callable[[str, _Context], None]
"""Says for the rest of a task who makes a call, or raises ServiceError: PERMISSION_DENIED."""


class ServerInterceptor(grpc.aio.ServerInterceptor):
    """Refuses whom a call is not for, binds ids to the log, turns exceptions into status.

    Args:
        authorize: told of each call and its context before it is handled; None: all may do all.
        tracer: told of each unary call that is a part of a trace.
    """

    def __init__(self, authorize: Authorize | None, tracer: Tracer) -> None:
        self._authorize = authorize
        self._tracer = tracer

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Put ourselves around the handler of a call."""
        handler = await continuation(details)
        if handler is None:
            return handler
        request_id = _request_id_of(details.invocation_metadata)
        traceparent = _traceparent_of(details.invocation_metadata)

        def begin(context: _Context) -> None:
            _bind(request_id)
            if self._authorize is not None:
                self._authorize(details.method, context)

        make: Any
        inner: Any
        if handler.response_streaming:
            kind = "stream_stream" if handler.request_streaming else "unary_stream"
            inner, make = getattr(handler, kind), getattr(grpc, f"{kind}_rpc_method_handler")
            guarded: Any = _guard_stream(inner, begin)
        else:
            kind = "stream_unary" if handler.request_streaming else "unary_unary"
            inner, make = getattr(handler, kind), getattr(grpc, f"{kind}_rpc_method_handler")
            if traceparent:
                inner = self._traced(inner, details.method.rpartition("/")[2], traceparent)
            guarded = _guard(inner, begin)
        result: grpc.RpcMethodHandler[Any, Any] = make(
            guarded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
        return result

    def _traced(
        self, inner: Callable[..., Awaitable[Any]], name: str, traceparent: str
    ) -> Callable[..., Awaitable[Any]]:
        async def run(request: Any, context: _Context) -> Any:
            span = self._tracer.begin(traceparent, time.monotonic())
            tracing.bind(span.traceparent)
            failure = "cancelled"
            try:
                result = await inner(request, context)
                failure = ""
                return result
            except ServiceError as error:
                failure = errors.reason_name(error.detail.reason)
                raise
            except Exception:
                failure = "crashed"
                raise
            finally:
                facts = {"failure": failure} if failure else {}
                self._tracer.end(span, name, time.monotonic(), facts, failed=bool(failure))

        return run


def _guard(inner: Callable[..., Awaitable[Any]], begin: _Begin) -> Callable[..., Any]:
    async def run(request: Any, context: _Context) -> Any:
        try:
            begin(context)
            return await inner(request, context)
        except Exception as error:  # noqa: BLE001 - the boundary: every failure gets its trailer
            await _fail(context, error)

    return run


def _guard_stream(inner: Callable[..., Any], begin: _Begin) -> Callable[..., Any]:
    """Guard a handler that is an async generator, or a coroutine that uses context.write()."""

    async def run(request: Any, context: _Context) -> None:
        try:
            begin(context)
            result = inner(request, context)
            if isinstance(result, AsyncIterator):
                async for message in result:
                    await context.write(message)
            else:
                await result
        except Exception as error:  # noqa: BLE001 - the boundary: every failure gets its trailer
            await _fail(context, error)

    return run


async def _fail(context: _Context, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, ServiceError):
        await errors.abort(context, error)
    log.error("call_failed", exc_info=error)
    await errors.abort(
        context, ServiceError(ErrorReason.ERROR_REASON_INTERNAL, "internal error, see the logs")
    )


def _bind(request_id: str | None) -> None:
    structlog.contextvars.clear_contextvars()
    if request_id:
        structlog.contextvars.bind_contextvars(request_id=request_id)


def by_certificate(method: str, context: _Context) -> None:
    """Let those call whose certificate's role opens the call: an Authorize."""
    uris = context.auth_context().get("peer_uri", ())
    peer = identity.of_uris(uri.decode(errors="replace") for uri in uris)
    _refuse(method, identity.refusal(method, peer))
    identity.bind_caller(peer)
    structlog.contextvars.bind_contextvars(peer=str(peer))


def without_certificate(method: str, context: _Context) -> None:
    """Let anybody make the few calls that are for machines without a certificate: an Authorize."""
    del context
    _refuse(method, identity.refusal_without_certificate(method))


def _refuse(method: str, refused: str | None) -> None:
    if refused is not None:
        log.warning("call_refused", method=method, reason=refused)
        raise ServiceError(ErrorReason.ERROR_REASON_PERMISSION_DENIED, refused)


def _request_id_of(metadata: Any) -> str | None:
    for key, value in metadata or ():
        if key == REQUEST_ID and isinstance(value, str) and _REQUEST_ID_FORM.fullmatch(value):
            return value
    return None


def _traceparent_of(metadata: Any) -> str:
    return next((str(value) for key, value in metadata or () if key == TRACEPARENT), "")
