import asyncio
from random import Random

from auth_stores import new_key

from auth_service.accounts import AccountState, KeyState
from fastrun.service import api_key

RANDOM = Random(3)


async def test_verify(stores):
    """A key speaks for its account as soon as it is issued, in whatever state both are."""
    key = api_key.generate(RANDOM)
    account = await stores.accounts.create("one")
    assert await stores.verify(key) is None
    issued = await stores.keys.issue("one", new_key(key, expires_at=2e9))
    identity = await stores.verify(key)
    assert (identity.account_id, identity.key_id) == (account.account_id, issued.key_id)
    assert (identity.account_state, identity.key_state) == (AccountState.PENDING, KeyState.ACTIVE)
    assert identity.expires_at == 2e9
    await stores.accounts.approve("one")
    await stores.keys.revoke(issued.key_id)
    identity = await stores.verify(key)
    assert (identity.account_state, identity.key_state) == (AccountState.APPROVED, KeyState.REVOKED)


async def test_salts(stores):
    """All keys of an account share its salt, and no two accounts do."""
    salts = []
    for name in ("one", "two"):
        await stores.accounts.create(name)
        for _ in range(2):
            key = api_key.generate(RANDOM)
            await stores.keys.issue(name, new_key(key))
            salts.append((await stores.verify(key)).cache_salt)
    assert salts[0] == salts[1] != salts[2] == salts[3]


async def test_sequence(stores):
    """An answer says which event it has seen last."""
    key = api_key.generate(RANDOM)
    await stores.accounts.create("one")
    issued = await stores.keys.issue("one", new_key(key))
    assert (await stores.verify(key)).sequence == 1
    await stores.keys.revoke(issued.key_id)
    assert (await stores.verify(key)).sequence == 2


async def test_sequence_of_its_snapshot(stores):
    """The sequence is the one of the snapshot in which the key was read, never a later one."""
    key = api_key.generate(RANDOM)
    await stores.accounts.create("one")
    await stores.keys.issue("one", new_key(key))

    async def change():
        for _ in range(30):
            await stores.accounts.approve("one")
            await stores.accounts.suspend("one")

    changing = asyncio.create_task(change())
    answers = []
    while not changing.done():
        answers += await asyncio.gather(*[stores.verify(key) for _ in range(4)])
    await changing
    events = await stores.ask("select sequence, account_state from key_events")
    states = {row["sequence"]: row["account_state"] for row in events}
    assert len({answer.sequence for answer in answers}) > 2
    for answer in answers:
        assert answer.account_state == states[answer.sequence]


async def test_many_at_once(stores):
    """Among two thousand unknown keys at once each known one is found, with few connections."""
    await stores.accounts.create("one")
    keys = [api_key.generate(RANDOM) for _ in range(10)]
    issued = [(await stores.keys.issue("one", new_key(key))).key_id for key in keys]
    unknown = [stores.verify(api_key.generate(RANDOM)) for _ in range(2000)]
    known = [stores.verify(key) for key in keys]
    stores.lookup._deadline_s = 30
    answers = await asyncio.gather(*unknown, *known)
    assert answers[:2000] == [None] * 2000
    assert [answer.key_id for answer in answers[2000:]] == issued
    (row,) = await stores.ask(
        "select count(*) from pg_stat_activity where application_name = 'fastrun-auth'"
        " and datname = current_database() and pid <> pg_backend_pid()"
    )
    assert row["count"] <= stores.database.pool_size


async def test_same_key_at_once(stores):
    """Callers that ask for the same key at once share one answer."""
    key = api_key.generate(RANDOM)
    await stores.accounts.create("one")
    await stores.keys.issue("one", new_key(key))
    answers = await asyncio.gather(*[stores.verify(key) for _ in range(50)])
    assert len({answer.key_id for answer in answers}) == 1


async def test_abandoned(stores):
    """A caller that leaves takes nobody else's answer along."""
    key = api_key.generate(RANDOM)
    await stores.accounts.create("one")
    issued = await stores.keys.issue("one", new_key(key))
    leaving, staying = (asyncio.create_task(stores.verify(key)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).key_id == issued.key_id
