r"""Patterns of JSON Schema (ECMA-262) in the dialect of Rust's regular expressions.

The same text means different things: in Rust ``[[:alpha:]]`` and ``[a&&b]`` are no plain classes,
``\z`` is an anchor and ``.`` a carriage return. And a validator may be written in Python, whose
``\d`` and ``\s`` know Unicode. What is written here lies within all of these meanings: a class
escape stands for what is in it by all accounts, and its negation for what is in it by none.
"""

import re
import sys
from typing import Final

from gpu_worker.engine.grammar import GrammarError

# Ranges within a class: what is in it by all accounts, and by any.
_NARROW = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t-\r\x20"}
_WIDE = {
    "d": r"\p{Nd}",
    "w": r"\p{L}\p{M}\p{N}\p{Pc}",
    "s": r"\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff",
}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
# What stands for itself in both dialects, and what has to be said otherwise.
_SYNTAX = {".": r"[^\n\r\u2028\u2029]", **{each: each for each in ")|^$"}}
_ANY: Final = r"\x00-\u{10ffff}"
_QUANTIFIER = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??")
_ONLY_IN_PYTHON = re.compile(r"\{,[0-9]*\}")
_GROUP = re.compile(r"\((?:\?(?:P?<[A-Za-z_$][\w$]*>|:|<?[=!]))?")
_NAMED = re.compile(r"\(\?P?<[A-Za-z_$]")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}")
_LOW_HALF = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")
_PROPERTY = re.compile(r"[pP]\{[\w=]{1,80}\}")
_KEPT = frozenset("bBk123456789")
_HALVES = range(0xD800, 0xE000)
_HIGH_HALVES = range(0xD800, 0xDC00)


def rust_pattern(pattern: str) -> str:
    """Write a pattern anew.

    Lookarounds, backreferences and word boundaries are kept: whoever compiles it refuses them.

    Raises:
        GrammarError: it is not written in ECMA-262's dialect.
    """
    return _Reader(pattern).read()


class _Reader:
    """Goes through a pattern once."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def read(self) -> str:
        written = []
        while self._at < len(self._pattern):
            written.append(self._piece())
        return "".join(written)

    def _piece(self) -> str:
        if found := _QUANTIFIER.match(self._pattern, self._at):
            return self._take(found)
        if found := _GROUP.match(self._pattern, self._at):
            head = self._take(found)
            return "(?:" if _NAMED.match(head) else head  # names are of no use, and may repeat
        if _ONLY_IN_PYTHON.match(self._pattern, self._at):
            raise GrammarError("a pattern of the JSON Schema has '{,': write '{0,' instead")
        character = self._next()
        self._at += 1
        if character in "\\[":
            return self._escape() if character == "\\" else self._class()
        return _SYNTAX.get(character) or _literal(character)

    def _escape(self) -> str:
        """Write what follows a backslash outside of classes."""
        name = self._next()
        if name in _KEPT:
            self._at += 1
            return f"\\{name}"
        written, is_class = self._escaped(negated=False)
        return f"[{written}]" if is_class else written

    def _class(self) -> str:
        negated = self._next() == "^"
        self._at += negated
        members = []
        while self._next() != "]":
            if self._at >= len(self._pattern):
                raise GrammarError("a pattern of the JSON Schema has a class that is not closed")
            members.append(self._member(negated=negated))
        self._at += 1
        if not members:
            return f"[{_ANY}]" if negated else f"[^{_ANY}]"
        return f"[{'^' if negated else ''}{''.join(members)}]"

    def _member(self, *, negated: bool) -> str:
        """Write a character, a range or an escape within a class."""
        first, is_class = self._atom(negated=negated)
        follows = self._pattern[self._at : self._at + 2]
        if is_class or not follows.startswith("-") or follows in ("-", "-]"):
            return first
        self._at += 1
        last, is_class = self._atom(negated=negated)
        return f"{first}{_literal('-')}{last}" if is_class else f"{first}-{last}"

    def _atom(self, *, negated: bool) -> tuple[str, bool]:
        character = self._next()
        self._at += 1
        if character != "\\":
            return _literal(character), False
        if self._next() == "b":  # elsewhere an assertion
            self._at += 1
            return _literal("\b"), False
        return self._escaped(negated=negated)

    def _escaped(self, *, negated: bool) -> tuple[str, bool]:
        r"""Write what follows a backslash as it can stand in a class.

        Returns:
            The text, and whether it is a class of its own, such as ``\d``.
        """
        if found := _HEX.match(self._pattern, self._at):
            return _literal(self._character(found)), False
        if found := _PROPERTY.match(self._pattern, self._at):
            return f"\\{self._take(found)}", True
        name = self._next()
        self._at += 1
        if name.lower() in _NARROW:
            return self._named_class(name, negated=negated), True
        if name in _CONTROLS and not (name == "0" and self._next().isdecimal()):
            name = _CONTROLS[name]
        elif name == "c" and self._next().isascii() and self._next().isalpha():
            name = chr(ord(self._next()) % 32)
            self._at += 1
        elif not name or name.isalnum():
            raise GrammarError(
                f"a pattern of the JSON Schema has the escape '\\{name}', which ECMA-262 lacks"
            )
        return _literal(name), False

    def _named_class(self, name: str, *, negated: bool) -> str:
        r"""Write what ``\d`` and the like stand for; ``\D`` is what is not in a class."""
        is_complement = name.isupper()
        members = (_WIDE if negated != is_complement else _NARROW)[name.lower()]
        return f"[^{members}]" if is_complement else members

    def _next(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self, found: re.Match[str]) -> str:
        self._at = found.end()
        return found[0]

    def _character(self, found: re.Match[str]) -> str:
        """Return the character of a code, which in UTF-16 may be written in two halves."""
        self._take(found)
        code = int(found[1] or found[2] or found[3], 16)
        if code in _HIGH_HALVES and (low := _LOW_HALF.match(self._pattern, self._at)):
            self._take(low)
            code = 0x10000 + ((code - 0xD800) << 10) + (int(low[1], 16) - 0xDC00)
        if code in _HALVES or code > sys.maxunicode:
            raise GrammarError("a pattern of the JSON Schema has the code of no character")
        return chr(code)


def _literal(character: str) -> str:
    """Write a character that stands for itself, in a class or out of it."""
    return character if character.isalnum() else f"\\u{{{ord(character):x}}}"
