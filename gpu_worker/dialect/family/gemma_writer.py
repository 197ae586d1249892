"""Writes arguments as JSON while they are read, typed by the tool's schema."""

import msgspec

from gpu_worker.dialect.argument_types import ArgumentType, quoted

CLOSERS = {"{": "}", "[": "]"}
ANYTHING = ArgumentType({}, {})


class Place(msgspec.Struct):
    """An object or a list that is open."""

    bracket: str
    type: ArgumentType
    child: ArgumentType  # what the next value is
    filled: bool = False  # something stands in it
    awaits: bool = False  # a key stands there, and no value yet
    is_text: bool = False  # it is written into a text, as the schema has a text here


class ArgumentWriter:
    """Takes values in order; what has been written is JSON as far as it goes.

    Whatever it is told, its end is that of valid JSON: a key without a value gets one, and what is
    closed closes all that is open within.
    """

    def __init__(self, arguments: ArgumentType) -> None:
        """Begin before the first value, which is an object.

        Args:
            arguments: what the schema says of it.
        """
        self._written: list[str] = []
        self._open: list[Place] = []
        self._closers = dict.fromkeys(CLOSERS.values(), 0)  # how many of each are still to come
        self._first = arguments
        self._in_text = False  # what is written stands in a text
        self._held: list[str] | None = None  # a text that is to become something else

    @property
    def depth(self) -> int:
        """How many objects and lists are open."""
        return len(self._open)

    @property
    def names(self) -> frozenset[str]:
        """Properties that are declared for the innermost object."""
        return self._open[-1].type.names

    @property
    def in_list(self) -> bool:
        """Whether the innermost that is open is a list."""
        return self._open[-1].bracket == "["

    @property
    def next_type(self) -> ArgumentType:
        """What the schema says of the next value."""
        return self._open[-1].child if self._open else self._first

    def may_close(self, closer: str) -> bool:
        """Tell whether something is open that a bracket closes."""
        return self._closers[closer] > 0

    def take(self) -> str:
        """Return what has been written since the last time."""
        written, self._written = "".join(self._written), []
        return written

    def open(self, bracket: str) -> None:
        """Begin an object or a list."""
        kind = self.next_type
        self._begin_value()
        is_text = kind.is_surely_text(bracket)
        if is_text:
            self._put('"')
            self._in_text = True
            kind = ANYTHING
        child = kind.element() if bracket == "[" else ANYTHING
        self._put(bracket)
        self._open.append(Place(bracket, kind, child, is_text=is_text))
        self._closers[CLOSERS[bracket]] += 1

    def close(self, closer: str) -> None:
        """End the innermost that a bracket closes, and all within; nothing if there is none."""
        if not self.may_close(closer):
            return
        while self._close_one() != closer:
            pass

    def close_all(self) -> None:
        """End all."""
        while self._open:
            self._close_one()

    def key(self, name: str) -> None:
        """Name the next value."""
        self._fill()
        place = self._open[-1]
        self._separate(place)
        self._put(f"{quoted(name)}: ")
        place.child = place.type.at(name)
        place.awaits = True

    def bare(self, text: str) -> None:
        """Write a value that stands without quotes; the schema decides what it is."""
        kind = self.next_type
        self._begin_value()
        self._put(kind.as_json(text) if text or kind.may_be_text else "null")

    def begin_text(self) -> None:
        """Begin a value that stands in quotes; it is written as it comes if it may be a text."""
        self._held = None if self.next_type.may_be_text else []
        if self._held is None:
            self._begin_value()
            self._put('"')

    def text(self, text: str) -> None:
        """Write more of it."""
        if self._held is None:
            self._put(quoted(text)[1:-1])
        else:
            self._held.append(text)

    def end_text(self) -> None:
        """End it."""
        if self._held is None:
            self._put('"')
        else:
            self.bare("".join(self._held))
            self._held = None

    def _begin_value(self) -> None:
        if not self._open:
            return
        place = self._open[-1]
        if place.bracket == "[":
            self._separate(place)
        place.awaits = False

    def _separate(self, place: Place) -> None:
        if place.filled:
            self._put(", ")
        place.filled = True

    def _fill(self) -> None:
        if self._open[-1].awaits:
            self.bare("")

    def _close_one(self) -> str:
        self._fill()
        place = self._open.pop()
        closer = CLOSERS[place.bracket]
        self._closers[closer] -= 1
        self._put(closer)
        if place.is_text:
            self._in_text = False
            self._put('"')
        return closer

    def _put(self, text: str) -> None:
        self._written.append(quoted(text)[1:-1] if self._in_text else text)
