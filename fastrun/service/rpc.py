"""gRPC as fastrun uses it: channels and servers, their options, health and reflection."""

from __future__ import annotations  # grpc's classes are generic in their stubs only

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

import fastrun
from fastrun.service import tracing
from fastrun.service.identity import Role
from fastrun.service.interceptor import (
    REQUEST_ID,
    ServerInterceptor,
    by_certificate,
    without_certificate,
)
from fastrun.service.lifecycle import ListenError
from fastrun.service.tls import ClientTls, Tls
from fastrun.service.tracing import NO_TRACER, TRACEPARENT, Tracer

MAX_MESSAGE_BYTES = 32 << 20
# What clients without a certificate may send.
MAX_STRANGERS_MESSAGE_BYTES = 1 << 16
# How many calls they may make at once, all together and on each connection.
MOST_STRANGERS_CALLS = 64
MOST_STRANGERS_STREAMS = 8
OLD_CHANNEL_GRACE_S = 30.0
# What a health check tells beside its answer: of which version the service is, and what time it
# has there, in milliseconds since 1970.
VERSION = "fastrun-version"
CLOCK = "fastrun-clock-ms"


def _sizes(most_received: int) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", most_received),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ]


CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *_sizes(MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Our own services are never behind the machine's web proxy.
    ("grpc.enable_http_proxy", 0),
    # One TCP connection for each channel: an edge's links do not share fate.
    ("grpc.use_local_subchannel_pool", 1),
    # Also how long one try to connect may take, TLS included, on a machine that is busy.
    ("grpc.min_reconnect_backoff_ms", 1_500),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_sizes(MAX_MESSAGE_BYTES),
    # Two servers must not share a port in silence.
    ("grpc.so_reuseport", 0),
    # Below the clients' 20 s, or they are told too_many_pings.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_concurrent_streams", 10_000),
]


def channel(
    address: str, role: Role | None = None, tls: ClientTls | None = None
) -> grpc.aio.Channel:
    """Open a channel to ``host:port``; it connects when first used.

    It shows the certificate that is current now as long as it lives, also when it connects again:
    who keeps a link for long opens a new channel for each session, or uses a FreshChannel.

    Args:
        address: where.
        role: whom its certificate has to be of; only with ``tls``.
        tls: what to show and whom to trust; None: plaintext.
    """
    interceptors = [_IdsOut(), _IdsOutStream()]
    if tls is None:
        return grpc.aio.insecure_channel(
            address, options=CHANNEL_OPTIONS, interceptors=interceptors
        )
    assert role is not None
    return grpc.aio.secure_channel(
        address,
        tls.channel_credentials(),
        options=[*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", role.dns_name)],
        interceptors=interceptors,
    )


class FreshChannel:
    """A channel for calls now and then, opened anew once the certificates have been replaced."""

    def __init__(self, address: str, role: Role, tls: Tls | None) -> None:
        self._open = functools.partial(channel, address, role)
        self._tls = tls
        self._pem = tls.current() if tls else None
        self._channel = self._open(self._pem)
        self._closing: set[asyncio.Task[None]] = set()

    def get(self) -> grpc.aio.Channel:
        """Return the channel for the next call; ask again for each."""
        pem = self._tls.current() if self._tls else None
        if pem is not self._pem:
            old, self._channel, self._pem = self._channel, self._open(pem), pem
            task = asyncio.create_task(old.close(OLD_CHANNEL_GRACE_S), name="close-channel")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        return self._channel

    async def close(self) -> None:
        """Close it; calls that run are cancelled."""
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._channel.close()


class RpcServer:
    """A gRPC server with health, reflection and our interceptors.

    Args:
        tls: what it shows and whom it trusts, and each call has to be one that its peer may make:
            see fastrun.service.identity. None: plaintext, and whoever reaches it may do all.
        strangers: its clients have no certificate yet, and may make the few calls for such.
        tracer: told of each unary call that is a part of a trace.
    """

    def __init__(
        self, tls: Tls | None = None, *, strangers: bool = False, tracer: Tracer = NO_TRACER
    ) -> None:
        self._tls = tls
        self._strangers = strangers
        authorize = without_certificate if strangers else by_certificate if tls else None
        options = dict(SERVER_OPTIONS)
        if strangers:
            options |= _sizes(MAX_STRANGERS_MESSAGE_BYTES)
            options["grpc.max_concurrent_streams"] = MOST_STRANGERS_STREAMS
        self._server = grpc.aio.server(
            options=list(options.items()),
            interceptors=[ServerInterceptor(authorize, tracer)],
            maximum_concurrent_rpcs=MOST_STRANGERS_CALLS if strangers else None,
        )
        self._health = health.aio.HealthServicer() if strangers else _Health()
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
            port = (
                self._server.add_secure_port(
                    address, self._tls.server_credentials(ask=not self._strangers)
                )
                if self._tls
                else self._server.add_insecure_port(address)
            )
        except RuntimeError as error:
            raise ListenError(address) from error
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


class _Health(health.aio.HealthServicer):
    """Answers health checks, and tells whoever asks what it asks itself when things go wrong."""

    def __init__(self) -> None:
        super().__init__()
        self._version = fastrun.__version__

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        """See grpc.health.v1."""
        context.set_trailing_metadata(
            ((VERSION, self._version), (CLOCK, str(round(time.time() * 1000))))
        )
        return await super().Check(request, context)


def _with_ids(details: Any) -> Any:
    request_id = structlog.contextvars.get_contextvars().get("request_id")
    ids = [(REQUEST_ID, request_id), (TRACEPARENT, tracing.bound())]
    known = [(name, value) for name, value in ids if value]
    if not known:
        return details
    return details._replace(metadata=grpc.aio.Metadata(*(details.metadata or ()), *known))


class _IdsOut(grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        return await continuation(_with_ids(client_call_details), request)


class _IdsOutStream(grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(
        self, continuation: Any, client_call_details: Any, request: Any
    ) -> Any:
        return await continuation(_with_ids(client_call_details), request)
