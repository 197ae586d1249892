"""A collector of traces: takes what OpenTelemetry's exporter sends over gRPC, and keeps it."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Status

LIMIT_S = 30


@dataclass(frozen=True)
class Told:
    """A span as it came."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    began_ns: int
    ended_ns: int
    facts: dict[str, object]
    failed: bool


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps all spans that it is sent."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.spans: list[Told] = []
        self._changed = threading.Condition()

    def Export(self, request, context):
        with self._changed:
            for group in request.resource_spans:
                service = _facts(group.resource.attributes)["service.name"]
                for scope in group.scope_spans:
                    self.spans += [_told(service, span) for span in scope.spans]
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def until(self, condition: Callable[[list[Told]], object]) -> list[Told]:
        """Wait until the spans fulfil a condition; return them all."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.spans), LIMIT_S), self.spans
            return list(self.spans)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port."""
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    port = server.add_insecure_port("127.0.0.1:0")
    collector = Collector(f"http://127.0.0.1:{port}")
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()


def _told(service, span) -> Told:
    return Told(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        began_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        facts=_facts(span.attributes),
        failed=span.status.code == Status.STATUS_CODE_ERROR,
    )


def _facts(attributes) -> dict[str, object]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value")
        for each in attributes
    }
