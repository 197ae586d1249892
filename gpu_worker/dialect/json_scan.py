"""Where a JSON value ends, however its text is cut."""

import re

_IN_STRING = re.compile(r'["\\\n]')
_OUTSIDE = re.compile(r'["{}\[\]\n]')
_AFTER_SCALAR = re.compile(r"[\s,}\]]")
_STEPS = {"{": 1, "[": 1, "}": -1, "]": -1, '"': 0, "\n": 0}


class JsonScan:
    """Follows one value from its first character to its last.

    It looks at strings and brackets only: what stands between them is the model's affair.
    """

    __slots__ = ("_depth", "_escaped", "_in_string", "_scalar", "done")

    def __init__(self, first: str) -> None:
        """Begin before the value.

        Args:
            first: its first character, which feed() gets as well.
        """
        self._scalar = first not in '"{['
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.done = False

    def feed(self, text: str, begin: int, *, break_lines: bool = False) -> int:
        """Take text from a place on; return the place after what belongs to the value.

        Args:
            text: what has come.
            begin: where to go on in it.
            break_lines: return before each line break that is not escaped.
        """
        if self._scalar:
            match = _AFTER_SCALAR.search(text, begin)
            self.done = match is not None
            return match.start() if match else len(text)
        at = begin
        while at < len(text) and not self.done:
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            match = (_IN_STRING if self._in_string else _OUTSIDE).search(text, at)
            if match is None:
                return len(text)
            at = match.end()
            if break_lines and match[0] == "\n":
                return at - 1
            self._take(match[0])
        return at

    def _take(self, character: str) -> None:
        if character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = not self._in_string
            self.done = not self._in_string and self._depth == 0
        elif not self._in_string:
            step = _STEPS[character]
            self._depth += step
            self.done = step < 0 and self._depth == 0
