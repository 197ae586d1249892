"""Settings of the edge."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from fastrun.service import tracing
from fastrun.service.config import Address, Bytes, LogLevel, Positive, Seconds, SomeSeconds
from fastrun.service.tls import TlsSettings

Origin = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(\*|https?://[^/\s]+)$", description="* or such as https://chat.example.org"
    ),
]


class Config(TlsSettings, frozen=True, kw_only=True):
    """Read from FASTRUN_EDGE_*; see fastrun.service.config."""

    listen: Address = "127.0.0.1:8000"
    """host:port of the public HTTP server; port 0 takes a free one."""
    reuse_port: bool = False
    """Several edges of one user on one machine share the public port."""
    admin_listen: Address = "127.0.0.1:9100"
    """host:port of /metrics, /healthz and /readyz."""
    auth_address: Address = "127.0.0.1:7001"
    """host:port of the auth service."""
    scheduler_addresses: list[Address] = msgspec.field(default_factory=lambda: ["127.0.0.1:7002"])
    """host:port of every scheduler, the leader and those that stand by."""
    log_level: LogLevel = "info"
    grace_s: Seconds = 30.0
    """How long running requests may take after SIGTERM."""

    # Where its traces go.
    otlp_endpoint: tracing.Endpoint = ""
    """URL of an OpenTelemetry collector that takes OTLP over gRPC, such as http://collector:4317;
    needs the extra `otel`."""
    otlp_disabled: tracing.Disabled = False
    """Trace nothing, whatever the endpoint says."""
    trace_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """Share of the requests that are traced, of those that bring no traceparent."""

    # What a client may send.
    body_limit_bytes: Bytes = 10 << 20
    """Largest request body; over it 413."""
    bodies_limit_bytes: Bytes = 1 << 30
    """Most of the bodies over 64 KiB that may be held at once, until they are answered; no account
    gets more than it leaves to the others. Beyond it 503."""
    header_limit_bytes: Bytes = 16 << 10
    """Longest request line and longest header; over it 431."""
    json_depth_limit: Positive = 256
    """Deepest nesting of arrays and objects in a body."""
    header_timeout_s: SomeSeconds = 10.0
    """How long a client may take for the head of a request; then 408."""
    body_timeout_s: SomeSeconds = 60.0
    """How long a client may take for the body of a request; then 408."""
    idle_timeout_s: SomeSeconds = 75.0
    """How long a connection without a request is kept."""
    cors_origins: list[Origin] = msgspec.field(default_factory=list)
    """Origins whose web pages may call from a browser, such as https://chat.example; * is all."""

    # How long a request may take.
    queue_timeout_s: Seconds = 10.0
    """Time in the queue; then 429. 0 never waits."""
    scheduler_timeout_s: SomeSeconds = 3.0
    """How long a request waits for a scheduler to be there; then 503."""
    first_delta_timeout_s: SomeSeconds = 120.0
    """From Start to the first delta; then another worker is tried."""
    silence_timeout_s: SomeSeconds = 120.0
    """Longest pause between two deltas; then the answer goes on at another worker."""
    resume_timeout_s: SomeSeconds = 30.0
    """How long what a worker has lost waits for a slot of another one."""
    request_timeout_s: SomeSeconds = 3600.0
    """The whole of a request."""
    early_headers_s: SomeSeconds = 10.0
    """After so long without a delta since the grant, a streamed request gets status and headers."""
    connect_timeout_s: SomeSeconds = 2.0
    """How long a worker may take to accept a connection."""
    abort_timeout_s: SomeSeconds = 5.0
    """How long the end of an aborted request is waited for."""
    large_request_bytes: Bytes = 256 << 10
    """A request over it goes to the worker on a stream of its own, so that none waits behind it."""

    # A client that reads slowly.
    unsent_limit_bytes: Bytes = 256 << 10
    """What may lie unsent in a client's socket before deltas are gathered and merged."""
    gathered_limit_bytes: Bytes = 1 << 20
    """What may be gathered before the client is cut off."""
    stall_timeout_s: SomeSeconds = 30.0
    """How long a client may read nothing before it is cut off."""
    stream_writer: Literal["push", "response"] = "push"
    """How events reach a client: straight to its socket, or by aiohttp's own response."""

    # Keys.
    verify_timeout_s: SomeSeconds = 0.4
    """Hard limit of a question to the auth service; whoever waits for it then gets 503."""
    key_fresh_s: Seconds = 15.0
    """An answer about a key is used so long; then it is asked again, in the background while the
    auth service tells what changes, else before its use."""
    key_grace_s: Seconds = 900.0
    """An answer about a key is used so long while nobody can be asked; 0 is strict."""
    unknown_key_s: Seconds = 5.0
    """An unknown key is refused so long without asking again."""
    key_cache_size: Positive = 100_000
    """Most known keys remembered."""
    unknown_key_cache_size: Positive = 10_000
    """Most unknown keys remembered."""
    auth_retry_s: Seconds = 1.0
    """After a question that failed, nobody asks again for so long."""
    revoked_streams: Literal["finish", "abort"] = "finish"
    """What becomes of answers that have begun when their key is revoked or their account is
    suspended or closed; what waits in the queue is refused."""

    # What requests used.
    spool: str = "~/.local/state/fastrun/spool"
    """Folder where usage is kept until the auth service has it; edges of one deployment share it,
    so that each delivers what a dead one left."""
    spool_limit_bytes: Bytes = 1 << 30
    """Most of it that may wait there for each edge; beyond it requests get 503."""
    usage_timeout_s: SomeSeconds = 5.0
    """Hard limit of one question or delivery about usage."""
    usage_interval_s: SomeSeconds = 0.5
    """Between two deliveries; a power failure takes what was written since the last but one."""

    @property
    def peer_addresses(self) -> Sequence[str]:
        """See TlsSettings; that of a worker comes from the scheduler."""
        return (self.auth_address, *self.scheduler_addresses)
