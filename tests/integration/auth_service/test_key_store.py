import asyncio
import time
from random import Random

import pytest
from auth_stores import PEPPERS, new_key, open_stores

from auth_service.accounts import KeyState
from auth_service.errors import AlreadyExistsError, InvalidFieldError, NotFoundError, StateError
from auth_service.keys import Pepper, Peppers
from auth_service.limits import Limits
from fastrun.service import api_key

RANDOM = Random(2)


@pytest.fixture
def key():
    return api_key.generate(RANDOM)


@pytest.fixture
async def account(stores):
    return await stores.accounts.create("one")


async def test_issue_again(stores, account, key):
    """Issuing the same key once more, even at once, gives the same answer."""
    issued = await asyncio.gather(*[stores.keys.issue("one", new_key(key)) for _ in range(8)])
    assert all(each == issued[0] for each in issued)
    assert issued[0].account_id == account.account_id
    assert await stores.keys.list() == [issued[0]]


async def test_issue_for_another(stores, account, key):
    """A key of one account is not issued to another, also when both ask at once."""
    await stores.accounts.create("two")
    answers = await asyncio.gather(
        *[stores.keys.issue(name, new_key(key)) for name in ("one", "two")],
        return_exceptions=True,
    )
    (refused,) = [each for each in answers if isinstance(each, AlreadyExistsError)]
    assert "another account" in str(refused)
    assert len(await stores.keys.list()) == 1


async def test_issue_refused(stores, account, key):
    """A key is issued only to an account, and with values that a key can have."""
    with pytest.raises(NotFoundError, match="account 'nobody' does not exist"):
        await stores.keys.issue("nobody", new_key(key))
    for wrong in (
        {"name": "x" * 101},
        {"key_sha256": b""},
        {"prefix": key},
        {"expires_at": -1.0},
        {"models": ("",)},
    ):
        with pytest.raises(InvalidFieldError):
            await stores.keys.issue("one", new_key(key, **wrong))


async def test_models(stores, account, key):
    """A key may name the models that it may use, each once; they are told with it."""
    issued = await stores.keys.issue("one", new_key(key, models=("b", "a", "b")))
    assert issued.models == ("b", "a")
    assert (await stores.verify(key)).models == ("b", "a")


async def test_revoke(stores, account, key):
    """Revoking is for good, and can be repeated."""
    issued = await stores.keys.issue("one", new_key(key))
    revoked = await stores.keys.revoke(issued.key_id)
    assert revoked.state == KeyState.REVOKED
    assert await stores.keys.revoke(issued.key_id) == revoked
    assert await stores.keys.issue("one", new_key(key)) == revoked
    with pytest.raises(NotFoundError, match="key 'key_none' does not exist"):
        await stores.keys.revoke("key_none")


async def test_limits(stores, account, key):
    """A key has limits of its own beside its account's."""
    issued = await stores.keys.issue("one", new_key(key))
    mine, ours = Limits(tokens_per_minute=5), Limits(tokens_per_minute=7)
    await stores.keys.set_limits(issued.key_id, mine)
    await stores.accounts.set_limits("one", ours)
    identity = await stores.verify(key)
    assert (identity.key_limits, identity.account_limits) == (mine, ours)
    (listed,) = await stores.keys.list(account.account_id)
    assert listed.limits == mine
    await stores.keys.revoke(issued.key_id)
    with pytest.raises(StateError, match="revoked"):
        await stores.keys.set_limits(issued.key_id, ours)


async def test_rotate(stores, account, key):
    """The new key is as the old one was, which goes on for the overlap; a repeat changes nothing."""
    expires_at = time.time() + 10_000
    old = await stores.keys.issue(
        "one", new_key(key, expires_at=expires_at, models=("a",), limits=Limits(3))
    )
    fresh = api_key.generate(RANDOM)
    before = time.time()
    new = await stores.keys.rotate(old.key_id, new_key(fresh, name="ignored"), 60)
    assert (new.name, new.models, new.limits) == ("laptop", ("a",), Limits(3))
    assert new.expires_at == pytest.approx(expires_at, abs=0.001)
    assert await stores.keys.rotate(old.key_id, new_key(fresh), 60) == new
    identity = await stores.verify(key)
    assert identity.key_state == KeyState.ACTIVE
    assert before + 59 < identity.expires_at < time.time() + 61
    with pytest.raises(StateError, match=f"revoke it, or rotate {new.key_id}"):
        await stores.keys.rotate(old.key_id, new_key(api_key.generate(RANDOM)), 60)


async def test_rotate_at_once(stores, account, key):
    """Without an overlap the old key ends with the rotation."""
    old = await stores.keys.issue("one", new_key(key))
    fresh = api_key.generate(RANDOM)
    new = await stores.keys.rotate(old.key_id, new_key(fresh), 0)
    assert (await stores.verify(key)).key_state == KeyState.REVOKED
    assert (await stores.verify(fresh)).key_id == new.key_id
    assert new.expires_at is None


async def test_overlap_never_prolongs(stores, account, key):
    """An overlap beyond the old key's own expiry does not prolong it."""
    expires_at = time.time() + 30
    old = await stores.keys.issue("one", new_key(key, expires_at=expires_at))
    await stores.keys.rotate(old.key_id, new_key(api_key.generate(RANDOM)), 3600)
    assert (await stores.verify(key)).expires_at == pytest.approx(expires_at, abs=0.001)


async def test_rotate_refused(stores, account, key):
    """What has ended is not rotated, and a key that is registered already replaces no other."""
    old = await stores.keys.issue("one", new_key(key))
    other = api_key.generate(RANDOM)
    await stores.keys.issue("one", new_key(other))
    with pytest.raises(AlreadyExistsError):
        await stores.keys.rotate(old.key_id, new_key(other), 0)
    with pytest.raises(NotFoundError):
        await stores.keys.rotate("key_none", new_key(api_key.generate(RANDOM)), 0)
    with pytest.raises(InvalidFieldError, match="overlap_s"):
        await stores.keys.rotate(old.key_id, new_key(api_key.generate(RANDOM)), 1e9)
    await stores.keys.revoke(old.key_id)
    with pytest.raises(StateError, match="revoked"):
        await stores.keys.rotate(old.key_id, new_key(api_key.generate(RANDOM)), 0)
    expired = api_key.generate(RANDOM)
    past = await stores.keys.issue("one", new_key(expired, expires_at=1.0))
    with pytest.raises(StateError, match="expired"):
        await stores.keys.rotate(past.key_id, new_key(api_key.generate(RANDOM)), 0)


async def test_list(stores, account):
    """Keys are listed newest first, of one account or of all."""
    two = await stores.accounts.create("two")
    issued = {}
    for each in (account, two):
        issued[each.account_id] = [
            await stores.keys.issue(each.name, new_key(api_key.generate(RANDOM))) for _ in range(2)
        ][::-1]
    assert await stores.keys.list(account.account_id) == issued[account.account_id]
    assert await stores.keys.list() == issued[two.account_id] + issued[account.account_id]


async def test_last_used(stores, account, key):
    """The time of the last use is kept to the minute, and is told to nobody as a change."""
    issued = await stores.keys.issue("one", new_key(key))
    assert issued.last_used_at is None
    events = await stores.ask("select * from key_events")
    sql = stores.database.sql["note_keys_used"]
    await stores.ask(sql, [issued.key_id, issued.key_id, "key_none"], [630.0, 601.0, 1.0])
    await stores.ask(sql, [issued.key_id], [90.0])
    (listed,) = await stores.keys.list()
    assert listed.last_used_at == 600
    assert await stores.ask("select * from key_events") == events


async def test_last_used_waits_for_nobody(stores, account, key):
    """Noting when keys were used leaves out a key that is being changed."""
    issued = await stores.keys.issue("one", new_key(key))
    sql = stores.database.sql["note_keys_used"]

    async def work(connection):
        await connection.fetch(stores.database.sql["lock_key"], issued.key_id)
        await stores.ask(sql, [issued.key_id], [600.0])

    await stores.database.in_transaction(work)
    assert (await stores.keys.list())[0].last_used_at is None


async def test_rotated_pepper(stores, database, account, key):
    """After the pepper was rotated, keys kept with the previous one are known, and not doubled."""
    issued = await stores.keys.issue("one", new_key(key))
    peppers = Peppers(Pepper(2, b"n" * 32), [PEPPERS.current])
    rotated = await open_stores(database, random=Random(3), peppers=peppers)
    try:
        assert (await rotated.verify(key)).key_id == issued.key_id
        assert await rotated.keys.issue("one", new_key(key)) == issued
    finally:
        await rotated.close()


async def test_nothing_to_steal(stores, account, key):
    """The database holds neither a key nor its SHA-256, in its keys, its audit or its events."""
    await stores.keys.issue("one", new_key(key))
    for table in ("keys", "audit", "key_events"):
        rows = await stores.ask(f"select {table}::text as text from {table}")
        assert rows
        for row in rows:
            assert api_key.key_sha256(key).hex() not in row["text"]
            assert key not in row["text"]
