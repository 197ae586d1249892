"""Which answers about keys may still be used."""

import asyncio

import pytest

from edge.auth_cache import AuthCache, Lru, Times
from fastrun.service.errors import ServiceError
from fastrun.v1.auth_pb2 import AccountState, KeyState, VerifyKeyResponse
from fastrun.v1.error_pb2 import ErrorReason

GOOD = VerifyKeyResponse(
    account_id="a",
    key_id="k",
    account_state=AccountState.ACCOUNT_STATE_APPROVED,
    key_state=KeyState.KEY_STATE_ACTIVE,
)
KEY, OTHER = b"1" * 32, b"2" * 32


class Asked:
    """The auth service, with a clock."""

    def __init__(self, *, size=10, unknown_size=10):
        self.now = 0.0
        self.known = {KEY: GOOD}
        self.questions = []
        self.is_down = False
        self.gate = None
        self.cache = AuthCache(
            self.verify,
            Times(fresh_s=15, grace_s=900, unknown_s=5, retry_s=1),
            clock=lambda: self.now,
            size=size,
            unknown_size=unknown_size,
        )

    async def verify(self, digest):
        self.questions.append(digest)
        if self.gate is not None:
            await self.gate.wait()
        if self.is_down:
            raise ServiceError(ErrorReason.ERROR_REASON_UNAVAILABLE, "down")
        if digest not in self.known:
            raise ServiceError(ErrorReason.ERROR_REASON_NOT_FOUND, "unknown")
        return self.known[digest]

    async def entry(self, digest=KEY):
        return await self.cache.entry(digest)


async def test_fresh():
    """For 15 s an answer is used without asking; then it is asked again before use."""
    asked = Asked()
    for now, questions in [(0, 1), (14.9, 1), (15, 2), (29, 2), (30, 3)]:
        asked.now = now
        assert (await asked.entry()).known == GOOD
        assert len(asked.questions) == questions


async def test_changed_state_is_seen():
    """After the freshness a revoked key is known as revoked."""
    asked = Asked()
    assert (await asked.entry()).may_call(0)
    asked.known[KEY] = VerifyKeyResponse(
        account_state=AccountState.ACCOUNT_STATE_APPROVED, key_state=KeyState.KEY_STATE_REVOKED
    )
    asked.now = 16
    assert not (await asked.entry()).may_call(0)


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
    assert (await asked.entry()).known == GOOD
    asked.now = 901
    with pytest.raises(ServiceError):
        await asked.entry()


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
    asked.known[OTHER] = GOOD
    asked.now = 10
    assert (await asked.entry(OTHER)).known == GOOD


async def test_outage_is_waited_for_once():
    """After a failed question nobody asks for a second, and then one at a time."""
    asked = Asked()
    await asked.entry()
    asked.is_down = True
    asked.now = 20
    for _ in range(5):
        assert (await asked.entry()).known == GOOD
        with pytest.raises(ServiceError):
            await asked.entry(OTHER)
    assert len(asked.questions) == 2
    asked.now = 21
    asked.gate = asyncio.Event()
    probe = asyncio.create_task(asked.entry())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(ServiceError):
        await asked.entry(OTHER)
    assert len(asked.questions) == 3
    asked.is_down = False
    asked.gate.set()
    assert (await probe).known == GOOD
    assert await asked.entry(OTHER) is None


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
    assert {each.known.key_id for each in done[1:]} == {"k"}
    assert len(asked.questions) == 1


async def test_bounded():
    """Both kinds of keys are remembered up to their bound, the longest unused is forgotten."""
    asked = Asked(size=2, unknown_size=2)
    third = b"3" * 32
    asked.known = {KEY: GOOD, OTHER: GOOD, third: GOOD}
    for digest in (KEY, OTHER, KEY, third, KEY, OTHER):
        await asked.entry(digest)
    assert asked.questions == [KEY, OTHER, third, OTHER]
    for number in range(4, 9):
        await asked.entry(bytes([number]) * 32)
    assert (await asked.entry(KEY)).known == GOOD
    assert len(asked.cache._unknown) == 2


@pytest.mark.parametrize("account", list(AccountState.values()))
@pytest.mark.parametrize("key", list(KeyState.values()))
async def test_who_may_call(account, key):
    """Only an active key of an approved account opens the door."""
    asked = Asked()
    asked.known[KEY] = VerifyKeyResponse(account_state=account, key_state=key)
    entry = await asked.entry()
    approved = account == AccountState.ACCOUNT_STATE_APPROVED
    assert entry.may_call(0) == (approved and key == KeyState.KEY_STATE_ACTIVE)


async def test_expiry():
    """A key stops at its time, also while its entry is fresh."""
    asked = Asked()
    asked.known[KEY] = VerifyKeyResponse(
        account_state=AccountState.ACCOUNT_STATE_APPROVED,
        key_state=KeyState.KEY_STATE_ACTIVE,
        expires_at=1000.0,
    )
    entry = await asked.entry()
    assert entry.may_call(999.9)
    assert not entry.may_call(1000.0)


def test_lru():
    """Getting a value counts as using it."""
    lru = Lru(2)
    lru.put("a", 1)
    lru.put("b", 2)
    lru.get("a")
    lru.put("c", 3)
    assert (lru.get("a"), lru.get("b"), lru.get("c")) == (1, None, 3)
    lru.drop("a")
    lru.drop("a")
    assert len(lru) == 1
