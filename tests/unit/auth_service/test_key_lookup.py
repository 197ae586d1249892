import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auth_service.errors import StoreUnavailableError
from auth_service.key_lookup import BATCH, KeyLookup
from auth_service.keys import Pepper, Peppers

PEPPERS = Peppers(Pepper(1, b"p" * 32))


class Rows:
    """In place of a database: knows some digests, and takes as many turns of the loop as told."""

    def __init__(self, known=(), *, pool_size=2, turns=0):
        self.known = {digest: self.row(digest) for digest in known}
        self.sql = {"find_identities": ""}
        self.pool_size = pool_size
        self.turns = turns
        self.running = self.most_running = 0
        self.asked = []
        self.error = None

    @staticmethod
    def row(digest):
        return {
            "digest": digest,
            "account_id": "acct_x",
            "key_id": digest.hex(),
            "account_state": "approved",
            "revoked": False,
            "expires_at": None,
            "cache_salt": "salt",
            "sequence": 1,
            "models": [],
            "account_limits": "{}",
            "key_limits": "{}",
            "account_month_tokens": 0,
            "key_month_tokens": 0,
        }

    async def within(self, work, *, deadline_s):
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        self.running -= 1
        if self.error:
            raise self.error
        return await work(self)

    async def fetch(self, sql, digests, timeout):
        self.asked.append(digests)
        return [self.known[digest] for digest in digests if digest in self.known]


def sha(number):
    return number.to_bytes(32, "big")


def digest(number):
    return PEPPERS.current.digest(sha(number))


@settings(max_examples=60)
@given(
    calls=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 6)), min_size=1, max_size=40),
    turns=st.integers(0, 3),
    pool_size=st.integers(1, 6),
)
def test_each_is_answered(calls, turns, pool_size):
    """Whenever callers come, each gets the answer to its own key, from half of the pool at most."""
    rows = Rows([digest(number) for number in range(0, 7, 2)], pool_size=pool_size, turns=turns)
    lookup = KeyLookup(rows, PEPPERS, deadline_s=30)

    async def call(later, number):
        for _ in range(later):
            await asyncio.sleep(0)
        identity = await lookup.verify(sha(number))
        assert (identity is not None) == (number % 2 == 0 and number < 7)
        assert identity is None or identity.key_id == digest(number).hex()

    async def run():
        async with asyncio.timeout(5):
            await asyncio.gather(*[call(*each) for each in calls])

    asyncio.run(run())
    assert rows.most_running <= max(1, pool_size // 2)


async def test_together():
    """What waits is asked together, in batches."""
    rows = Rows(pool_size=2, turns=3)
    lookup = KeyLookup(rows, PEPPERS, deadline_s=30)
    await asyncio.gather(*[lookup.verify(sha(number)) for number in range(BATCH + 10)])
    assert [len(digests) for digests in rows.asked] == [BATCH, 10]


async def test_never_joins_what_is_asked():
    """A caller never gets the answer to a question that was sent before it came."""
    rows = Rows(pool_size=4, turns=5)
    lookup = KeyLookup(rows, PEPPERS, deadline_s=30)
    early = asyncio.create_task(lookup.verify(sha(0)))
    while not rows.running:
        await asyncio.sleep(0)
    rows.turns = 0
    await lookup.verify(sha(0))
    assert not early.done()
    await early
    assert len(rows.asked) == 2


async def test_outage():
    """All that were asked together are told of the outage, and the next is asked anew."""
    rows = Rows([digest(1)], turns=1)
    rows.error = StoreUnavailableError("away")
    lookup = KeyLookup(rows, PEPPERS, deadline_s=30)
    told = await asyncio.gather(
        *[lookup.verify(sha(number)) for number in range(3)], return_exceptions=True
    )
    assert [type(each) for each in told] == [StoreUnavailableError] * 3
    rows.error = None
    assert (await lookup.verify(sha(1))).key_id == digest(1).hex()


async def test_deadline():
    """A caller is sent away at its deadline, and what it asked for is not asked later."""
    rows = Rows(pool_size=1)
    held = asyncio.Event()
    answer = rows.within

    async def within(work, *, deadline_s):
        await held.wait()
        return await answer(work, deadline_s=deadline_s)

    rows.within = within
    lookup = KeyLookup(rows, PEPPERS, deadline_s=0.01)
    for number in range(2):
        with pytest.raises(StoreUnavailableError, match="did not answer"):
            await lookup.verify(sha(number))
    held.set()
    lookup._deadline_s = 30
    await lookup.verify(sha(3))
    assert [digest(1)] not in rows.asked
