"""Writes the arguments of a call as JSON while a model writes them one by one, without quotes."""

from gpu_worker.dialect.argument_types import ArgumentType, quoted

_HEAD = 64  # characters of a value, in which it shows whether it is a text


class ArgumentsWriter:
    """Writes one object. What is surely a text is passed on as it comes, all else at its end.

    An argument that has been given before is left out: what has been written cannot be taken back.
    """

    def __init__(self, arguments: ArgumentType) -> None:
        """Begin before the object.

        Args:
            arguments: the place of all of them.
        """
        self._arguments = arguments
        self._names: set[str] = set()
        self._type = arguments
        self._left_out = False
        self._streams = False
        self._value: list[str] = []  # what has come of a value that is not passed on yet
        self._head = ""

    def begin(self, name: str) -> str:
        """Begin an argument; return the JSON that this brings, as all that follows do."""
        self._left_out = name in self._names
        if self._left_out:
            return ""
        between = ", " if self._names else "{"
        self._names.add(name)
        self._type = self._arguments.at(name)
        self._streams = self._type.is_surely_text("")
        self._value, self._head = [], ""
        return f"{between}{quoted(name)}: " + ('"' if self._streams else "")

    def add(self, text: str) -> str:
        """Take more of the value."""
        if self._left_out:
            return ""
        if self._streams:
            return _inner(text)
        self._value.append(text)
        if len(self._head) >= _HEAD:
            return ""
        self._head = (self._head + text)[:_HEAD]
        self._streams = self._type.is_surely_text(self._head)
        return '"' + _inner("".join(self._value)) if self._streams else ""

    def end(self) -> str:
        """Take the end of the value."""
        if self._left_out:
            return ""
        return '"' if self._streams else self._type.as_json("".join(self._value))

    def close(self) -> str:
        """End the object."""
        return "}" if self._names else "{}"


def _inner(text: str) -> str:
    return quoted(text)[1:-1]
