"""Spans to an OpenTelemetry collector, by the SDK's own queue, thread and exporter.

Spans are made here, from times, rather than by the SDK's tracer, which reads the clock itself. All
that an operator sets by OTEL_* variables for queue, exporter and resource is heeded by the SDK.
"""

import asyncio
import random
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

import fastrun
from fastrun.service import tracing
from fastrun.service.tracing import UNTRACED, Span

CLOSE_LIMIT_S = 2.0
_FLAGS = TraceFlags(TraceFlags.SAMPLED)


class OtlpTracer:
    """A Tracer that exports."""

    def __init__(self, endpoint: str, service: str, *, share: float) -> None:
        self._share = share
        self._resource = Resource.create(
            {"service.name": f"fastrun-{service}", "service.version": fastrun.__version__}
        )
        self._processor = BatchSpanProcessor(OTLPSpanExporter(endpoint))

    def admit(self, traceparent: str, began_at: float) -> Span:
        """See Tracer."""
        if tracing.is_traceparent(traceparent):
            return self.begin(traceparent, began_at)
        if random.random() >= self._share:  # noqa: S311 - nothing is kept secret by it
            return UNTRACED
        return Span(tracing.new_trace(), "", began_at, is_remote=True)

    def begin(self, parent: Span | str, began_at: float) -> Span:
        """See Tracer."""
        is_remote = isinstance(parent, str)
        above = parent if isinstance(parent, str) else parent.traceparent
        own = tracing.child_of(above)
        return Span(own, above, began_at, is_remote=is_remote) if own else UNTRACED

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
        context = _context(span.traceparent)
        if context is None:
            return
        since_1970 = time.time() - time.monotonic()
        self._processor.on_end(
            ReadableSpan(
                name,
                context,
                _context(span.parent, is_remote=span.is_remote),
                self._resource,
                {f"fastrun.{key}": _value(value) for key, value in facts.items()},
                kind=SpanKind.SERVER if span.is_remote else SpanKind.INTERNAL,
                status=Status(StatusCode.ERROR) if failed else Status(),
                start_time=round((span.began_at + since_1970) * 1e9),
                end_time=round((ended_at + since_1970) * 1e9),
            )
        )

    async def close(self) -> None:
        """See Tracer."""
        # In a thread that nobody waits for at the end: a collector may take no connection.
        done, loop = asyncio.Event(), asyncio.get_running_loop()

        def shut_down() -> None:
            self._processor.shutdown()  # type: ignore[no-untyped-call]
            with suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, name="otlp-shutdown", daemon=True).start()
        try:
            await asyncio.wait_for(done.wait(), CLOSE_LIMIT_S)
        except TimeoutError:
            return


def _context(traceparent: str, *, is_remote: bool = False) -> SpanContext | None:
    ids = tracing.ids_of(traceparent)
    return SpanContext(*ids, is_remote, _FLAGS) if ids else None


def _value(value: object) -> str | bool | int | float:
    return value if isinstance(value, str | bool | int | float) else str(value)
