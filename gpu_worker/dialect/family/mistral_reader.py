"""Reads what follows ``[TOOL_CALLS]`` in all forms that Mistral's models write.

Models with tokenizers up to v7 write one JSON list of calls, with or without ids. Later ones write
a name, ``[ARGS]`` and the arguments, and the marker again before the next call; v11 has
``[CALL_ID]`` and an id after the name. Some leave ``[ARGS]`` out. What turns out to be no call is
text, which may have further markers in it. Ids are the model's own affair: calls get other ones.
"""

from collections.abc import Callable, Collection

from gpu_worker.dialect.json_call import JsonCall
from gpu_worker.dialect.json_scan import JsonScan
from gpu_worker.dialect.tools import CallPiece

OPENING, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
LONGEST_NAME = 64  # of a function that nobody has told the model of


class MistralReader:
    """Reads one call, or one list of them. Its state is the method that takes the next text."""

    def __init__(self, names: Collection[str]) -> None:
        """Begin after the marker.

        Args:
            names: of the functions that may be called.
        """
        self._names = names
        self._longest_name = max((LONGEST_NAME, *map(len, names)))
        self.over = False
        self._step: Callable[[str, int], int] = self._before_call
        self._pieces: list[CallPiece] = []
        self._kept: list[str] = []  # text, unless a call begins
        self._held = ""  # as much of a marker as has come
        self._name = ""
        self._in_list = False
        self._call = JsonCall(names)
        self._scan = JsonScan("{")

    @property
    def text(self) -> str:
        """What has been read as far as it is part of no call; once over, it follows instead."""
        return "" if self.over else "".join(self._kept) + self._held

    def feed(self, text: str) -> tuple[list[CallPiece], str]:
        """Take more text; return pieces of calls and, once over, the text that follows.

        Text that was read for a call in vain follows as well: it may have a marker in it.
        """
        at = 0
        while at < len(text) and not self.over:
            at = self._step(text, at)
        pieces, self._pieces = self._pieces, []
        return pieces, "".join((*self._kept, self._held, text[at:])) if self.over else ""

    def end(self) -> list[CallPiece]:
        """Take the end of the text: a name alone is a call without arguments."""
        named = self._step in {self._in_name, self._in_id, self._after_name, self._after_args}
        if not (named and self._name in self._names):
            return []
        self._begin_call()
        return [*self._pieces, CallPiece(arguments="{}", complete=True)]

    def _before_call(self, text: str, at: int) -> int:
        if text[at] in "[{":
            self._step = self._before_object
            return at
        if not text[at].isspace():
            self._step = self._in_name
            return at
        return self._keep(text, at)

    # A list of calls, or one without a list.

    def _before_object(self, text: str, at: int) -> int:
        character = text[at]
        if character == "{":
            if self._call.done:
                self._kept.clear()
            self._call = JsonCall(self._names)
            self._step = self._in_object
        elif character == "[" and not self._in_list:
            self._in_list = True
        elif character == "]" and self._in_list:
            self._kept.clear()
            self.over = True
            return at + 1
        elif not (character.isspace() or (character == "," and self._in_list)):
            return self._fail(at)
        return self._keep(text, at)

    def _in_object(self, text: str, at: int) -> int:
        end = self._call.feed(text, at)
        self._pieces += self._call.take_pieces()
        if self._call.begun:
            self._kept.clear()
        else:
            self._kept.append(text[at:end])
        if self._call.done and self._in_list:
            self._step = self._before_object
        else:
            self.over = self._call.over
        return end

    # A name, markers and arguments.

    def _in_name(self, text: str, at: int) -> int:
        if text[at] in "[{" or text[at].isspace():
            self._step = self._after_name
            return at
        self._name += text[at]
        if len(self._name) > self._longest_name:
            return self._fail(at)
        return self._keep(text, at)

    def _after_name(self, text: str, at: int) -> int:
        if text[at] == "[":
            self._step = self._in_marker
            return at
        if text[at] == "{" and self._name in self._names:
            return self._begin_arguments(at)
        return self._keep(text, at) if text[at].isspace() else self._fail(at)

    def _in_marker(self, text: str, at: int) -> int:
        marker = self._held + text[at]
        if not (CALL_ID.startswith(marker) or ARGS.startswith(marker)):
            return self._fail(at)
        self._held = marker
        if marker in {CALL_ID, ARGS}:
            self._held = ""
            self._step = self._in_id if marker == CALL_ID else self._after_args
        return at + 1

    def _in_id(self, text: str, at: int) -> int:
        return at + 1 if text[at].isalnum() else self._after_name(text, at)

    def _after_args(self, text: str, at: int) -> int:
        if self._name not in self._names:
            return self._fail(at)
        if text[at] == "{":
            return self._begin_arguments(at)
        if text[at].isspace():
            return at + 1
        self._begin_call()
        self._pieces.append(CallPiece(arguments="{}", complete=True))
        return self._fail(at)

    def _begin_arguments(self, at: int) -> int:
        self._begin_call()
        self._step = self._in_arguments
        return at

    def _begin_call(self) -> None:
        self._kept.clear()
        self._pieces.append(CallPiece(name=self._name))

    def _in_arguments(self, text: str, at: int) -> int:
        end = self._scan.feed(text, at)
        self._pieces.append(CallPiece(arguments=text[at:end], complete=self._scan.done))
        self.over = self._scan.done
        return end

    def _keep(self, text: str, at: int) -> int:
        self._kept.append(text[at])
        return at + 1

    def _fail(self, at: int) -> int:
        self.over = True
        return at
