"""What one generation has said, put together from its deltas."""

from collections.abc import Sequence
from typing import Protocol

from fastrun.v1.generation_pb2 import Delta, TokenLogprob, ToolCallDelta


class Piece(Protocol):
    """A part of an answer: one delta, or several put together."""

    @property
    def content(self) -> str:
        """Text for the reader."""

    @property
    def reasoning(self) -> str:
        """What the model thought before it."""

    @property
    def tool_calls(self) -> Sequence[ToolCallDelta]:
        """Pieces of calls, of each index at most one."""

    @property
    def logprobs(self) -> Sequence[TokenLogprob]:
        """One for each token, if they were asked for."""


class WrittenLogprobs(Protocol):
    """Logprobs of one answer, written as they come: as messages they would take ten times that."""

    def add(self, tokens: Sequence[TokenLogprob]) -> None:
        """Take those of one token or more."""

    def json(self) -> bytes:
        """Return all of them."""


class Answer:
    """A piece that grows."""

    def __init__(self, written: WrittenLogprobs | None = None) -> None:
        """Begin with nothing.

        Args:
            written: where logprobs go; None keeps them as they are.
        """
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[ToolCallDelta, list[str]]] = {}
        self.logprobs: list[TokenLogprob] = []
        """See Piece."""
        self.written = written

    @property
    def content(self) -> str:
        """See Piece."""
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        """See Piece."""
        return "".join(self._reasoning)

    @property
    def tool_calls(self) -> list[ToolCallDelta]:
        """See Piece."""
        return [
            ToolCallDelta(index=index, id=first.id, name=first.name, arguments="".join(arguments))
            for index, (first, arguments) in sorted(self._calls.items())
        ]

    def add(self, delta: Delta) -> None:
        """Take a delta."""
        if delta.content:
            self._content.append(delta.content)
        if delta.reasoning:
            self._reasoning.append(delta.reasoning)
        for call in delta.tool_calls:
            self._calls.setdefault(call.index, (call, []))[1].append(call.arguments)
        if delta.logprobs:
            (self.written.add if self.written else self.logprobs.extend)(delta.logprobs)
