"""Which answers about keys may still be used: at once, while they are asked again, or after that.

Pure: whoever asks the auth service, watches it and reads the clock passes all that in.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from dataclasses import dataclass

from structlog.contextvars import bind_contextvars, get_contextvars

from edge.caller import Caller
from edge.known_keys import Entry, KnownKeys, LastEvents, is_open
from edge.lru import Lru
from fastrun.service import tracing
from fastrun.service.errors import ServiceError
from fastrun.v1.auth_pb2 import KeyEvent, KeyState, VerifyKeyResponse
from fastrun.v1.error_pb2 import ErrorReason

Verify = Callable[[bytes, float], Awaitable[VerifyKeyResponse]]
"""Asks about a digest, for so many seconds; raises ServiceError: NOT_FOUND for an unknown one."""
Clock = Callable[[], float]
OnClosed = Callable[[str, str], None]
"""Told that an account is closed, or the key of it whose id is not empty."""

LAST_EVENTS = 10_000
# More at once would take longer, and hold up what this process does besides.
QUESTIONS_AT_ONCE = 32
# Each after an event that came while the last was asked for.
MOST_QUESTIONS = 4


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
    question_s: float
    """A question takes at most, with those that have to be asked again."""
    confirmed_s: float
    """The watch can be counted on after each confirmation."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is remembered."""

    known: int
    unknown: int


class GapError(Exception):
    """Events are missing between what was told and what is told now."""


class AuthCache:
    """Answers who a key is, from memory where it may and by one question where it must.

    While the watch is current, events tell what changes: an answer is used however old it is, and
    asked for again in the background once it is no longer fresh. While it is not, an answer that is
    not fresh is used only after a question that failed because nobody can be asked.
    """

    def __init__(
        self,
        verify: Verify,
        times: Times,
        sizes: Sizes,
        *,
        clock: Clock,
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Begin with nothing.

        Args:
            verify: asks the auth service.
            times: how long answers count.
            sizes: how many are kept.
            clock: monotonic seconds.
            count: told of each lookup how it was answered, in a word.
        """
        self._verify = verify
        self._times = times
        self._clock = clock
        self._count = count
        self._known = KnownKeys(sizes.known)
        self._unknown: Lru[bytes, float] = Lru(sizes.unknown)
        self._asking: dict[bytes, asyncio.Task[Entry | None]] = {}
        """Questions that may be joined."""
        self._tasks: set[asyncio.Task[Entry | None]] = set()
        # Apart, so that a flood of keys that nobody knows holds up none that are known.
        self._for_known = asyncio.Semaphore(QUESTIONS_AT_ONCE)
        self._for_strangers = asyncio.Semaphore(QUESTIONS_AT_ONCE)
        # After a failure nobody asks before this time, and then one at a time: an outage is not
        # waited for by each request.
        self._retry_at: float | None = None
        self._last_events = LastEvents(LAST_EVENTS)
        self._resets = 0
        self._new_keys = 0
        self._confirmed_at: float | None = None
        self._on_closed: list[OnClosed] = []
        self.sequence = 0
        """The last event that the watch has told."""
        self.heard_at: float | None = None
        """When the keys were last known to be what they are here; None: never yet."""

    def knows(self, digest: bytes) -> bool:
        """Whether it has been told who this is, however long ago."""
        return digest in self._known

    async def entry(self, digest: bytes) -> Entry | None:
        """Return what is known of a key; None when there is no such key.

        Raises:
            ServiceError: UNAVAILABLE; nobody can say, and no answer within the grace is left.
        """
        now = self._clock()
        entry = self._known.get(digest)
        if entry is None:
            unknown_at = self._unknown.get(digest)
            if unknown_at is not None and now - unknown_at < self._times.unknown_s:
                return self._counted("unknown", None)
        elif not entry.must_ask:
            if now - entry.verified_at < self._times.fresh_s:
                return self._counted("fresh", entry)
            if self._is_current(now):
                self._refresh(digest, now)
                return self._counted("refreshing", entry)
        # Who may be let in without an answer does not wait for one in an outage.
        if entry is not None and self._in_grace(entry, now) and self._is_out(now):
            return self._counted("grace", entry)
        return await self._asked(digest, now)

    @property
    def is_current(self) -> bool:
        """Whether what changes about keys is told at once."""
        return self._is_current(self._clock())

    @property
    def is_watched(self) -> bool:
        """Whether the watch has confirmed something, and has not ended since."""
        return self._confirmed_at is not None

    @property
    def is_useless(self) -> bool:
        """Whether nobody could be asked for so long that no answer may be used any more."""
        if self.heard_at is None:
            return True
        longest_s = max(self._times.fresh_s, self._times.grace_s, self._times.confirmed_s)
        return self._clock() - self.heard_at > longest_s

    def age_s(self, entry: Entry) -> float:
        """How long ago this was answered."""
        return self._clock() - entry.verified_at

    def is_open_to(self, caller: Caller) -> bool | None:
        """Whether a caller who was let in still would be; asks nobody. None: it was forgotten."""
        entry = self._known.of_key(caller.key_id)
        return entry.is_open if entry is not None else None

    def subscribe(self, on_closed: OnClosed) -> None:
        """Call when keys or accounts are found to be closed, perhaps more than once."""
        self._on_closed.append(on_closed)

    def on_events(self, events: Iterable[KeyEvent]) -> None:
        """The watch tells events.

        Raises:
            GapError: some before them are missing; those are not taken in.
        """
        for event in events:
            if event.sequence <= self.sequence:
                continue
            if event.sequence != self.sequence + 1:
                raise GapError(f"event {event.sequence} came after {self.sequence}")
            self.sequence = event.sequence
            self._on_event(event)

    def on_confirmed(self, sequence: int) -> None:
        """The watch tells that there is no event beyond those it has told.

        Raises:
            GapError: there is.
        """
        if sequence != self.sequence:
            raise GapError(f"{sequence} was confirmed after event {self.sequence}")
        now = self._clock()
        if not self._is_current(now):
            self._retry_at = None  # the auth service and Postgres are there
        self._confirmed_at = self.heard_at = now

    def on_reset(self, sequence: int) -> None:
        """The watch cannot tell what has happened: all is to be asked again before its use."""
        self.sequence = sequence
        self._resets += 1
        self._last_events.reset(sequence)
        self._known.doubt_all()
        self._unknown.clear()

    def on_broken(self) -> None:
        """The watch has ended."""
        self._confirmed_at = None

    def _on_event(self, event: KeyEvent) -> None:
        self._last_events.note(event)
        self._known.change(event)
        if event.key_id and self._known.of_key(event.key_id) is None:
            # Perhaps it is new, and somebody was told that there is no such key.
            self._new_keys += 1
            self._unknown.clear()
            # Answers that may have been read before are for those alone who wait for them already.
            self._asking = {d: task for d, task in self._asking.items() if d in self._known}
        key_state = event.key_state if event.key_id else KeyState.KEY_STATE_ACTIVE
        if not is_open(event.account_state, key_state):
            self._tell_closed(event.account_id, event.key_id)

    async def _asked(self, digest: bytes, now: float) -> Entry | None:
        try:
            entry = await asyncio.shield(self._ask(digest, now))
        except ServiceError:
            # Not the one from before: an event may have changed it meanwhile.
            known = self._known.get(digest)
            if known is not None and self._in_grace(known, self._clock()):
                return self._counted("grace", known)
            self._count("unavailable")
            raise
        return self._counted("asked", entry)

    def _ask(self, digest: bytes, now: float) -> "asyncio.Task[Entry | None]":
        """Begin a question, or join it where it is being asked already."""
        task = self._asking.get(digest)
        if task is None:
            if self._is_out(now):
                raise _unavailable("the auth service is out")
            task = asyncio.create_task(
                self._take_turns(digest, now), name="verify-key", context=_of_asker()
            )
            self._asking[digest] = task
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._answered(digest, done))
        return task

    def _refresh(self, digest: bytes, now: float) -> None:
        if digest not in self._asking and not self._is_out(now):
            self._ask(digest, now)

    async def _take_turns(self, digest: bytes, now: float) -> Entry | None:
        turns = self._for_known if digest in self._known else self._for_strangers
        try:
            async with asyncio.timeout(self._times.question_s):
                await turns.acquire()
        except TimeoutError:
            raise _unavailable("too many keys are asked about") from None
        try:
            if self._retry_at is not None and self._clock() < self._retry_at:
                raise _unavailable("the auth service is out")
            return await self._question(digest, now + self._times.question_s)
        finally:
            turns.release()

    async def _question(self, digest: bytes, deadline: float) -> Entry | None:
        """Ask until the answer is no older than the last event about it."""
        for _ in range(MOST_QUESTIONS):
            asked_at = self._clock()
            if asked_at >= deadline:
                break
            before = (self._resets, self._new_keys)
            try:
                answer = await self._verify(digest, deadline - asked_at)
            except ServiceError as error:
                if error.detail.reason != ErrorReason.ERROR_REASON_NOT_FOUND:
                    now = self._clock()
                    # One of a stranger, while the watch is current, was lost in a crowd of others.
                    if digest in self._known or not self._is_current(now):
                        self._retry_at = now + self._times.retry_s
                    raise
                self._heard(asked_at)
                self._known.drop(digest)
                if before == (self._resets, self._new_keys):  # else it may have been issued since
                    self._unknown.put(digest, self._clock())
                return None
            self._heard(asked_at)
            if before[0] == self._resets and self._last_events.has_seen(answer):
                return self._learn(digest, answer, asked_at)
        raise _unavailable("the key changes faster than it is answered")

    def _learn(self, digest: bytes, answer: VerifyKeyResponse, asked_at: float) -> Entry:
        entry = Entry.of(answer, asked_at)
        self._known.put(digest, entry)
        self._unknown.drop(digest)
        if not entry.is_open:
            self._tell_closed(answer.account_id, answer.key_id)
        return entry

    def _heard(self, asked_at: float) -> None:
        self._retry_at = None
        self.heard_at = max(self.heard_at or asked_at, asked_at)

    def _answered(self, digest: bytes, task: "asyncio.Task[Entry | None]") -> None:
        self._tasks.discard(task)
        if self._asking.get(digest) is task:
            del self._asking[digest]
        if not task.cancelled():
            task.exception()  # whoever waited has seen it; perhaps nobody waits any more

    def _is_current(self, now: float) -> bool:
        confirmed_at = self._confirmed_at
        return confirmed_at is not None and now - confirmed_at <= self._times.confirmed_s

    def _is_out(self, now: float) -> bool:
        """Whether the last question failed, and it is not yet the time, or somebody's, to retry."""
        return self._retry_at is not None and (now < self._retry_at or bool(self._asking))

    def _in_grace(self, entry: Entry, now: float) -> bool:
        return now - entry.verified_at < self._times.grace_s

    def _tell_closed(self, account_id: str, key_id: str) -> None:
        for on_closed in self._on_closed:
            on_closed(account_id, key_id)

    def _counted(self, answer: str, entry: Entry | None) -> Entry | None:
        self._count(answer)
        return entry


def _of_asker() -> Context:
    """Make a context with nothing of the request that happens to ask first: others wait too.

    But for its id, by which logs here and at the auth service can be found, and its trace.
    """
    context, request_id = Context(), get_contextvars().get("request_id")
    if request_id is not None:
        context.run(bind_contextvars, request_id=request_id)
    context.run(tracing.bind, tracing.bound())
    return context


def _unavailable(why: str) -> ServiceError:
    return ServiceError(ErrorReason.ERROR_REASON_UNAVAILABLE, why)
