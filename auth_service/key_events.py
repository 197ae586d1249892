"""What changes about keys and accounts, in order and without gaps, and how far a process has read.

Pure: auth_service.key_feed reads Postgres.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from auth_service.accounts import AccountState, KeyState

REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class KeyEvent:
    """A key, or (without a key id) an account with all its keys, is not what it was.

    Args:
        sequence: counts up by one.
        account_id: whose key, or which account.
        key_id: None: all keys of the account.
        account_state: what the account is now.
        key_state: what the key is now; None without one.
    """

    sequence: int
    account_id: str
    key_id: str | None
    account_state: AccountState
    key_state: KeyState | None


@dataclass(frozen=True, slots=True)
class Page:
    """What a query for the events after a sequence has found.

    Args:
        events: the next events in order, maybe not all of them.
        last: the sequence of the last event that there is.
    """

    events: Sequence[KeyEvent]
    last: int

    def follows(self, sequence: int) -> bool:
        """Whether nothing is missing between a sequence and these events.

        Events are missing if they have been pruned, or if the database is an older copy or another.
        """
        if self.events:
            return self.events[0].sequence == sequence + 1
        return self.last == sequence

    @property
    def read_to(self) -> int:
        """The sequence up to which this page has all."""
        return self.events[-1].sequence if self.events else self.last


@dataclass(frozen=True, slots=True)
class Update:
    """What a watcher is told.

    Args:
        events: in order, without gaps.
        confirmed: all events up to this sequence have been told.
        reset: the events before are not kept any more: all that is known must be asked again.
    """

    events: Sequence[KeyEvent]
    confirmed: int
    reset: bool = False


class KeyEventLog:
    """The newest events that a process has read, for its watchers.

    Args:
        sequence: where it begins.
        size: how many events it remembers.
    """

    def __init__(self, sequence: int, size: int = REMEMBERED) -> None:
        self._events: deque[KeyEvent] = deque(maxlen=size)
        self.confirmed = sequence

    def add(self, page: Page) -> None:
        """Add what follows.

        Raises:
            ValueError: it does not follow.
        """
        if not page.follows(self.confirmed):
            raise ValueError(f"events after {self.confirmed} are missing")
        self._events.extend(page.events)
        self.confirmed = page.read_to

    def after(self, sequence: int) -> list[KeyEvent] | None:
        """The events after a sequence; None: it is too old, or never was."""
        missing = self.confirmed - sequence
        if not 0 <= missing <= len(self._events):
            return None
        return [self._events[index] for index in range(-missing, 0)]
