"""Reads answers as their families write them: whole, cut anywhere, and taken up after a death."""

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gpu_worker.dialect.answer import Answer
from gpu_worker.dialect.profile import Profile
from gpu_worker.dialect.thinking import Thinking
from gpu_worker.dialect.tools import Tool


class Told(NamedTuple):
    """What a client has been told; calls as name, argument text and whether that is complete."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str, bool], ...] = ()

    def add(self, shown) -> "Told":
        """Return this and what some tokens brought."""
        calls = [*self.calls]
        for piece in shown.calls:
            if piece.name:
                calls.append((piece.name, "", False))
            name, arguments, complete = calls[-1]
            calls[-1] = (name, arguments + piece.arguments, complete or piece.complete)
        return Told(self.content + shown.content, self.reasoning + shown.reasoning, tuple(calls))

    def values(self) -> tuple[str, str, list[tuple[str, Any]]]:
        """Return content, reasoning and calls with their arguments as values."""
        calls = [(name, json.loads(arguments)) for name, arguments, _ in self.calls]
        return self.content, self.reasoning, calls


class Transcripts:
    """Answers of one model; its markers are single tokens, every other byte is one."""

    def __init__(self, profile: Profile, tools: Sequence[Tool] = ()) -> None:
        self._profile = profile
        self._tools = tools
        self._markers = sorted(profile.markers, key=len, reverse=True)

    def token_ids(self, text: str, *, markers_are_tokens: bool = True) -> list[int]:
        """Return a text's tokens."""
        if not markers_are_tokens:
            return list(text.encode())
        ids: list[int] = []
        while text:
            marker = next((each for each in self._markers if text.startswith(each)), "")
            ids += [256 + self._markers.index(marker)] if marker else text[0].encode()
            text = text[len(marker) or 1 :]
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token stands for."""
        return self._markers[token_id - 256].encode() if token_id > 255 else bytes([token_id])

    def answer(
        self,
        *,
        thinking: Thinking = Thinking.MAYBE,
        tools: Sequence[Tool] | None = None,
        most_calls: int | None = None,
        stops: Sequence[str] = (),
    ) -> Answer:
        """Return a new answer, with the tools of all unless others are given."""
        parser = self._profile.parser(
            thinking=thinking,
            tools=self._tools if tools is None else tools,
            most_calls=most_calls,
            stops=stops,
        )
        return Answer(self.token_bytes, parser)

    def read(
        self, text: str, *, cut: bool = False, markers_are_tokens: bool = True, **options: Any
    ) -> Told:
        """Return what a whole answer tells; cut: max_tokens ended it."""
        ids = self.token_ids(text, markers_are_tokens=markers_are_tokens)
        answer = self.answer(**options)
        told = Told().add(answer.feed(ids))
        return told if answer.ended else told.add(answer.flush(cut=cut))

    def check(
        self,
        text: str,
        *,
        cuts: Iterable[int] = (),
        died_at: int = 0,
        cut: bool = False,
        markers_are_tokens: bool = True,
        **options: Any,
    ) -> Told:
        """Return what a whole answer tells, and see that it is the same however it comes.

        Token by token, in the steps that ``cuts`` make of it, and taken up by another worker after
        ``died_at`` tokens. What has been told once is never taken back.
        """
        ids = self.token_ids(text, markers_are_tokens=markers_are_tokens)
        one_by_one, told = self.answer(**options), Told()
        states = [told]
        for token_id in ids:
            if not one_by_one.ended:
                told = told.add(one_by_one.feed([token_id]))
            states.append(told)
        for before, after in itertools.pairwise(states):
            assert after.content.startswith(before.content)
            assert after.reasoning.startswith(before.reasoning)
        whole = told if one_by_one.ended else told.add(one_by_one.flush(cut=cut))
        assert self._in_steps(ids, states, cuts, cut=cut, **options) == whole
        assert self._resumed(ids, states, died_at % (len(ids) + 1), cut=cut, **options) == whole
        return whole

    def _in_steps(
        self, ids: list[int], states: list[Told], cuts: Iterable[int], *, cut: bool, **options: Any
    ) -> Told:
        answer, told = self.answer(**options), Told()
        places = sorted({0, len(ids), *(place % (len(ids) + 1) for place in cuts)})
        for begin, end in itertools.pairwise(places):
            if answer.ended:
                return told
            told = told.add(answer.feed(ids[begin:end]))
            assert told == states[end]
        return told if answer.ended else told.add(answer.flush(cut=cut))

    def _resumed(
        self, ids: list[int], states: list[Told], at: int, *, cut: bool, **options: Any
    ) -> Told:
        answer, told = self.answer(**options), states[at]
        answer.feed(ids[:at])  # what that brings has been told already
        if answer.ended:
            return told
        told = told.add(answer.feed(ids[at:]))
        return told if answer.ended else told.add(answer.flush(cut=cut))
