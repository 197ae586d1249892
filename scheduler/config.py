"""Settings of the scheduler."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from fastrun.service import tracing
from fastrun.service.config import (
    MOST,
    Address,
    Count,
    DatabaseUrlOrNone,
    LogLevel,
    Positive,
    Seconds,
)
from fastrun.service.tls import TlsSettings


class Config(TlsSettings, frozen=True, kw_only=True):
    """Read from FASTRUN_SCHEDULER_*; see fastrun.service.config."""

    database_url: DatabaseUrlOrNone = ""
    """Where Postgres is, which says who of several schedulers leads, and which models were ever
    served: postgresql://user:password@host:port/database. Without it one scheduler leads, and
    forgets models when it ends."""
    listen: Address = "127.0.0.1:7002"
    """host:port of the gRPC server; port 0 takes a free one."""
    admin_listen: Address = "127.0.0.1:9102"
    """host:port of /metrics, /healthz and /readyz."""
    log_level: LogLevel = "info"
    """What is logged, and all that is worse."""
    grace_s: Seconds = 30.0
    """How long stopping may take after SIGTERM."""
    otlp_endpoint: tracing.Endpoint = ""
    """Where traces go, as for the edge."""
    otlp_disabled: tracing.Disabled = False
    """Trace nothing, as for the edge."""
    queue_per_slot: Annotated[float, msgspec.Meta(ge=0, le=MOST)] = 4.0
    """How many requests may wait for a model, for each slot of its fleet; 0 refuses at once. Of a
    request with several generations that found a slot for one, the others wait in any case."""
    suspect_after_s: Seconds = 3.0
    """Without a heartbeat for so long a worker is chosen last."""
    gone_after_s: Seconds = 5.0
    """With its session ended for so long a worker gets nothing, and an edge's leases are voided."""
    warm_up_s: Seconds = 2.0
    """For so long after it began to lead a missing worker may yet say Hello: nothing is refused for
    it. Workers try each second."""
    drift_after_s: Seconds = 5.0
    """Held for so long without being listed by its worker a lease counts as drift."""
    forget_after_s: Seconds = 3600.0
    """Gone for so long a worker is shown no more; if it returns, its Hello rebuilds its books."""

    prefix_index_entries: Count = 200_000
    """How many blocks of prompts are kept in mind, each at one worker that has it cached: some
    300 bytes each. Requests go where their beginning is."""
    breaker_failures: Positive = 5
    """After so many failed requests in a row a worker is passed over while others take requests."""
    breaker_open_s: Seconds = 10.0
    """For so long; then one request tries it."""

    @property
    def peer_addresses(self) -> Sequence[str]:
        """See TlsSettings."""
        return (self.listen,)
