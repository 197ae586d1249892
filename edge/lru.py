"""A dict of bounded size."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class Lru(Generic[KeyT, ValueT]):
    """Forgets what was used longest ago when it is full."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: OrderedDict[KeyT, ValueT] = OrderedDict()

    def get(self, key: KeyT) -> ValueT | None:
        """Return a value and count it as used."""
        value = self._items.get(key)
        if value is not None:
            self._items.move_to_end(key)
        return value

    def peek(self, key: KeyT) -> ValueT | None:
        """Return a value without counting it as used."""
        return self._items.get(key)

    def put(self, key: KeyT, value: ValueT) -> tuple[KeyT, ValueT] | None:
        """Keep a value as the most recently used; returns what had to be forgotten for it."""
        self._items[key] = value
        self._items.move_to_end(key)
        return self._items.popitem(last=False) if len(self._items) > self._size else None

    def drop(self, key: KeyT) -> ValueT | None:
        """Forget a value; returns it if it was there."""
        return self._items.pop(key, None)

    def clear(self) -> None:
        """Forget all."""
        self._items.clear()

    def values(self) -> Iterator[ValueT]:
        """All values, the least recently used first."""
        return iter(self._items.values())

    def __len__(self) -> int:
        return len(self._items)
