"""Token ids to text as they come, at a constant cost for each token."""

import codecs
from collections.abc import Callable


class Detokenizer:
    """Decodes the bytes of tokens; a character that is cut over tokens waits until it is whole."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        """Start with no text.

        Args:
            token_bytes: the bytes that a token id stands for; empty for one that is not shown.
        """
        self._bytes = token_bytes
        self._cut = b""

    def feed(self, token_id: int) -> str:
        """Return the text that this token completes."""
        data = self._cut + self._bytes(token_id)
        text, used = codecs.utf_8_decode(data, "replace")
        self._cut = data[used:]
        return text

    def flush(self) -> str:
        """Return what waits at the end: U+FFFD for a character that never became whole."""
        cut, self._cut = self._cut, b""
        return cut.decode(errors="replace")
