"""Which answers about keys may still be used."""

import asyncio

import pytest

from edge.auth_cache import MOST_QUESTIONS, QUESTIONS_AT_ONCE, AuthCache, GapError, Sizes, Times
from fastrun.service.errors import ServiceError
from fastrun.v1.auth_pb2 import AccountState, KeyEvent, KeyState, VerifyKeyResponse
from fastrun.v1.error_pb2 import ErrorReason

APPROVED, SUSPENDED = AccountState.ACCOUNT_STATE_APPROVED, AccountState.ACCOUNT_STATE_SUSPENDED
PENDING = AccountState.ACCOUNT_STATE_PENDING
ACTIVE, REVOKED = KeyState.KEY_STATE_ACTIVE, KeyState.KEY_STATE_REVOKED
KEY, OTHER = b"1" * 32, b"2" * 32


def answer(key_id="k", **fields):
    """Make an answer about a key, good unless ``fields`` say otherwise."""
    good = {"account_id": "a", "account_state": APPROVED, "key_state": ACTIVE}
    return VerifyKeyResponse(key_id=key_id, **{**good, **fields})


class Asked:
    """The auth service, with a clock."""

    def __init__(self, *, grace_s=900, known=10, unknown=10):
        self.now = 0.0
        self.known = {KEY: answer()}
        self.sequence = 0
        self.questions = []
        self.limits_s = []
        self.answers = []
        self.is_down = False
        self.gate = None
        self.on_read = []
        self.cache = AuthCache(
            self.verify,
            Times(
                fresh_s=15, grace_s=grace_s, unknown_s=5, retry_s=1, question_s=0.4, confirmed_s=1.5
            ),
            Sizes(known=known, unknown=unknown),
            clock=lambda: self.now,
            count=self.answers.append,
        )

    async def verify(self, digest, timeout_s):
        self.questions.append(digest)
        self.limits_s.append(timeout_s)
        if self.gate is not None:
            await self.gate.wait()
        if self.is_down:
            raise ServiceError(ErrorReason.ERROR_REASON_UNAVAILABLE, "down")
        read = VerifyKeyResponse(sequence=self.sequence)
        known = digest in self.known
        if known:
            read.MergeFrom(self.known[digest])
        if self.on_read:  # what happens between the read and the reply
            self.on_read.pop(0)()
        if not known:
            raise ServiceError(ErrorReason.ERROR_REASON_NOT_FOUND, "unknown")
        return read

    async def entry(self, digest=KEY):
        return await self.cache.entry(digest)

    async def may_call(self, digest=KEY):
        entry = await self.entry(digest)
        return entry is not None and entry.may_call(0)

    def watch(self):
        """A stream begins, or goes on."""
        if self.cache.sequence != self.sequence:
            self.cache.on_reset(self.sequence)
        self.cache.on_confirmed(self.sequence)

    def event(self, key_id="k", *, account=APPROVED, key=ACTIVE, digest=KEY):
        """Change a key, or without a key id all of its account; returns the event."""
        if digest in self.known:
            self.known[digest].account_state = account
            if key_id:
                self.known[digest].key_state = key
        self.sequence += 1
        return KeyEvent(
            sequence=self.sequence,
            account_id="a",
            key_id=key_id,
            account_state=account,
            key_state=key if key_id else KeyState.KEY_STATE_UNSPECIFIED,
        )

    def tell(self, *args, **kwargs):
        """Change it and tell at once."""
        self.cache.on_events([self.event(*args, **kwargs)])


async def settled():
    """Let background questions come to their ends."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_fresh():
    """For 15 s an answer is used without asking; then, unwatched, it is asked before use."""
    asked = Asked()
    for now, questions in [(0, 1), (14.9, 1), (15, 2), (29, 2), (30, 3)]:
        asked.now = now
        assert await asked.may_call()
        assert len(asked.questions) == questions


async def test_stale_while_watched():
    """While the watch is current an older answer is used at once, and asked again once."""
    asked = Asked()
    asked.watch()
    await asked.entry()
    asked.now = 5000
    asked.watch()
    asked.gate = asyncio.Event()
    for _ in range(3):
        assert await asked.may_call()
    await settled()
    assert len(asked.questions) == 2
    asked.gate.set()
    await settled()
    assert await asked.may_call()
    assert len(asked.questions) == 2
    assert asked.answers == ["asked", "refreshing", "refreshing", "refreshing", "fresh"]


async def test_watch_runs_out():
    """1.5 s after a confirmation, or when the stream ends, an older answer is asked before use."""
    asked = Asked()
    await asked.entry()
    asked.now = 100
    asked.watch()
    assert asked.cache.is_current
    asked.now = 101.6
    assert not asked.cache.is_current
    await asked.entry()
    assert asked.answers[-1] == "asked"
    asked.now = 200
    asked.watch()
    asked.cache.on_broken()
    await asked.entry()
    assert asked.answers[-1] == "asked"


async def test_failed_refresh():
    """What cannot be refreshed goes on being used while the watch is current."""
    asked = Asked()
    await asked.entry()
    asked.now, asked.is_down = 20, True
    asked.watch()
    for _ in range(3):
        assert await asked.may_call()
        await settled()
    assert len(asked.questions) == 2
    asked.now = 21
    asked.watch()
    assert await asked.may_call()
    await settled()
    assert len(asked.questions) == 3


@pytest.mark.parametrize("change", [{"key": REVOKED}, {"key_id": "", "account": SUSPENDED}])
async def test_events_close_at_once(change):
    """A key that an event closes is refused, also when nobody can be asked; and asked about."""
    asked = Asked()
    asked.watch()
    assert await asked.may_call()
    asked.tell(**change)
    asked.is_down = True
    assert not await asked.may_call()
    asked.is_down = False
    asked.now = 2
    assert not await asked.may_call()
    assert len(asked.questions) == 3
    assert not await asked.may_call()
    assert len(asked.questions) == 3


async def test_event_opens():
    """A pending key passes with the event of its approval, also when nobody can be asked."""
    asked = Asked()
    asked.known[KEY] = answer(account_state=PENDING)
    asked.watch()
    assert not await asked.may_call()
    asked.tell("", account=APPROVED)
    assert await asked.may_call()
    assert len(asked.questions) == 2
    asked.tell("", account=PENDING)
    asked.tell("", account=APPROVED)
    asked.is_down = True
    assert await asked.may_call()


async def test_event_of_other_keys():
    """An event about a key changes no other; one about an account changes all of its keys."""
    asked = Asked()
    asked.known[OTHER] = answer("o")
    asked.watch()
    assert await asked.may_call()
    assert await asked.may_call(OTHER)
    asked.tell("o", key=REVOKED, digest=OTHER)
    assert await asked.may_call()
    assert not await asked.may_call(OTHER)
    assert asked.questions == [KEY, OTHER, OTHER]
    asked.tell("", account=SUSPENDED)
    asked.is_down = True
    assert not await asked.may_call()
    assert not await asked.may_call(OTHER)


async def test_change_while_answering():
    """A revoke between the read and the reply makes the answer worthless: it is asked again."""
    asked = Asked()
    asked.watch()
    asked.on_read = [lambda: asked.tell(key=REVOKED)]
    assert not await asked.may_call()
    assert len(asked.questions) == 2
    assert asked.limits_s[1] <= asked.limits_s[0] == 0.4


async def test_change_while_refreshing():
    """A late answer to a refresh does not undo a revoke."""
    asked = Asked()
    asked.watch()
    await asked.entry()
    asked.now = 20
    asked.watch()
    asked.on_read = [lambda: asked.tell(key=REVOKED)]
    await asked.entry()
    await settled()
    assert len(asked.questions) == 3
    assert not await asked.may_call()


async def test_change_before_the_watch_tells():
    """An answer that has seen more than the watch has told is not undone by what it tells later."""
    asked = Asked()
    asked.watch()
    closed, opened = asked.event("", account=SUSPENDED), asked.event("", account=APPROVED)
    assert await asked.may_call()
    asked.cache.on_events([closed, opened])
    assert await asked.may_call()
    assert len(asked.questions) == 1


async def test_late_answers_only():
    """Who is answered with the past again and again, or too slowly, is not let in."""
    asked = Asked()
    asked.watch()
    asked.on_read = [asked.tell] * MOST_QUESTIONS
    with pytest.raises(ServiceError):
        await asked.entry()
    assert len(asked.questions) == MOST_QUESTIONS

    def slowly():
        asked.tell()
        asked.now += 0.3

    asked.on_read = [slowly] * 3
    with pytest.raises(ServiceError):
        await asked.entry()
    assert len(asked.questions) == MOST_QUESTIONS + 2
    assert asked.limits_s[-1] == pytest.approx(0.1)


async def test_change_while_waiting_in_an_outage():
    """The grace is for what is known when the question has failed, not when it was put."""
    asked = Asked()
    asked.watch()
    await asked.entry()
    asked.now = 20
    asked.gate, asked.is_down = asyncio.Event(), True
    waiting = asyncio.create_task(asked.may_call())
    await settled()
    asked.tell(key=REVOKED)
    asked.gate.set()
    assert not await waiting


async def test_reset():
    """When events are missing, all that is known is asked before use, and served if it must be."""
    asked = Asked()
    asked.watch()
    await asked.entry()
    await asked.entry(OTHER)
    asked.sequence = 7
    asked.cache.on_reset(7)
    assert await asked.may_call()
    assert await asked.entry(OTHER) is None
    assert len(asked.questions) == 4
    asked.cache.on_reset(7)
    asked.is_down = True
    assert await asked.may_call()
    assert asked.answers[-1] == "grace"


async def test_reset_to_an_older_database():
    """After a database was put back, its events count, although their numbers are lower."""
    asked = Asked()
    asked.sequence = 100
    asked.watch()
    await asked.entry()
    asked.sequence = 50
    asked.cache.on_reset(50)
    asked.cache.on_confirmed(50)
    asked.tell(key=REVOKED)
    asked.is_down = True
    assert not await asked.may_call()


async def test_reset_while_answering():
    """An answer from before a reset is worthless, whatever its number."""
    asked = Asked()
    asked.sequence = 100
    asked.on_read = [lambda: asked.cache.on_reset(3)]
    await asked.entry()
    assert len(asked.questions) == 2


async def test_gap():
    """Missing events are noticed, and what is told twice is taken once."""
    asked = Asked()
    asked.cache.on_reset(5)
    event = KeyEvent(sequence=6, account_id="a", account_state=APPROVED)
    asked.cache.on_events([event])
    asked.cache.on_events([event])
    asked.cache.on_confirmed(6)
    with pytest.raises(GapError):
        asked.cache.on_events([KeyEvent(sequence=8)])
    for sequence in (5, 7):
        with pytest.raises(GapError):
            asked.cache.on_confirmed(sequence)
    assert asked.cache.sequence == 6


async def test_deleted_key_is_forgotten():
    """A key that the auth service no longer knows is unknown at once, not under the grace."""
    asked = Asked()
    await asked.entry()
    asked.known.clear()
    asked.now = 16
    assert await asked.entry() is None
    asked.is_down = True
    asked.now = 17
    assert await asked.entry() is None


async def test_grace():
    """While nobody can be asked an answer is served for 15 minutes, and no longer."""
    asked = Asked()
    await asked.entry()
    asked.is_down = True
    asked.now = 899
    assert await asked.may_call()
    asked.now = 901
    with pytest.raises(ServiceError):
        await asked.entry()


async def test_strict():
    """With a grace of 0 nobody is served unasked, unless the answer is fresh or watched."""
    asked = Asked(grace_s=0)
    await asked.entry()
    asked.is_down = True
    asked.now = 14
    assert await asked.may_call()
    asked.now = 16
    with pytest.raises(ServiceError):
        await asked.entry()
    asked.watch()
    assert await asked.may_call()


async def test_unknown_key_while_down():
    """A key that nobody remembers is neither let in nor called wrong."""
    asked = Asked()
    asked.is_down = True
    with pytest.raises(ServiceError) as caught:
        await asked.entry()
    assert caught.value.detail.reason == ErrorReason.ERROR_REASON_UNAVAILABLE


async def test_unknown():
    """An unknown key is asked about once in 5 s."""
    asked = Asked()
    for now, questions in [(0, 1), (4.9, 1), (5, 2)]:
        asked.now = now
        assert await asked.entry(OTHER) is None
        assert len(asked.questions) == questions
    asked.known[OTHER] = answer("o")
    asked.now = 10
    assert await asked.may_call(OTHER)


async def test_unknown_key_is_issued():
    """An event about a key that nobody remembers lets those in that were unknown."""
    asked = Asked()
    asked.watch()
    await asked.entry()
    assert await asked.entry(OTHER) is None
    asked.known[OTHER] = answer("o")
    asked.tell()
    assert await asked.entry(OTHER) is None
    asked.tell("o", digest=OTHER)
    assert await asked.may_call(OTHER)


async def test_key_is_issued_while_answering():
    """That a key is unknown is not remembered if one was issued since it was asked."""
    asked = Asked()
    asked.watch()

    def issue():
        asked.known[OTHER] = answer("o")
        asked.tell("o", digest=OTHER)

    asked.on_read = [issue]
    assert await asked.entry(OTHER) is None
    assert await asked.may_call(OTHER)


async def test_key_is_issued_while_others_wait():
    """Who asks after a key was issued does not get an answer from before it."""
    asked = Asked()
    asked.watch()
    asked.gate = asyncio.Event()
    before = asyncio.create_task(asked.entry(OTHER))
    await settled()
    asked.known[OTHER] = answer("o")
    asked.tell("o", digest=OTHER)
    after = asyncio.create_task(asked.may_call(OTHER))
    await settled()
    assert len(asked.questions) == 2
    asked.gate.set()
    assert await after
    await before


async def test_outage_is_waited_for_once():
    """After a failed question nobody asks for a second, and then one at a time."""
    asked = Asked()
    await asked.entry()
    asked.is_down = True
    asked.now = 20
    for _ in range(5):
        assert await asked.may_call()
        with pytest.raises(ServiceError):
            await asked.entry(OTHER)
    assert len(asked.questions) == 2
    asked.now = 21
    asked.gate = asyncio.Event()
    probe = asyncio.create_task(asked.entry())
    await settled()
    assert await asked.may_call()  # does not wait for the one who asks
    with pytest.raises(ServiceError):
        await asked.entry(OTHER)
    assert len(asked.questions) == 3
    asked.is_down = False
    asked.gate.set()
    assert (await probe).may_call(0)
    assert await asked.entry(OTHER) is None


async def test_watch_ends_an_outage():
    """When the watch is there again, keys are asked about at once."""
    asked = Asked()
    asked.is_down = True
    with pytest.raises(ServiceError):
        await asked.entry()
    asked.is_down = False
    with pytest.raises(ServiceError):
        await asked.entry()
    asked.watch()
    assert await asked.may_call()


async def test_single_flight():
    """Many who ask for the same key at once cost one question; one who leaves stops nobody."""
    asked = Asked()
    asked.gate = asyncio.Event()
    asking = [asyncio.create_task(asked.entry()) for _ in range(10)]
    await asyncio.sleep(0)
    asking[0].cancel()
    asked.gate.set()
    done = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError)
    assert {each.caller.key_id for each in done[1:]} == {"k"}
    assert len(asked.questions) == 1


async def test_flood():
    """Many unknown keys at once are asked about a few at a time, and hold up no known key."""
    asked = Asked(unknown=100)
    asked.watch()
    await asked.entry()
    asked.tell()
    asked.gate = asyncio.Event()
    flood = [
        asyncio.create_task(asked.entry(bytes([number]) * 32))
        for number in range(100, 102 + QUESTIONS_AT_ONCE)
    ]
    await settled()
    assert len(asked.questions) == 1 + QUESTIONS_AT_ONCE
    known = asyncio.create_task(asked.may_call())
    await settled()
    assert asked.questions[-1] == KEY
    asked.gate.set()
    assert await known
    assert await asyncio.gather(*flood) == [None] * len(flood)


async def test_lost_in_a_flood():
    """While the watch is current, a stranger who was not told in time is no sign of an outage."""
    asked = Asked()
    asked.watch()
    asked.is_down = True
    with pytest.raises(ServiceError):
        await asked.entry(OTHER)
    asked.is_down = False
    assert await asked.may_call()
    assert asked.questions == [OTHER, KEY]


async def test_flood_in_an_outage():
    """Those that wait for their turn are not asked about once a question has failed."""
    asked = Asked()
    asked.gate, asked.is_down = asyncio.Event(), True
    flood = [
        asyncio.create_task(asked.entry(bytes([number]) * 32))
        for number in range(100, 110 + QUESTIONS_AT_ONCE)
    ]
    await settled()
    asked.gate.set()
    failures = await asyncio.gather(*flood, return_exceptions=True)
    assert {type(failure) for failure in failures} == {ServiceError}
    assert len(asked.questions) == QUESTIONS_AT_ONCE


async def test_bounded():
    """Both kinds of keys are remembered up to their bound, the longest unused is forgotten."""
    asked = Asked(known=2, unknown=2)
    third = b"3" * 32
    asked.known = {KEY: answer(), OTHER: answer("o"), third: answer("t")}
    for digest in (KEY, OTHER, KEY, third, KEY, OTHER):
        await asked.entry(digest)
    assert asked.questions == [KEY, OTHER, third, OTHER]
    for number in range(4, 9):
        await asked.entry(bytes([number]) * 32)
    assert await asked.may_call(KEY)
    assert len(asked.questions) == 9


async def test_useless():
    """A cache is of use from the first word of the auth service until no answer may be used."""
    asked = Asked(grace_s=60)
    assert asked.cache.is_useless
    await asked.entry(OTHER)
    assert not asked.cache.is_useless
    asked.now = 50
    asked.watch()
    asked.now = 110
    assert not asked.cache.is_useless
    asked.now = 110.1
    assert asked.cache.is_useless


async def test_tells_who_is_closed():
    """Whoever wants to know is told of closed keys and accounts, by events and by answers."""
    asked = Asked()
    told = []
    asked.cache.subscribe(lambda account_id, key_id: told.append((account_id, key_id)))
    asked.watch()
    caller = (await asked.entry()).caller
    assert asked.cache.is_open_to(caller)
    asked.tell()
    asked.tell("", account=APPROVED)
    assert told == []
    asked.tell("", account=SUSPENDED)
    asked.tell("k", account=SUSPENDED)
    asked.tell("k", key=REVOKED)
    assert told == [("a", ""), ("a", "k"), ("a", "k")]
    assert asked.cache.is_open_to(caller) is False
    await asked.entry()
    assert told[3:] == [("a", "k")]
    asked.known.clear()
    asked.now = 20
    asked.cache.on_broken()
    await asked.entry()
    assert asked.cache.is_open_to(caller) is None
