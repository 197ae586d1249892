"""Settings of the auth service."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from fastrun.service.config import environment
from fastrun.service.tls import TlsSettings


class Config(TlsSettings, frozen=True, kw_only=True):
    """Read from FASTRUN_AUTH_* and DATABASE_URL; see fastrun.service.config."""

    database_url: Annotated[str, environment("DATABASE_URL")]
    """Where Postgres is: postgresql://user:password@host:port/database."""
    pepper: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-fA-F]{64,}$")]
    """Secret of the stored key digests: 32 bytes or more, in hexadecimal. Not in the database."""
    listen: str = "127.0.0.1:7001"
    """host:port of the gRPC server; port 0 takes a free one."""
    admin_listen: str = "127.0.0.1:9101"
    """host:port of /metrics, /healthz and /readyz."""
    pool_size: Annotated[int, msgspec.Meta(ge=1, le=100)] = 8
    """Most connections to Postgres, beside the one that listens for changes."""
    verify_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 0.3
    """Hard limit of one key lookup, also when Postgres is frozen."""
    log_level: str = "info"
    """debug, info, warning or error."""
    grace_s: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    """How long running calls may take after SIGTERM."""

    @property
    def peer_addresses(self) -> Sequence[str]:
        """See TlsSettings."""
        return (self.listen,)
