"""One HTTP request on its way through the edge: its ids, and what its log line will say."""

import re
import secrets
import time
from collections.abc import Callable, Mapping

import structlog
from aiohttp import web

from edge.errors import Refusal, refusal_of
from edge.http_server import REQUEST_ID, SERVER, refusal_response
from edge.usage_lines import Ending, Status
from fastrun.service.api_key import well_formed
from fastrun.service.errors import ServiceError
from fastrun.service.tracing import UNTRACED, Span

log = structlog.get_logger()

NO_MODEL = "none"
OTHER_MODEL = "other"

_CLIENT_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Exchange:
    """A request and what is found out about it."""

    def __init__(self, request: web.BaseRequest, headers: Mapping[str, str]) -> None:
        """Begin.

        Args:
            request: as it came.
            headers: of every answer to it, beside its id.
        """
        self.request = request
        self.started_at = time.monotonic()
        # Records and leases go by this id, so a client must not be able to choose it.
        self.request_id = secrets.token_hex(12)
        client_id = request.headers.get(REQUEST_ID, "")
        # It is logged, so a key that was put there by mistake must not be taken.
        is_id = _CLIENT_ID.fullmatch(client_id) and not well_formed(client_id)
        self.client_request_id = client_id if is_id else None
        self._headers = headers
        self.rate_limit: dict[str, str] = {}
        """Headers that say what is left of the caller's limits, once that is known."""
        self.body_bytes = 0
        """Length of the body, once it is read."""
        self.on_end: Callable[[], None] | None = None
        """Called once it is answered, or its client has left."""
        self.endpoint = "none"
        """Name of the route, once it is found."""
        self.model = NO_MODEL
        """For metrics: the model that was asked for; OTHER_MODEL: one that nobody knows."""
        self.facts: dict[str, object] = {}
        """What the log line will say beside the status: ids, counts and times, never content."""
        self.span: Span = UNTRACED
        """The whole of it, where it is traced."""
        self.first_delta_s: float | None = None
        """Seconds from the request to the first text of its answer."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every answer to this request."""
        request_id = self.client_request_id or self.request_id
        return {REQUEST_ID: request_id, **self._headers, **self.rate_limit}

    def elapsed_s(self) -> float:
        """Seconds since the request came."""
        return time.monotonic() - self.started_at

    def note_delta(self) -> None:
        """A piece of the answer has come."""
        if self.first_delta_s is None:
            self.first_delta_s = self.elapsed_s()

    def note_resumed(self) -> None:
        """A part of the answer goes on at another worker."""
        self._count("resumed")

    def note_retried(self) -> None:
        """A part of the answer is begun anew."""
        self._count("retried")

    def _count(self, fact: str) -> None:
        former = self.facts.get(fact, 0)
        assert isinstance(former, int)
        self.facts[fact] = former + 1

    def ending(self, status: Status, finish: str) -> Ending:
        """What its usage record will say of its end, which is now."""
        if finish:
            self.facts["finish"] = finish
        return Ending(
            status=status,
            finish=finish,
            first_token_ms=_ms(self.first_delta_s),
            duration_ms=_ms(self.elapsed_s()),
        )

    def failed(self, error: Exception) -> Refusal:
        """Note a failure for the log, and say what the client is told of it."""
        refusal = refusal_of(error)
        if not isinstance(error, (Refusal, ServiceError)):
            log.error("request_failed", exc_info=error)
        self.facts["failure"] = refusal.reason
        return refusal

    def json(self, body: bytes) -> web.Response:
        """Answer with a JSON document."""
        return self._ok(body, "application/json")

    def yaml(self, body: bytes) -> web.Response:
        """Answer with a YAML document."""
        return self._ok(body, "application/yaml")

    def html(self, body: bytes) -> web.Response:
        """Answer with a page."""
        return self._ok(body, "text/html; charset=utf-8")

    def text(self, text: str, *, status: int = 200) -> web.Response:
        """Answer with one line of text."""
        return self._ok(f"{text}\n".encode(), "text/plain; charset=utf-8", status)

    def empty(self, headers: dict[str, str]) -> web.Response:
        """Answer with headers alone."""
        return web.Response(status=204, headers={"Server": SERVER, **self.headers, **headers})

    def refuse(self, refusal: Refusal) -> web.Response:
        """Answer with an error envelope."""
        return refusal_response(refusal, self.headers)

    def _ok(self, body: bytes, kind: str, status: int = 200) -> web.Response:
        headers = {"Content-Type": kind, "Server": SERVER, **self.headers}
        return web.Response(status=status, body=body, headers=headers)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
