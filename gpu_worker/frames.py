"""What requests have to say, gathered until the stream can take it, then sent as one frame.

The step loop never waits for an edge: it appends to a request's pending delta. A slow edge gets
fewer and larger frames, and what waits is bounded by the requests' max_tokens. So do requests whose
client waits for the whole answer: all of them that have something to say say it together, a few
times a second. That a request was accepted is told with its first delta, if that comes at once.
"""

from collections.abc import Callable, Sequence

from fastrun.v1.error_pb2 import ErrorDetail
from fastrun.v1.generation_pb2 import (
    Accepted,
    Delta,
    Failed,
    Finished,
    FinishReason,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from fastrun.v1.worker_pb2 import WorkerFrame

GATHER_S = 0.25
# So long nobody misses it (decision 67): an edge needs it for what a request costs, and for what
# follows if the worker is lost.
ACCEPTED_S = 0.02


class Frames:
    """The pending events of all requests of one stream."""

    def __init__(
        self, wake: Callable[[], None], *, later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        """Begin with nothing pending.

        Args:
            wake: called when something is pending that was not before.
            later: calls something after so many seconds.
        """
        self._wake = wake
        self._later = later
        self._gathering: list[Events] = []
        self._accepted: list[Events] = []
        self._moved: list[Events] = []
        self._ping = False

    def events(self, stream_id: int, *, gathers: bool = False) -> "Events":
        """Return where one request says what happens to it.

        Args:
            stream_id: of the request.
            gathers: deltas after the first one need not be sent at once.
        """
        return Events(stream_id, self._add, self._accept, self._gather if gathers else None)

    def ping(self) -> None:
        """Send a Ping with the next frame."""
        self._ping = True

    def take(self) -> WorkerFrame | None:
        """Return all that is pending as one frame and forget it; None when nothing is."""
        if not self._moved and not self._ping:
            return None
        frame = WorkerFrame()
        if self._ping:
            self._ping = False
            frame.items.add()
        moved, self._moved = self._moved, []
        for events in moved:
            events.move_to(frame)
        return frame

    def _add(self, events: "Events") -> None:
        self._moved.append(events)
        if len(self._moved) == 1:
            self._wake()

    def _accept(self, events: "Events") -> None:
        self._accepted.append(events)
        if len(self._accepted) == 1:
            self._later(ACCEPTED_S, self._accepted_late)

    def _accepted_late(self) -> None:
        accepted, self._accepted = self._accepted, []
        for events in accepted:
            events.accepted_late()

    def _gather(self, events: "Events") -> None:
        self._gathering.append(events)
        if len(self._gathering) == 1:
            self._later(GATHER_S, self._gathered)

    def _gathered(self) -> None:
        gathering, self._gathering = self._gathering, []
        for events in gathering:
            events.gathered()


class Events:
    """What happens to one request, in order: accepted, deltas, then finished or failed."""

    __slots__ = (
        "_accept",
        "_accepted",
        "_add",
        "_cached_tokens",
        "_calls",
        "_content",
        "_end",
        "_gather",
        "_has_told",
        "_is_gathering",
        "_logprobs",
        "_moved",
        "_pending",
        "_reasoning",
        "_stream_id",
        "_token_ids",
        "on_fault",
    )

    def __init__(
        self,
        stream_id: int,
        add: Callable[["Events"], None],
        accept: Callable[["Events"], None],
        gather: Callable[["Events"], None] | None,
    ) -> None:
        self.on_fault: Callable[[Exception], object] = lambda _: None
        """Told why a delta cannot be sent; what was to follow it is forgotten, and how it ends now
        is to be said."""
        self._stream_id = stream_id
        self._add = add
        self._accept = accept
        self._gather = gather
        self._has_told = self._is_gathering = False
        self._pending = False
        self._accepted: Accepted | None = None
        self._clear()
        self._end: Finished | Failed | None = None

    def accepted(self, prompt_tokens: int, *, resumable: bool) -> None:
        """Say that the request holds a slot and has been given to the engine, before all else."""
        self._accepted = Accepted(prompt_tokens=prompt_tokens, resumable=resumable)
        self._accept(self)

    def accepted_late(self) -> None:
        """Say it now, if nothing has come to be said with it."""
        if self._accepted is not None:
            self._changed()

    def delta(
        self,
        content: str,
        token_ids: Sequence[int],
        *,
        cached_tokens: int = 0,
        reasoning: str = "",
        calls: Sequence[ToolCallDelta] = (),
        logprobs: Sequence[TokenLogprob] = (),
    ) -> None:
        """Append to what was generated."""
        self._moved = True
        self._content.append(content)
        self._token_ids += token_ids
        if cached_tokens:
            self._cached_tokens += cached_tokens
        if reasoning:
            self._reasoning.append(reasoning)
        for call in calls:
            if self._calls and self._calls[-1].index == call.index:
                self._calls[-1].arguments += call.arguments
            else:
                self._calls.append(call)
        if logprobs:
            self._logprobs += logprobs
        if self._pending or self._is_gathering:
            self._has_told = True
        elif self._gather is not None and self._has_told:
            self._is_gathering = True
            self._gather(self)
        else:
            self._has_told = self._pending = True
            self._add(self)

    def gathered(self) -> None:
        """Send what was gathered, if the end has not taken it along."""
        self._is_gathering = False
        if self._moved:
            self._changed()

    def finished(self, reason: FinishReason.ValueType, usage: Usage) -> None:
        """End the request; nothing may follow."""
        self._end = Finished(reason=reason, usage=usage)
        self._changed()

    def failed(self, error: ErrorDetail) -> None:
        """End the request with an error; nothing may follow."""
        self._end = Failed(error=error)
        self._changed()

    def move_to(self, frame: WorkerFrame) -> None:
        """Append all that is pending to a frame and forget it."""
        add = frame.items.add
        if self._accepted is not None:
            event = add(stream_id=self._stream_id).event
            event.accepted.CopyFrom(self._accepted)
            self._accepted = None
        if self._moved:
            item = add(stream_id=self._stream_id)
            try:
                self._move_delta_to(item.event.delta)
            except Exception as error:  # noqa: BLE001 - the stream goes on for all others
                frame.items.pop()
                self._give_up(error)
        if self._end is not None:
            event = add(stream_id=self._stream_id).event
            if isinstance(self._end, Finished):
                event.finished.CopyFrom(self._end)
            else:
                event.failed.CopyFrom(self._end)
            self._end = None
        self._pending = False

    def _move_delta_to(self, delta: Delta) -> None:
        # Nearly every one is a text and an id: what is empty is left alone.
        delta.content = "".join(self._content)
        delta.token_ids.extend(self._token_ids)
        if self._cached_tokens:
            delta.cached_tokens = self._cached_tokens
        if self._reasoning:
            delta.reasoning = "".join(self._reasoning)
        if self._calls:
            delta.tool_calls.extend(self._calls)
        if self._logprobs:
            delta.logprobs.extend(self._logprobs)
        self._clear()

    def _give_up(self, error: Exception) -> None:
        """Forget all that is pending, since a part of it cannot be sent."""
        self._end = None
        self._clear()
        self.on_fault(error)

    def _clear(self) -> None:
        self._moved = False
        self._content: list[str] = []
        self._token_ids: list[int] = []
        self._cached_tokens = 0
        self._reasoning: list[str] = []
        self._calls: list[ToolCallDelta] = []
        self._logprobs: list[TokenLogprob] = []

    def _changed(self) -> None:
        if not self._pending:
            self._pending = True
            self._add(self)
