"""One trace for each request through all services: what a service tells of the times it knows.

A span is told at its end, from two readings of the clock; nothing is wrapped around the code that
is traced. The trace goes on by a W3C ``traceparent``: in the metadata of unary calls, and in a
field of the messages that long-lived streams carry for a request. Empty means: not traced.
"""

import random
import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Protocol

import msgspec

from fastrun.service.config import environment
from fastrun.service.lifecycle import StartError

TRACEPARENT = "traceparent"
"""The header of clients, and the name in the metadata of calls."""

Endpoint = Annotated[
    str,
    environment("OTEL_EXPORTER_OTLP_ENDPOINT"),
    msgspec.Meta(
        pattern=r"^(https?://([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d+)?/?)?$",
        description="a URL without a path, such as http://collector:4317",
    ),
]
"""A setting: where an OpenTelemetry collector takes OTLP over gRPC; empty: nothing is traced."""
Disabled = Annotated[bool, environment("OTEL_SDK_DISABLED")]
"""A setting: whether nothing is traced, wherever a collector is."""

_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_SAMPLED = 1
_current: ContextVar[str] = ContextVar(TRACEPARENT, default="")


@dataclass(frozen=True, slots=True)
class Span:
    """Something that takes time; times are monotonic seconds."""

    traceparent: str
    """What others are children of; empty: it is not traced."""
    parent: str
    """The traceparent of what it is a part of; empty: it is the whole."""
    began_at: float
    is_remote: bool = False
    """Another service has asked for it."""


UNTRACED = Span("", "", 0.0)


class Tracer(Protocol):
    """Where spans go. Nothing of it blocks or raises, whatever becomes of them."""

    def admit(self, traceparent: str, began_at: float) -> Span:
        """Begin what a client asks for: a part of its trace, or a trace of its own.

        Args:
            traceparent: as the client sent it, or empty.
            began_at: monotonic seconds.
        """

    def begin(self, parent: Span | str, began_at: float) -> Span:
        """Begin a part of something.

        Args:
            parent: a span of this service, or the traceparent that came with what is asked for.
            began_at: monotonic seconds.
        """

    def end(
        self,
        span: Span,
        name: str,
        ended_at: float,
        facts: Mapping[str, object],
        *,
        failed: bool = False,
    ) -> None:
        """Tell a span.

        Args:
            span: which has begun; one that is not traced is not told.
            name: what it is: a constant.
            ended_at: monotonic seconds.
            facts: ids, counts, times and constants, as in logs; never content, never keys.
            failed: whether it ended badly, and not by its caller's fault.
        """

    async def close(self) -> None:
        """Send what is still to be sent, within a few seconds."""


class NoTracer:
    """Traces nothing, and costs next to nothing."""

    def admit(self, traceparent: str, began_at: float) -> Span:
        """See Tracer."""
        del traceparent, began_at
        return UNTRACED

    def begin(self, parent: Span | str, began_at: float) -> Span:
        """See Tracer."""
        del parent, began_at
        return UNTRACED

    def end(
        self,
        span: Span,
        name: str,
        ended_at: float,
        facts: Mapping[str, object],
        *,
        failed: bool = False,
    ) -> None:
        """See Tracer."""

    async def close(self) -> None:
        """See Tracer."""


NO_TRACER = NoTracer()


def tracer(endpoint: str, service: str, *, disabled: bool = False, share: float = 1.0) -> Tracer:
    """Make the tracer of a service.

    Args:
        endpoint: a setting, see Endpoint.
        service: its name, such as `edge`.
        disabled: a setting, see Disabled.
        share: of the requests without a traceparent those that are traced, 0 to 1.

    Raises:
        StartError: what it takes is not installed.
    """
    if disabled or not endpoint:
        return NO_TRACER
    try:
        from fastrun.service import otlp  # noqa: PLC0415 - an extra, and a third of a second
    except ImportError:
        raise StartError(
            "tracing needs the extra otel: run pip install '.[otel]' in fastrun's folder, "
            "or leave OTEL_EXPORTER_OTLP_ENDPOINT unset"
        ) from None
    return otlp.OtlpTracer(endpoint, service, share=share)


def new_trace() -> str:
    """Make the traceparent of the first span of a trace."""
    return _format(random.getrandbits(128) or 1)


def child_of(traceparent: str) -> str:
    """Make the traceparent of a part; empty where the whole is not traced."""
    ids = ids_of(traceparent)
    return _format(ids[0]) if ids else ""


def ids_of(traceparent: str) -> tuple[int, int] | None:
    """Read the ids of a trace and a span; None where it is not traced, or is no traceparent."""
    found = _FORM.fullmatch(traceparent)
    if found is None or not int(found[3], 16) & _SAMPLED:
        return None
    ids = int(found[1], 16), int(found[2], 16)
    return ids if all(ids) else None


def is_traceparent(text: str) -> bool:
    """Tell whether somebody has decided already, be it that nothing is traced."""
    return _FORM.fullmatch(text) is not None


def bind(traceparent: str) -> None:
    """Let the calls that the current task makes from now on be parts of this span."""
    _current.set(traceparent)


def bound() -> str:
    """Return the traceparent that calls of the current task are parts of."""
    return _current.get()


def _format(trace_id: int) -> str:
    return f"00-{trace_id:032x}-{random.getrandbits(64) or 1:016x}-01"
