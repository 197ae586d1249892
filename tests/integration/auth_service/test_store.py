import asyncio
from random import Random

import asyncpg
import pytest

from auth_service import queries
from auth_service.accounts import AccountState, KeyState
from auth_service.errors import AlreadyExistsError, InvalidFieldError, NotFoundError, StateError
from auth_service.keys import Pepper, Peppers
from auth_service.store import Store
from fastrun.service import api_key

RANDOM = Random(2)


def fields(key, **kwargs):
    """What a client that has made a key tells of it."""
    return {
        "name": "laptop",
        "key_sha256": api_key.key_sha256(key),
        "prefix": api_key.display_prefix(key),
        "expires_at": None,
        **kwargs,
    }


@pytest.fixture
def key():
    return api_key.generate(RANDOM)


async def test_accounts(store):
    """Accounts are made pending, found by id and name, and listed newest first."""
    one, two = [await store.create_account(name) for name in ("one", " two ")]
    assert (two.name, two.state) == ("two", AccountState.PENDING)
    assert await store.list_accounts() == [two, one]
    approved = await store.approve(one.account_id)
    assert approved == await store.approve("one")
    assert approved.state == AccountState.APPROVED
    assert await store.list_accounts(AccountState.APPROVED) == [approved]
    assert await store.list_accounts(AccountState.PENDING) == [two]
    suspended = await store.suspend("one")
    assert suspended.state == AccountState.SUSPENDED
    assert await store.suspend("one") == suspended


async def test_refused_changes(store):
    """A pending account is not suspended, and what does not exist is not changed."""
    await store.create_account("one")
    with pytest.raises(StateError, match="pending"):
        await store.suspend("one")
    for change in (store.approve, store.suspend, store.list_keys):
        with pytest.raises(NotFoundError, match="account 'nobody' does not exist"):
            await change("nobody")
    with pytest.raises(NotFoundError):
        await store.approve("zero\0byte")


async def test_name_taken(store):
    """A name belongs to one account, also when many ask for it at once."""
    made = await asyncio.gather(
        *[store.create_account("one") for _ in range(8)], return_exceptions=True
    )
    refused = [result for result in made if isinstance(result, AlreadyExistsError)]
    assert len(refused) == 7
    assert "'one' is taken" in str(refused[0])
    assert len(await store.list_accounts()) == 1


async def test_verify(store, key):
    """A key speaks for its account as soon as it is issued, in whatever state both are."""
    account = await store.create_account("one")
    assert await store.verify(api_key.key_sha256(key)) is None
    issued = await store.issue_key("one", **fields(key, expires_at=2e9))
    identity = await store.verify(api_key.key_sha256(key))
    assert (identity.account_id, identity.key_id) == (account.account_id, issued.key_id)
    assert (identity.account_state, identity.key_state) == (AccountState.PENDING, KeyState.ACTIVE)
    assert identity.expires_at == 2e9
    await store.approve("one")
    await store.revoke_key(issued.key_id)
    identity = await store.verify(api_key.key_sha256(key))
    assert (identity.account_state, identity.key_state) == (AccountState.APPROVED, KeyState.REVOKED)


async def test_salts(store):
    """All keys of an account share its salt, and no two accounts do."""
    salts = []
    for name in ("one", "two"):
        await store.create_account(name)
        for _ in range(2):
            key = api_key.generate(RANDOM)
            await store.issue_key(name, **fields(key))
            salts.append((await store.verify(api_key.key_sha256(key))).cache_salt)
    assert salts[0] == salts[1] != salts[2] == salts[3]


async def test_issue_again(store, key):
    """Issuing the same key once more, even at once, gives the same answer."""
    await store.create_account("one")
    issued = await asyncio.gather(*[store.issue_key("one", **fields(key)) for _ in range(8)])
    assert len(set(issued)) == 1
    assert await store.list_keys() == [issued[0]]


async def test_issue_for_another(store, key):
    """A key of one account is not issued to another."""
    for name in ("one", "two"):
        await store.create_account(name)
    await store.issue_key("one", **fields(key))
    with pytest.raises(AlreadyExistsError, match="another account"):
        await store.issue_key("two", **fields(key))


async def test_issue_refused(store, key):
    """A key is issued only to an account, and with values that a key can have."""
    with pytest.raises(NotFoundError, match="account 'nobody' does not exist"):
        await store.issue_key("nobody", **fields(key))
    await store.create_account("one")
    for wrong in ({"name": "x" * 101}, {"key_sha256": b""}, {"prefix": key}, {"expires_at": -1.0}):
        with pytest.raises(InvalidFieldError):
            await store.issue_key("one", **fields(key, **wrong))


async def test_revoke(store, key):
    """Revoking is for good, and can be repeated."""
    await store.create_account("one")
    issued = await store.issue_key("one", **fields(key))
    revoked = await store.revoke_key(issued.key_id)
    assert revoked.state == KeyState.REVOKED
    assert await store.revoke_key(issued.key_id) == revoked
    assert await store.issue_key("one", **fields(key)) == revoked
    with pytest.raises(NotFoundError, match="key 'key_none' does not exist"):
        await store.revoke_key("key_none")


async def test_list_keys(store):
    """Keys are listed newest first, of one account or of all."""
    issued = {}
    for name in ("one", "two"):
        await store.create_account(name)
        issued[name] = [
            await store.issue_key(name, **fields(api_key.generate(RANDOM))) for _ in range(2)
        ][::-1]
    assert await store.list_keys("one") == issued["one"]
    assert await store.list_keys("") == issued["two"] + issued["one"]


async def test_rotated_pepper(store, database, key):
    """After the pepper was rotated, keys kept with the previous one are known, and not doubled."""
    await store.create_account("one")
    issued = await store.issue_key("one", **fields(key))
    previous = store._peppers.current
    rotated = await Store.open(database, Peppers(Pepper(2, b"n" * 32), [previous]), Random(3))
    try:
        assert (await rotated.verify(api_key.key_sha256(key))).key_id == issued.key_id
        assert await rotated.issue_key("one", **fields(key)) == issued
    finally:
        await rotated.close()


async def test_nothing_to_steal(store, database, key):
    """The database holds neither a key nor its SHA-256."""
    await store.create_account("one")
    await store.issue_key("one", **fields(key))
    connection = await asyncpg.connect(database)
    rows = await connection.fetch("select keys::text as text from keys")
    await connection.close()
    assert api_key.key_sha256(key).hex() not in rows[0]["text"]
    assert key not in rows[0]["text"]


async def test_lookup_uses_its_index(store, database):
    """The hot query reads keys by their index, whatever the planner thinks of small tables."""
    connection = await asyncpg.connect(database)
    try:
        await connection.execute("set enable_seqscan = off")
        sql = f"explain {queries.load()['find_identity']}"
        plan = "\n".join(row[0] for row in await connection.fetch(sql, [b"0" * 32, b"1" * 32]))
    finally:
        await connection.close()
    assert "keys_digest_key" in plan
    assert "accounts_pkey" in plan
