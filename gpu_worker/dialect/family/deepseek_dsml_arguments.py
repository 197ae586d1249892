"""Writes the arguments of a DSML call as JSON while a model writes them one by one."""

import json
from collections.abc import Callable

from gpu_worker.dialect.argument_types import ArgumentType, quoted

# What stands between an argument's name and its value, and tells what the value is.
IS_TEXT, IS_JSON, IS_EITHER = '" string="true">', '" string="false">', '">'
_WRAPPERS = ("arguments", "input")


class DsmlArguments:
    """Writes one object. Texts, objects and arrays are passed on as they come.

    The schema has the last word: what is called a text and cannot be one becomes what it can be,
    and the other way round. An argument that has been given before is left out, for what has been
    written cannot be taken back. Where the only argument is called ``arguments`` or ``input``, is
    an object and is not declared, its properties are the arguments.
    """

    def __init__(self, place: ArgumentType) -> None:
        """Begin before the object.

        Args:
            place: of all arguments.
        """
        self._place = place
        self._names: set[str] = set()
        self._type = place
        self._value: list[str] = []  # what has come of a value that is not passed on yet
        self._add: Callable[[str], str] = self._add_nothing
        self._wrapped: tuple[str, str] | None = None  # name and kind of all arguments

    def begin(self, name: str, kind: str) -> str:
        """Begin an argument; return the JSON that this brings, as all that follow do."""
        if not self._names and name in _WRAPPERS and self._is_undeclared(name):
            self._names.add(name)
            self._wrapped = (name, kind)
            self._add = self._add_wrapped
            return ""
        before = self._unwrapped()
        if name in self._names:
            self._add = self._add_nothing
            return before
        return before + self._begin(name, kind)

    def add(self, text: str) -> str:
        """Take more of the value."""
        return self._add(text)

    def end(self) -> str:
        """Take the end of the value."""
        if self._add == self._add_text:
            return '"'
        if self._add in (self._add_first, self._add_whole):
            return self._type.as_json("".join(self._value))
        return ""

    def close(self) -> str:
        """End the object."""
        if self._wrapped is not None and self._are_all(value := "".join(self._value)):
            return value.strip()
        return self._unwrapped() + ("}" if self._names else "{}")

    def _begin(self, name: str, kind: str) -> str:
        between = ", " if self._names else "{"
        self._names.add(name)
        self._type = self._place.at(name)
        self._value = []
        if kind == IS_JSON:
            self._add = self._add_first
        elif self._type.is_text or (kind == IS_TEXT and self._type.may_be_text):
            self._add = self._add_text
        else:
            self._add = self._add_whole
        return f"{between}{quoted(name)}: " + ('"' if self._add == self._add_text else "")

    def _add_nothing(self, text: str) -> str:
        del text
        return ""

    def _add_text(self, text: str) -> str:
        return quoted(text)[1:-1]

    def _add_json(self, text: str) -> str:
        return text

    def _add_whole(self, text: str) -> str:
        self._value.append(text)
        return ""

    def _add_first(self, text: str) -> str:
        """Find out what is called JSON."""
        self._value.append(text)
        begun = text.lstrip()  # before it there was nothing but whitespace
        if not begun:
            return ""
        if begun[0] == '"' or (begun[0] in "{[" and not self._type.is_text):
            self._add = self._add_json
            return begun
        if self._type.is_text:
            self._add = self._add_text
            return '"' + self._add_text("".join(self._value))
        self._add = self._add_whole
        return ""

    def _add_wrapped(self, text: str) -> str:
        self._value.append(text)
        return ""

    def _is_undeclared(self, name: str) -> bool:
        declared = self._place.names
        return bool(declared) and name not in declared

    def _are_all(self, text: str) -> bool:
        """Tell whether a value is an object of arguments that are declared."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return isinstance(value, dict) and self._place.names.issuperset(value)

    def _unwrapped(self) -> str:
        """Write what might have been all arguments as the one that it is."""
        if self._wrapped is None:
            return ""
        (name, kind), self._wrapped = self._wrapped, None
        value = "".join(self._value)
        self._names.clear()
        return self._begin(name, kind) + self.add(value) + self.end()
