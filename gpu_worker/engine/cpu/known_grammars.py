"""Remembers the last grammars: how to compile them again, or why not to."""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

from gpu_worker.engine.grammar import Grammar

_Compiled = TypeVar("_Compiled")


@dataclass(frozen=True)
class Known:
    """What was found out about a grammar."""

    text: str  # in the library's language
    size: int  # bytes that it holds when it is compiled
    is_slow: bool  # to compile
    refusal: str | None = None  # why no generation can be held to it


class KnownGrammars(Generic[_Compiled]):
    """The last grammars, and of some of them one compiled form that nobody used yet.

    A compiled form is handed out once: it grows with use. Can be called from several threads.
    """

    def __init__(self, *, count: int, ready_bytes: int) -> None:
        """Set the limits.

        Args:
            count: how many grammars are remembered.
            ready_bytes: how much memory the compiled forms may hold together.
        """
        self._count = count
        self._ready_bytes = ready_bytes
        self._known: OrderedDict[Grammar, Known] = OrderedDict()
        self._ready: OrderedDict[Grammar, tuple[_Compiled, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, grammar: Grammar) -> Known | None:
        """Return what is known of a grammar, and keep that longer than the others."""
        with self._lock:
            known = self._known.get(grammar)
            if known is not None:
                self._known.move_to_end(grammar)
            return known

    def add(self, grammar: Grammar, known: Known, compiled: _Compiled | None) -> None:
        """Remember a grammar, and forget the one that was not asked for the longest."""
        with self._lock:
            self._known[grammar] = known
            if len(self._known) > self._count:
                forgotten, _ = self._known.popitem(last=False)
                self._ready.pop(forgotten, None)
            if compiled is not None:
                self._ready[grammar] = compiled, known.size
            while sum(size for _, size in self._ready.values()) > self._ready_bytes:
                self._ready.popitem(last=False)

    def take(self, grammar: Grammar) -> _Compiled | None:
        """Hand out a compiled form for good, if there is one."""
        with self._lock:
            compiled, _ = self._ready.pop(grammar, (None, 0))
            return compiled
