"""Which answers about keys may still be used: fresh ones at once, older ones only after asking.

Pure: whoever asks the auth service and reads the clocks passes both in.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from contextvars import Context
from dataclasses import dataclass
from typing import Generic, TypeVar

from fastrun.service.errors import ServiceError
from fastrun.v1.auth_pb2 import AccountState, KeyState, VerifyKeyResponse
from fastrun.v1.error_pb2 import ErrorReason

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")

Verify = Callable[[bytes], Awaitable[VerifyKeyResponse]]
"""Asks the auth service about a digest; raises ServiceError: NOT_FOUND for an unknown one."""
Clock = Callable[[], float]


class Lru(Generic[KeyT, ValueT]):
    """A dict that forgets what was used longest ago when it is full."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: OrderedDict[KeyT, ValueT] = OrderedDict()

    def get(self, key: KeyT) -> ValueT | None:
        """Return a value and count it as used."""
        value = self._items.get(key)
        if value is not None:
            self._items.move_to_end(key)
        return value

    def put(self, key: KeyT, value: ValueT) -> None:
        """Keep a value as the most recently used."""
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._size:
            self._items.popitem(last=False)

    def drop(self, key: KeyT) -> None:
        """Forget a value, if it is there."""
        self._items.pop(key, None)

    def __len__(self) -> int:
        return len(self._items)


@dataclass(frozen=True, slots=True)
class Times:
    """How long answers count, in seconds."""

    fresh_s: float
    """A known key is used without asking again."""
    grace_s: float
    """A known key is used while nobody can be asked."""
    unknown_s: float
    """An unknown key is refused without asking again."""
    retry_s: float
    """After a failed question nobody asks."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of a key, in whatever state it is."""

    known: VerifyKeyResponse
    verified_at: float
    """Monotonic seconds."""

    def may_call(self, wall_s: float) -> bool:
        """Whether the key opens the door now; ``wall_s`` is seconds since 1970."""
        known = self.known
        return (
            known.account_state == AccountState.ACCOUNT_STATE_APPROVED
            and known.key_state == KeyState.KEY_STATE_ACTIVE
            and not (known.HasField("expires_at") and known.expires_at <= wall_s)
        )


class AuthCache:
    """Answers who a key is, from memory where it may and by one question where it must."""

    def __init__(
        self, verify: Verify, times: Times, *, clock: Clock, size: int, unknown_size: int
    ) -> None:
        self._verify = verify
        self._times = times
        self._clock = clock
        self._known: Lru[bytes, Entry] = Lru(size)
        self._unknown: Lru[bytes, float] = Lru(unknown_size)
        self._asking: dict[bytes, asyncio.Task[Entry | None]] = {}
        # After a failure nobody asks before this time, and then one at a time: an outage is not
        # waited for by each request.
        self._retry_at: float | None = None

    async def entry(self, digest: bytes) -> Entry | None:
        """Return what is known of a key; None when there is no such key.

        Raises:
            ServiceError: UNAVAILABLE; nobody can say, and no answer within the grace is left.
        """
        now = self._clock()
        entry = self._known.get(digest)
        if entry is not None and now - entry.verified_at < self._times.fresh_s:
            return entry
        if entry is None:
            unknown_at = self._unknown.get(digest)
            if unknown_at is not None and now - unknown_at < self._times.unknown_s:
                return None
        try:
            return await self._ask(digest, now)
        except ServiceError:
            if entry is not None and now - entry.verified_at < self._times.grace_s:
                return entry
            raise

    async def _ask(self, digest: bytes, now: float) -> Entry | None:
        task = self._asking.get(digest)
        if task is None:
            if self._retry_at is not None and (now < self._retry_at or self._asking):
                raise ServiceError(ErrorReason.ERROR_REASON_UNAVAILABLE, "the auth service is out")
            # Not in the context of the request that happens to ask first: others wait too.
            task = asyncio.create_task(self._question(digest), name="verify-key", context=Context())
            self._asking[digest] = task
            task.add_done_callback(lambda done: self._answered(digest, done))
        return await asyncio.shield(task)

    async def _question(self, digest: bytes) -> Entry | None:
        try:
            known = await self._verify(digest)
        except ServiceError as error:
            if error.detail.reason != ErrorReason.ERROR_REASON_NOT_FOUND:
                self._retry_at = self._clock() + self._times.retry_s
                raise
            self._retry_at = None
            self._known.drop(digest)
            self._unknown.put(digest, self._clock())
            return None
        self._retry_at = None
        entry = Entry(known, self._clock())
        self._known.put(digest, entry)
        self._unknown.drop(digest)
        return entry

    def _answered(self, digest: bytes, task: "asyncio.Task[Entry | None]") -> None:
        del self._asking[digest]
        if not task.cancelled():
            task.exception()  # whoever waited has seen it; perhaps nobody waits any more
