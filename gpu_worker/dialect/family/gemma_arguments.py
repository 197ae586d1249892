"""Reads arguments as Gemma writes them, and writes them as JSON.

``{city:<|"|>Oslo<|"|>,days:3,tags:[<|"|>a<|"|>],opt:{n:1.5}}``: keys are bare, texts stand between
two delimiters and hold anything as it is. They are passed on as they come; what stands without
quotes waits until it is complete, since only then its type is known.

Models also write texts and keys as JSON or Python does, in containers most of all, leave out one of
the delimiters, and forget brackets. What they mean by that is read as far as it is clear.
"""

import re
from collections.abc import Callable

from gpu_worker.dialect.argument_types import ArgumentType
from gpu_worker.dialect.family.gemma_quotes import QuotedText
from gpu_worker.dialect.family.gemma_writer import ArgumentWriter

_QUOTES = frozenset("\"'")
_KEY = re.compile(r"[\w.$-]+")
_IN_KEY = re.compile(r"[\w.$\s\"'-]")
_ENDS_BARE = re.compile(r"[,}\])]")
_NO_TEXT = re.compile(r"[-+.\deE]+|true|false|null|none", re.IGNORECASE)
# Of a call, after a text whose delimiter is missing.
_MAY_BE_END = "}]) \t\n"
_LONGEST_END = 32


class ArgumentsReader:
    """Reads what stands in the outermost brackets, and what is left of the call after them.

    Its state is the method that takes the next characters.
    """

    def __init__(self, arguments: ArgumentType, *, is_python: bool) -> None:
        """Begin after the opening bracket.

        Args:
            arguments: what the schema says of them.
            is_python: the bracket is a parenthesis, and keys may end in ``=``.
        """
        self._writer = ArgumentWriter(arguments)
        self._writer.open("{")
        self._is_python = is_python
        self._step: Callable[[str, int], int] = self._before_key
        self._key: list[str] = []
        self._bare: list[str] = []
        self._ahead: list[str] = []  # the next key, or more of a text without quotes
        self._quoted = QuotedText("", before="")
        self._is_key = False  # the text that is read
        self._tail = ""  # of a text, if its delimiter is missing
        self._braces = 0  # open in a text

    @property
    def in_text(self) -> bool:
        """What comes next belongs to a text."""
        return self._step in (self._in_text, self._in_quotes)

    @property
    def complete(self) -> bool:
        """The outermost bracket has been closed."""
        return self._writer.depth == 0

    def feed(self, text: str, at: int) -> int:
        """Take text from a place on, without delimiters; return the place after it."""
        while at < len(text) and not self.complete:
            at = self._step(text, at)
        return at

    def take(self) -> str:
        """Return the JSON that has been written since the last time."""
        return self._writer.take()

    def delimiter(self) -> None:
        """Take a delimiter."""
        step = self._step
        if step in (self._in_text, self._in_quotes):
            self._end_text()
        elif step == self._before_value:
            self._begin_text()
        elif step == self._in_bare:
            self._end_bare_text()
        elif step == self._after_comma and self._is_blank(self._ahead):
            self._end_bare()
            self._begin_key()
        elif step == self._after_comma:
            self._go_on_with_bare()
            self._end_bare_text()
        elif step == self._before_key or (step == self._in_key and self._is_blank(self._key)):
            self._begin_key()
        # Else one too many.

    def end(self) -> str:
        """Take the end of the call; return the JSON that has not been taken yet."""
        if self._step == self._in_text:
            self._tail = self._tail[: _balanced(self._tail, self._braces)]
        if self.in_text:
            self._end_text()
        elif self._step == self._after_comma and not self._is_blank(self._ahead):
            self._go_on_with_bare()
        if self._step in (self._in_bare, self._after_comma):
            self._end_bare()
        self._writer.close_all()
        return self._writer.take()

    # Keys.

    def _before_key(self, text: str, at: int) -> int:
        character = text[at]
        if character.isspace() or character == ",":
            return at + 1
        if self._closes(character):
            return self._close(character, at)
        self._key = []
        if character in _QUOTES:
            self._is_key = True
            self._quoted = QuotedText(character, before=":=")
            self._step = self._in_quotes
            return at + 1
        self._step = self._in_key
        return at

    def _in_key(self, text: str, at: int) -> int:
        character = text[at]
        if self._ends_key(character):
            return self._after_key(text, at)
        if character == "," or self._closes(character):
            self._step = self._before_key  # what has no value is no key
            return at
        self._key.append(character)
        return at + 1

    def _begin_key(self) -> None:
        self._is_key = True
        self._key = []
        self._tail = ""
        self._step = self._in_text

    def _after_key(self, text: str, at: int) -> int:
        character = text[at]
        if self._ends_key(character):
            self._writer.key("".join(self._key).strip())
            self._step = self._before_value
        elif not character.isspace():
            self._step = self._before_key
            return at
        return at + 1

    def _ends_key(self, character: str) -> bool:
        return character == ":" or (character == "=" and self._is_python)

    # Values.

    def _before_value(self, text: str, at: int) -> int:
        character = text[at]
        if character.isspace() or (character == "," and self._writer.in_list):
            return at + 1
        if character == ",":
            self._step = self._before_key
        elif self._closes(character):
            return self._close(character, at)
        elif character in "{[":
            self._writer.open(character)
            self._step = self._before_key if character == "{" else self._before_value
        elif character in _QUOTES:
            self._begin_text()
            self._quoted = QuotedText(character, before=",}])" if self._is_python else ",}]")
            self._step = self._in_quotes
        else:
            self._bare = []
            self._step = self._in_bare
            return at
        return at + 1

    def _after_value(self, text: str, at: int) -> int:
        character = text[at]
        if self._closes(character):
            return self._close(character, at)
        if character.isspace():
            return at + 1
        self._step = self._before_value if self._writer.in_list else self._before_key
        return at

    def _closes(self, character: str) -> bool:
        if character == ")":
            return self._is_python and self._writer.depth == 1
        return character in "}]" and self._writer.may_close(character)

    def _close(self, character: str, at: int) -> int:
        self._writer.close("}" if character == ")" else character)
        self._step = self._after_value
        return at + 1

    # Texts.

    def _begin_text(self) -> None:
        self._is_key = False
        self._tail, self._braces = "", 0
        self._writer.begin_text()
        self._step = self._in_text

    def _in_text(self, text: str, at: int) -> int:
        run = self._tail + text[at:]
        clear = run[: max(len(run.rstrip(_MAY_BE_END)), len(run) - _LONGEST_END)]
        self._tail = run[len(clear) :]
        self._braces += clear.count("{") - clear.count("}")
        self._take(clear)
        return len(text)

    def _in_quotes(self, text: str, at: int) -> int:
        meant, at = self._quoted.feed(text, at)
        self._take(meant)
        if self._quoted.closed:
            self._end_text()
        return at

    def _end_text(self) -> None:
        if self._step == self._in_quotes:
            self._take(self._quoted.end())
        self._take(self._tail)
        self._tail = ""
        if self._is_key:
            self._step = self._after_key
        else:
            self._writer.end_text()
            self._step = self._after_value

    def _take(self, text: str) -> None:
        if self._is_key:
            self._key.append(text)
        else:
            self._writer.text(text)

    # Values without quotes.

    def _in_bare(self, text: str, at: int) -> int:
        end = _ENDS_BARE.search(text, at)
        if end is None:
            self._bare.append(text[at:])
            return len(text)
        self._bare.append(text[at : end.start()])
        at = end.start()
        if self._closes(text[at]):
            self._end_bare()
        elif text[at] != ",":
            self._bare.append(text[at])
            at += 1
        elif self._writer.in_list or not self._writer.next_type.may_be_text:
            self._end_bare()
        else:
            self._ahead = []
            self._step = self._after_comma
            at += 1
        return at

    def _after_comma(self, text: str, at: int) -> int:
        """Find out whether a comma is part of a text without quotes, or a key follows."""
        character = text[at]
        if self._ends_key(character) and self._is_next_key():
            self._end_bare()
            self._key = [self._next_key]
            self._step = self._after_key
        elif self._closes(character) and self._is_blank(self._ahead):
            self._end_bare()
        elif _IN_KEY.match(character):
            self._ahead.append(character)
            return at + 1
        else:
            self._go_on_with_bare()
        return at

    def _is_next_key(self) -> bool:
        """Tell whether a key is one that is declared, or one that nothing speaks against."""
        name, names = self._next_key, self._writer.names
        is_clear = not names or _NO_TEXT.fullmatch("".join(self._bare).strip())
        return name in names or (bool(is_clear) and _KEY.fullmatch(name) is not None)

    @property
    def _next_key(self) -> str:
        return "".join(self._ahead).strip(" \t\n\"'")

    def _go_on_with_bare(self) -> None:
        self._bare += [",", *self._ahead]
        self._step = self._in_bare

    def _end_bare(self) -> None:
        self._writer.bare("".join(self._bare).strip())
        self._step = self._after_value

    def _end_bare_text(self) -> None:
        self._begin_text()
        self._take("".join(self._bare))
        self._end_text()

    @staticmethod
    def _is_blank(parts: list[str]) -> bool:
        return not any(part.strip() for part in parts)


def _balanced(text: str, braces: int) -> int:
    """Return how much of a text closes only braces that are open in it."""
    for place, character in enumerate(text):
        braces -= character == "}"
        if braces < 0:
            return place
    return len(text)
