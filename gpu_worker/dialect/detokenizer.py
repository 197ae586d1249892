"""Token ids to text as they come, at a constant cost for each token."""

import codecs
from collections.abc import Callable, Iterable


class Detokenizer:
    """Decodes the bytes of tokens; a character that is cut over tokens waits until it is whole.

    What has been emitted depends on the tokens alone, not on how they were cut into calls.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        """Start with no text.

        Args:
            token_bytes: the bytes that a token id stands for; empty for one that is not shown.
        """
        self._bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Iterable[int]) -> str:
        """Return the text that these tokens complete."""
        return self._decoder.decode(b"".join(map(self._bytes, token_ids)))

    def flush(self) -> str:
        """Return what waits at the end: U+FFFD for a character that never became whole."""
        return self._decoder.decode(b"", final=True)
