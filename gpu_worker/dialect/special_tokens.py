"""Keeps special tokens in people's text apart from those that a chat template writes.

Before a template sees a text, every special token in it is broken by a mark, a text that nobody
wrote. After rendering, what is still whole was written by the template; the marks are taken out
again and the text around them is tokenized as text. A text without special tokens is not touched.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

_NONCHARACTER = "\ufdd0"  # Unicode never gives it a meaning


class SpecialTokens:
    """The special tokens of one vocabulary, and how to find them in text."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        """Prepare the search.

        Args:
            ids: text and id of each special token. A single character cannot be broken and is
                left out.
        """
        self._ids = {text: number for text, number in ids.items() if len(text) > 1}
        self._sorted = sorted(self._ids)
        self._lengths = sorted({len(text) for text in self._ids}, reverse=True)
        first = "".join(sorted({text[0] for text in self._ids}))
        self._first = re.compile(f"[{re.escape(first)}]") if first else None

    def broken(self, text: str, mark: str) -> str:
        """Return the text with the mark inside every special token, and after one that may begin.

        The text can end in the start of a special token, which must not meet its rest.
        """
        parts: list[str] = []
        done = 0
        for begin, _ in self._find(text, overlapping=True):
            parts += (text[done : begin + 1], mark)
            done = begin + 1
        parts.append(text[done:])
        if self._ends_in_a_start(text):
            parts.append(mark)
        return "".join(parts)

    def split(self, text: str) -> Iterator[str | int]:
        """Yield the ids of the special tokens and the texts between them, in order."""
        done = 0
        for begin, end in self._find(text, overlapping=False):
            if begin > done:
                yield text[done:begin]
            yield self._ids[text[begin:end]]
            done = end
        if done < len(text):
            yield text[done:]

    def _find(self, text: str, *, overlapping: bool) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each special token; at one place the longest."""
        if self._first is None:
            return
        done = 0
        for match in self._first.finditer(text):
            begin = match.start()
            if begin < done:
                continue
            for length in self._lengths:
                if text[begin : begin + length] in self._ids:
                    yield begin, begin + length
                    done = begin + (1 if overlapping else length)
                    break

    def _ends_in_a_start(self, text: str) -> bool:
        if self._first is None:
            return False
        tail = text[1 - self._lengths[0] :]
        return any(self._is_start(tail[match.start() :]) for match in self._first.finditer(tail))

    def _is_start(self, text: str) -> bool:
        place = bisect_left(self._sorted, text)
        return place < len(self._sorted) and self._sorted[place].startswith(text)


def unused_mark(texts: Iterable[str]) -> str:
    """Return a mark that stands in none of the texts."""
    runs: Sequence[str] = re.findall(f"{_NONCHARACTER}+", "\0".join(texts))
    return _NONCHARACTER * (1 + max(map(len, runs), default=0))
