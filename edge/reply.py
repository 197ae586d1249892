"""How an answer reaches its client: collected into one document, or as a stream of events."""

from collections.abc import Callable
from typing import Protocol

from aiohttp import web

from edge.errors import Refusal
from edge.exchange import Exchange
from edge.sse import ChatEvents, Identity, chat_completion, error_event
from edge.stream_writer import ClientStream
from fastrun.v1.generation_pb2 import Delta, Finished

StreamMaker = Callable[[Callable[[], None]], ClientStream]
"""Makes the stream to the client, given whom to call when it is no longer congested."""


class Reply(Protocol):
    """Takes what is generated and answers the client with it."""

    def begin(self) -> None:
        """Show the client that its request is being worked on. Idempotent."""

    def on_delta(self, delta: Delta) -> None:
        """Take a piece."""

    async def finish(self, finished: Finished) -> web.StreamResponse:
        """Complete the answer; returns what the handler returns."""

    async def fail(self, refusal: Refusal) -> web.StreamResponse:
        """Tell the client of a failure; returns what the handler returns."""

    def release(self) -> None:
        """Let go of the client, whatever has happened."""


class CollectedReply:
    """One JSON document at the end."""

    def __init__(self, exchange: Exchange, identity: Identity) -> None:
        self._exchange = exchange
        self._identity = identity
        self._texts: list[str] = []

    def begin(self) -> None:
        """A plain reply has no early headers."""

    def on_delta(self, delta: Delta) -> None:
        """Keep a piece."""
        self._exchange.note_delta()
        self._texts.append(delta.content)

    async def finish(self, finished: Finished) -> web.StreamResponse:
        """Answer."""
        text = "".join(self._texts)
        return self._exchange.json(
            chat_completion(self._identity, text, finished.reason, finished.usage)
        )

    async def fail(self, refusal: Refusal) -> web.StreamResponse:
        """Answer with the failure; nothing was sent before, so it has a status."""
        return self._exchange.refuse(refusal)

    def release(self) -> None:
        """Nothing is held."""


class StreamedReply:
    """Events, each sent as soon as it is there; merged while the client reads too slowly."""

    def __init__(
        self,
        exchange: Exchange,
        make_stream: StreamMaker,
        events: ChatEvents,
        *,
        gathered_limit_bytes: int,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            exchange: what is answered.
            make_stream: makes the way to the client.
            events: what the events look like.
            gathered_limit_bytes: how much may be held back for a client before it is cut off.
        """
        self._exchange = exchange
        self._has_begun = False
        self._stream = make_stream(self._flush)
        self._events = events
        self._gathered_limit_bytes = gathered_limit_bytes
        self._gathered: list[str] = []
        self._gathered_bytes = 0

    def begin(self) -> None:
        """Send status, headers and the role."""
        if not self._has_begun:
            self._has_begun = True
            self._stream.write(self._events.role())

    def on_delta(self, delta: Delta) -> None:
        """Send a piece, or keep it until the client has read what lies before it."""
        text = delta.content
        if not text:
            return
        self._exchange.note_delta()
        if self._gathered or self._stream.is_congested:
            self._gather(text)
        elif self._has_begun:
            self._stream.write(self._events.text(text))
        else:
            self._has_begun = True
            self._stream.write(self._events.role() + self._events.text(text))

    async def finish(self, finished: Finished) -> web.StreamResponse:
        """Send the last events."""
        return await self._stream.end(
            self._rest() + self._events.end(finished.reason, finished.usage)
        )

    async def fail(self, refusal: Refusal) -> web.StreamResponse:
        """Answer with its status; once that is sent, the failure is the last event."""
        if not self._has_begun:
            return self._exchange.refuse(refusal)
        return await self._stream.end(self._rest() + error_event(refusal), close=True)

    def release(self) -> None:
        """Let go of the client."""
        self._stream.release()

    def _gather(self, text: str) -> None:
        self._gathered.append(text)
        self._gathered_bytes += len(text.encode())
        if self._gathered_bytes > self._gathered_limit_bytes:
            self._stream.cut()

    def _flush(self) -> None:
        if self._gathered:
            self._stream.write(self._rest())

    def _rest(self) -> bytes:
        """What is still to be sent before anything new: the role, and what was gathered."""
        role = b"" if self._has_begun else self._events.role()
        self._has_begun = True
        text, self._gathered, self._gathered_bytes = "".join(self._gathered), [], 0
        return role + (self._events.text(text) if text else b"")
