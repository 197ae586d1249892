"""How an answer reaches its client: collected into one document, or as a stream of events."""

from collections.abc import Callable, Sequence
from typing import Protocol

from aiohttp import web

from edge.answer import Answer
from edge.errors import Refusal
from edge.exchange import Exchange
from edge.formats import Format
from edge.sse import DONE, Events, error_event
from edge.stream_writer import ClientStream
from fastrun.v1.generation_pb2 import Delta, Finished, Usage

StreamMaker = Callable[[Callable[[], None]], ClientStream]
"""Makes the stream to the client, given whom to call when it is no longer congested."""


class Reply(Protocol):
    """Takes what is generated and answers the client with it; each generation is one choice."""

    @property
    def is_read_along(self) -> bool:
        """Whether the client reads each delta as it comes."""

    def begin(self, index: int) -> None:
        """Show the client that this choice is being worked on. Idempotent."""

    def on_delta(self, index: int, delta: Delta) -> None:
        """Take a piece of a choice."""

    def on_finished(self, index: int, finished: Finished) -> None:
        """A choice is complete."""

    def restart(self, index: int) -> bool:
        """Forget what a choice has; returns False where the client may have seen it."""

    async def finish(self, usage: Usage) -> web.StreamResponse:
        """All choices are; returns what the handler returns."""

    async def fail(self, refusal: Refusal) -> web.StreamResponse:
        """Tell the client of a failure; returns what the handler returns."""

    def release(self) -> None:
        """Let go of the client, whatever has happened."""


class CollectedReply:
    """One JSON document at the end."""

    is_read_along = False

    def __init__(self, exchange: Exchange, form: Format, choices: int) -> None:
        self._exchange = exchange
        self._form = form
        self._answers = [form.answer() for _ in range(choices)]
        self._reasons = [0] * choices

    def begin(self, index: int) -> None:
        """A plain reply has no early headers."""

    def on_delta(self, index: int, delta: Delta) -> None:
        """Keep a piece."""
        self._exchange.note_delta()
        self._answers[index].add(delta)

    def on_finished(self, index: int, finished: Finished) -> None:
        """Keep the reason."""
        self._reasons[index] = finished.reason

    def restart(self, index: int) -> bool:
        """Forget: nothing of it was sent."""
        self._answers[index] = self._form.answer()
        return True

    async def finish(self, usage: Usage) -> web.StreamResponse:
        """Answer."""
        return self._exchange.json(self._form.document(self._answers, self._reasons, usage))

    async def fail(self, refusal: Refusal) -> web.StreamResponse:
        """Answer with the failure; nothing was sent before, so it has a status."""
        return self._exchange.refuse(refusal)

    def release(self) -> None:
        """Nothing is held."""


class _Choice:
    """One choice of a stream, and what of it waits for a client that reads too slowly."""

    __slots__ = ("ending", "events", "gathered", "has_begun")

    def __init__(self, events: Events) -> None:
        self.events = events
        self.has_begun = False
        self.gathered: Answer | None = None
        self.ending = b""

    def rest(self) -> bytes:
        """Return all of it that can be sent and was not."""
        data = b""
        if self.gathered is not None:
            data, self.gathered = self.events.piece(self.gathered), None
        data, self.ending = data + self.ending, b""
        return self.opened(data) if data else b""

    def opened(self, data: bytes) -> bytes:
        """Put before its first events what opens it."""
        if self.has_begun:
            return data
        self.has_begun = True
        return self.events.opening() + data


class StreamedReply:
    """Events, each sent as soon as it is there; merged while the client reads too slowly."""

    is_read_along = True

    def __init__(
        self,
        exchange: Exchange,
        make_stream: StreamMaker,
        form: Format,
        choices: int,
        *,
        gathered_limit_bytes: int,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            exchange: what is answered.
            make_stream: makes the way to the client.
            form: what the events look like.
            choices: how many there will be.
            gathered_limit_bytes: how much may be held back for a client before it is cut off.
        """
        self._exchange = exchange
        self._stream = make_stream(self._flush)
        self._form = form
        self._choices: Sequence[_Choice] = [_Choice(form.events(i)) for i in range(choices)]
        self._has_begun = False
        self._open = choices
        self._gathered_limit_bytes = gathered_limit_bytes
        self._gathered_bytes = 0

    def begin(self, index: int) -> None:
        """Send status, headers and an event that says nothing."""
        choice = self._choices[index]
        if not choice.has_begun:
            choice.has_begun = True
            self._write(choice.events.sign())

    def on_delta(self, index: int, delta: Delta) -> None:
        """Send a piece, or keep it until the client has read what lies before it."""
        choice = self._choices[index]
        if choice.gathered is not None or self._stream.is_congested:
            self._gather(choice, delta)
            return
        data = choice.events.piece(delta)
        if data:
            self._exchange.note_delta()
            if choice.has_begun:
                self._stream.write(data)
            else:
                self._write(choice.opened(data))

    def on_finished(self, index: int, finished: Finished) -> None:
        """Send its reason; that of the last choice goes with the end of the stream."""
        choice = self._choices[index]
        choice.ending = choice.events.finish(finished.reason)
        self._open -= 1
        if self._open and not self._stream.is_congested:
            self._write(choice.rest())

    def restart(self, index: int) -> bool:  # noqa: ARG002 - no choice differs
        """Nothing that was sent can be taken back."""
        return False

    async def finish(self, usage: Usage) -> web.StreamResponse:
        """Send the last events."""
        return await self._stream.end(self._rest() + self._form.usage(usage) + DONE)

    async def fail(self, refusal: Refusal) -> web.StreamResponse:
        """Answer with its status; once that is sent, the failure is the last event."""
        if not self._has_begun:
            return self._exchange.refuse(refusal)
        return await self._stream.end(self._rest() + error_event(refusal), close=True)

    def release(self) -> None:
        """Let go of the client."""
        self._stream.release()

    def _write(self, data: bytes) -> None:
        self._has_begun = True
        self._stream.write(data)

    def _gather(self, choice: _Choice, delta: Delta) -> None:
        if choice.gathered is None:
            choice.gathered = Answer()
        self._exchange.note_delta()
        choice.gathered.add(delta)
        self._gathered_bytes += delta.ByteSize()
        if self._gathered_bytes > self._gathered_limit_bytes:
            self._stream.cut()

    def _flush(self) -> None:
        data = self._rest()
        if data:
            self._write(data)

    def _rest(self) -> bytes:
        """All that can be sent and was not, of every choice."""
        self._gathered_bytes = 0
        return b"".join(choice.rest() for choice in self._choices)
