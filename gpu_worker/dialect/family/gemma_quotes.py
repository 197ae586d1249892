"""Reads a text in quotes as JSON or Python writes it, however it is cut."""

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_LITERAL = frozenset("\\/\"'")
_HEX = frozenset("0123456789abcdefABCDEF")
_UNIT = "\\u"  # begins the escape of a UTF-16 unit
_LONGEST = 6  # characters of that
_LOST = "\ufffd"  # for half a character


class QuotedText:
    """What follows an opening quote, up to the one that closes it.

    A quote closes the text only where what may follow a text follows it: models write ``'it's'``.
    """

    def __init__(self, quote: str, *, before: str) -> None:
        """Begin after the opening quote.

        Args:
            quote: that it was.
            before: the characters that may follow the closing one, after whitespace.
        """
        self.closed = False
        self._quote = quote
        self._before = before
        self._closing: list[str] = []  # a quote, and the whitespace after it
        self._escape = ""  # as much of one as has come
        self._high = 0  # half a character, whose other half is the next escape

    def feed(self, text: str, at: int) -> tuple[str, int]:
        """Take text from a place on; return what it means, and the place after it."""
        meant: list[str] = []
        while at < len(text) and not self.closed:
            character = text[at]
            if self._closing:
                if character in self._before:
                    meant.append(self.end())
                    break
                if not character.isspace():
                    meant.append(self._whole("".join(self._closing)))
                    self._closing = []
                    continue
                self._closing.append(character)
            elif self._escape.startswith(_UNIT) and character not in _HEX:
                meant.append(self._whole(self._escape))
                self._escape = ""
                continue
            elif self._escape:
                self._escape += character
                meant.append(self._escaped())
            elif character == self._quote:
                self._closing = [character]
            elif character == "\\":
                self._escape = character
            else:
                meant.append(self._whole(character))
            at += 1
        return "".join(meant), at

    def end(self) -> str:
        """Close it where no quote does; return what is left."""
        self.closed = True
        return self._whole(self._escape)

    def _escaped(self) -> str:
        """Return what an escape means, once it is complete."""
        escape = self._escape
        if escape.startswith(_UNIT) and len(escape) < _LONGEST:
            return ""
        self._escape = ""
        if escape.startswith(_UNIT):
            return self._unit(int(f"0x{escape[2:]}", 0))
        kept = escape[1] if escape[1] in _LITERAL else escape
        return self._whole(_ESCAPES.get(escape[1], kept))

    def _unit(self, unit: int) -> str:
        """Return the character of a UTF-16 unit; the first half of one waits for the other."""
        if 0xDC00 <= unit < 0xE000 and self._high:
            high, self._high = self._high, 0
            return chr(0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00))
        if 0xD800 <= unit < 0xDC00:
            lost = self._whole("")
            self._high = unit
            return lost
        return self._whole(_LOST if 0xDC00 <= unit < 0xE000 else chr(unit))

    def _whole(self, text: str) -> str:
        """Return a text, and before it what has become of half a character."""
        lost, self._high = _LOST if self._high else "", 0
        return lost + text
