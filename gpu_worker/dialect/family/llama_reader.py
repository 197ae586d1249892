"""Reads one call of Llama: a JSON object, bare or after ``<|python_tag|>``, or a built-in's.

What stands after the tag and is no call, such as code, is content, without the tag.
"""

from collections.abc import Callable, Sequence

from gpu_worker.dialect.family.llama_builtin import BuiltinCall
from gpu_worker.dialect.json_call import JsonCall
from gpu_worker.dialect.tools import CallPiece, Tool

TAG = "<|python_tag|>"
BARE = "{"


class LlamaReader:
    """Reads a call and the semicolon behind it. Its state is the method that takes what comes."""

    def __init__(self, opening: str, tools: Sequence[Tool]) -> None:
        """Begin after the tag, or after the bracket of an object.

        Args:
            opening: which of both.
            tools: that may be called.
        """
        self._tools = tools
        self.over = False
        self._no_call: list[str] = []  # text, unless a call begins
        self._pieces: list[CallPiece] = []
        self._call: JsonCall | BuiltinCall
        self._step: Callable[[str, int], int]
        if opening == BARE:
            self._begin_object(exact=True)
        else:
            self._step = self._after_tag

    @property
    def text(self) -> str:
        """What has been read as far as it is part of no call; the tag is never shown."""
        return "".join(self._no_call).replace(TAG, "")

    def feed(self, text: str) -> tuple[list[CallPiece], str]:
        """Take more text; return pieces of the call and, once over, the text that follows."""
        at = 0
        while at < len(text) and not self.over:
            at = self._step(text, at)
        pieces, self._pieces = self._pieces, []
        return pieces, text[at:] if self.over else ""

    def end(self) -> list[CallPiece]:
        """Take the end of the text; JSON that has no end stays as it is."""
        if self._step == self._in_call and isinstance(self._call, BuiltinCall):
            self._call.end()
            return self._call.take_pieces()
        return []

    def _after_tag(self, text: str, at: int) -> int:
        character = text[at]
        if character.isspace():
            self._no_call.append(character)
            return at + 1
        if character == BARE:
            self._begin_object(exact=False)
            return at + 1
        self._call = BuiltinCall(self._tools)
        self._step = self._in_call
        return at

    def _begin_object(self, *, exact: bool) -> None:
        self._no_call.append(BARE)
        self._call = JsonCall({tool.name for tool in self._tools}, exact=exact)
        self._step = self._in_call

    def _in_call(self, text: str, at: int) -> int:
        end = self._call.feed(text, at)
        self._pieces += self._call.take_pieces()
        if self._call.begun:
            self._no_call = []
        else:
            self._no_call.append(text[at:end])
        if self._call.done:
            self._step = self._after_call
        else:
            self.over = self._call.over
        return end

    def _after_call(self, text: str, at: int) -> int:
        """Up to the semicolon before the next call, which is read like the first one."""
        character = text[at]
        if character.isspace():
            return at + 1
        self.over = True
        return at + 1 if character == ";" else at
