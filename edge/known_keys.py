"""What is known of keys, in whatever state they are, and what events change about it.

Pure: the clocks and the answers of the auth service are passed in.
"""

from dataclasses import dataclass

from edge.caller import Caller
from edge.lru import Lru
from fastrun.v1.auth_pb2 import AccountState, KeyEvent, KeyState, VerifyKeyResponse

# Asked at each request, and an enum's names are looked up slowly.
_APPROVED = AccountState.ACCOUNT_STATE_APPROVED
_ACTIVE = KeyState.KEY_STATE_ACTIVE


def is_open(account: AccountState.ValueType, key: KeyState.ValueType) -> bool:
    """Whether these states let a key in."""
    return account == _APPROVED and key == _ACTIVE


@dataclass(slots=True)
class Entry:
    """A key, as it was last answered and as events have changed it since."""

    caller: Caller
    account_state: AccountState.ValueType
    key_state: KeyState.ValueType
    expires_at: float | None
    """Seconds since 1970."""
    sequence: int
    """The last event that the answer has seen."""
    verified_at: float
    """Monotonic seconds: when the answer was asked for, so it is no older."""
    must_ask: bool = False
    """The answer is not the last word any more: something has changed since."""

    @classmethod
    def of(cls, answer: VerifyKeyResponse, asked_at: float) -> "Entry":
        """Take in an answer."""
        return cls(
            caller=Caller.of(answer),
            account_state=answer.account_state,
            key_state=answer.key_state,
            expires_at=answer.expires_at if answer.HasField("expires_at") else None,
            sequence=answer.sequence,
            verified_at=asked_at,
        )

    @property
    def is_open(self) -> bool:
        """Whether the states of key and account let it in."""
        return is_open(self.account_state, self.key_state)

    def may_call(self, wall_s: float) -> bool:
        """Whether the key opens the door now; ``wall_s`` is seconds since 1970."""
        return self.is_open and (self.expires_at is None or wall_s < self.expires_at)

    def change(self, event: KeyEvent) -> None:
        """Take in an event about the key or its account, unless the answer has seen it."""
        if event.sequence <= self.sequence:
            return
        self.account_state = event.account_state
        if event.key_id:
            self.key_state = event.key_state
        self.must_ask = True

    def doubt(self) -> None:
        """Events are missing: any that comes is news, and the key is to be asked about."""
        self.sequence = -1
        self.must_ask = True


class KnownKeys:
    """Entries by digest; those that were used longest ago are forgotten when there are too many."""

    def __init__(self, size: int) -> None:
        self._entries: Lru[bytes, Entry] = Lru(size)
        self._by_key: dict[str, bytes] = {}
        self._by_account: dict[str, set[bytes]] = {}

    def get(self, digest: bytes) -> Entry | None:
        """Return an entry and count it as used."""
        return self._entries.get(digest)

    def of_key(self, key_id: str) -> Entry | None:
        """Return the entry of a key by its id."""
        digest = self._by_key.get(key_id)
        return self._entries.peek(digest) if digest is not None else None

    def put(self, digest: bytes, entry: Entry) -> None:
        """Keep an entry in place of the former one."""
        self.drop(digest)
        forgotten = self._entries.put(digest, entry)
        self._by_key[entry.caller.key_id] = digest
        self._by_account.setdefault(entry.caller.account_id, set()).add(digest)
        if forgotten is not None:
            self._forget(*forgotten)

    def drop(self, digest: bytes) -> None:
        """Forget an entry, if it is there."""
        entry = self._entries.drop(digest)
        if entry is not None:
            self._forget(digest, entry)

    def change(self, event: KeyEvent) -> None:
        """Take an event in to all entries that it is about."""
        if event.key_id:
            entry = self.of_key(event.key_id)
            if entry is not None:
                entry.change(event)
            return
        for digest in self._by_account.get(event.account_id, ()):
            entry = self._entries.peek(digest)
            assert entry is not None
            entry.change(event)

    def doubt_all(self) -> None:
        """Events are missing: all are to be asked about before their next use."""
        for entry in self._entries.values():
            entry.doubt()

    def __contains__(self, digest: bytes) -> bool:
        return self._entries.peek(digest) is not None

    def __len__(self) -> int:
        return len(self._entries)

    def _forget(self, digest: bytes, entry: Entry) -> None:
        if self._by_key.get(entry.caller.key_id) == digest:
            del self._by_key[entry.caller.key_id]
        digests = self._by_account[entry.caller.account_id]
        digests.discard(digest)
        if not digests:
            del self._by_account[entry.caller.account_id]


class LastEvents:
    """The last event about each key and account, to tell answers from before it from later ones."""

    def __init__(self, size: int) -> None:
        self._last: Lru[tuple[str, str], int] = Lru(size)
        # Of those that were forgotten: no answer from before it is trusted.
        self._floor = 0

    def note(self, event: KeyEvent) -> None:
        """An event has come."""
        forgotten = self._last.put((event.account_id, event.key_id), event.sequence)
        if forgotten is not None:
            self._floor = max(self._floor, forgotten[1])

    def reset(self, sequence: int) -> None:
        """Events up to a sequence are not known."""
        self._last.clear()
        self._floor = sequence

    def has_seen(self, answer: VerifyKeyResponse) -> bool:
        """Whether an answer was read after all that has happened to its key and account."""
        account, key = answer.account_id, answer.key_id
        last = (self._last.peek((account, key)), self._last.peek((account, "")), self._floor)
        return answer.sequence >= max(each or 0 for each in last)
