"""Whether a regular expression is well-formed in the dialect of JSON Schema (ECMA-262).

Only what no engine could take is found: unbalanced groups and classes, a quantifier with nothing
before it, a range that runs backwards. It reads each character once, so no pattern is slow.
"""

import re

PATTERN_LENGTH = 4096
GROUP_DEPTH = 100

_QUANTIFIER = re.compile(r"\{([0-9]{1,9})(?:(,)([0-9]{0,9}))?\}")
_GROUP_HEADS = re.compile(r"\?(?::|=|!|<=|<!|P?<[A-Za-z_$][\w$]*>)")


def syntax_error(pattern: str) -> str | None:
    """Return what is wrong with a pattern; None when nothing is."""
    if len(pattern) > PATTERN_LENGTH:
        return f"it is longer than {PATTERN_LENGTH} characters"
    return _Reader(pattern).problem()


class _Reader:
    """Goes through a pattern once."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._can_repeat = False
        """Whether what was just read may have a quantifier."""

    def problem(self) -> str | None:
        while self._at < len(self._pattern):
            problem = self._step()
            if problem:
                return problem
        return "a group is not closed" if self._depth else None

    def _step(self) -> str | None:
        character = self._pattern[self._at]
        if character == "\\":
            return self._escape()
        if character == "[":
            return self._class()
        if character == "(":
            return self._open()
        if character in "*+?" or (character == "{" and self._counts()):
            return self._quantifier()
        self._at += 1
        if character == ")":
            self._depth -= 1
            self._can_repeat = True
            return "a group is closed that was not opened" if self._depth < 0 else None
        self._can_repeat = character not in "|^"
        return None

    def _escape(self) -> str | None:
        self._at += 2
        self._can_repeat = True
        return "it ends in a backslash" if self._at > len(self._pattern) else None

    def _open(self) -> str | None:
        self._at += 1
        self._depth += 1
        self._can_repeat = False
        if self._depth > GROUP_DEPTH:
            return f"groups are nested deeper than {GROUP_DEPTH} levels"
        if not self._pattern.startswith("?", self._at):
            return None
        head = _GROUP_HEADS.match(self._pattern, self._at)
        if head is None:
            return "an unknown kind of group begins with (?"
        self._at = head.end()
        return None

    def _counts(self) -> bool:
        """Whether a brace begins a quantifier; else it stands for itself."""
        return _QUANTIFIER.match(self._pattern, self._at) is not None

    def _quantifier(self) -> str | None:
        if not self._can_repeat:
            return "a quantifier has nothing to repeat"
        found = _QUANTIFIER.match(self._pattern, self._at)
        if found is None:
            self._at += 1
        else:
            self._at = found.end()
            if found[3] and int(found[1]) > int(found[3]):
                return "a quantifier runs backwards"
        if self._pattern.startswith("?", self._at):  # as few as possible
            self._at += 1
        self._can_repeat = False
        return None

    def _class(self) -> str | None:
        end = self._at + 1
        if self._pattern.startswith("^", end):
            end += 1
        last: str | None = None  # what may begin a range
        while end < len(self._pattern):
            character = self._pattern[end]
            if character == "]":
                self._at = end + 1
                self._can_repeat = True
                return None
            width = 2 if character == "\\" else 1
            follows = self._pattern[end + 1 : end + 2]
            if character == "-" and last is not None and follows not in ("", "]", "\\"):
                if last > follows:
                    return "a range runs backwards"
                last, width = None, 2
            else:
                last = character if width == 1 else None
            end += width
        return "a class is not closed"
