"""Settings of the auth service."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from auth_service.keys import RETIRED
from fastrun.service import tracing
from fastrun.service.config import (
    Address,
    AddressOrNone,
    DatabaseUrl,
    LogLevel,
    Seconds,
    SomeSeconds,
)
from fastrun.service.tls import TlsSettings

Secret = Annotated[
    str,
    msgspec.Meta(pattern=r"^[0-9a-fA-F]{64,}$", description="64 or more hexadecimal digits"),
]
FormerSecret = Annotated[
    str,
    msgspec.Meta(
        pattern=rf"^([0-9a-fA-F]{{64,}}|{RETIRED})$",
        description=f"64 or more hexadecimal digits, or {RETIRED}",
    ),
]


class Config(TlsSettings, frozen=True, kw_only=True):
    """Read from FASTRUN_AUTH_* and DATABASE_URL; see fastrun.service.config."""

    database_url: DatabaseUrl
    """Where Postgres is: postgresql://user:password@host:port/database."""
    pepper: Secret
    """Secret of the stored key digests: 32 bytes or more, in hexadecimal. Not in the database."""
    previous_peppers: list[FormerSecret] = msgspec.field(default_factory=list)
    """Those before it, in the order in which they were used: keys made with them stay valid.

    The word `retired` keeps the place of one that no key needs any more."""
    listen: Address = "127.0.0.1:7001"
    """host:port of the gRPC server; port 0 takes a free one."""
    admin_listen: Address = "127.0.0.1:9101"
    """host:port of /metrics, /healthz and /readyz."""
    pool_size: Annotated[int, msgspec.Meta(ge=1, le=100)] = 8
    """Most connections to Postgres, beside the one that listens for changes."""
    verify_timeout_s: SomeSeconds = 0.3
    """Hard limit of one key lookup, also when Postgres is frozen."""
    enrol_listen: AddressOrNone = ""
    """host:port where machines join as workers; empty: none can. Needs certificates."""
    enrol_ca_key: str = ""
    """PEM file of the CA's key, for workers' certificates; the CA is the first in tls_ca."""
    enrol_scheduler_addresses: list[Address] = msgspec.field(default_factory=lambda: [":7002"])
    """host:port of every scheduler as workers reach it; without a host: where they have joined."""
    enrol_auth_address: Address = ":7001"
    """host:port of listen as workers reach it, to renew certificates; in the same manner."""
    enrol_certificate_days: Annotated[float, msgspec.Meta(gt=0, le=3650)] = 30.0
    """How long a certificate of a worker that has joined lives; renewed when half of it is over."""
    log_level: LogLevel = "info"
    """What is logged, and all that is worse."""
    grace_s: Seconds = 10.0
    """How long running calls may take after SIGTERM."""
    otlp_endpoint: tracing.Endpoint = ""
    """Where traces go, as for the edge."""
    otlp_disabled: tracing.Disabled = False
    """Trace nothing, as for the edge."""

    @property
    def peer_addresses(self) -> Sequence[str]:
        """See TlsSettings."""
        return (self.listen, self.enrol_listen) if self.enrol_listen else (self.listen,)

    @property
    def peppers(self) -> Sequence[str]:
        """All of them, in the order in which they were used."""
        return (*self.previous_peppers, self.pepper)

    def __post_init__(self) -> None:
        super().__post_init__()
        known = [pepper for pepper in self.peppers if pepper != RETIRED]
        if len(set(known)) < len(known):
            raise ValueError("pepper is one of previous_peppers, or one of these is there twice")
        if bool(self.enrol_listen) != bool(self.enrol_ca_key):
            raise ValueError("enrol_listen and enrol_ca_key need each other: set both or none")
        if self.enrol_listen and not self.tls_cert:
            raise ValueError("enrol_listen needs tls_cert, tls_key and tls_ca")
