import json
from random import Random

import asyncpg
import pytest
from auth_stores import ACTOR, new_key

from auth_service.errors import AlreadyExistsError, InvalidFieldError, StateError
from auth_service.limits import Limits
from fastrun.service import api_key

RANDOM = Random(4)


async def told(stores, account_id=None):
    """Each record's action, key and change, oldest first."""
    records = await stores.audit.list(account_id)
    return [(each.action, each.key_id, json.loads(each.change_json)) for each in records[::-1]]


async def test_every_change(stores):
    """Every change leaves one record of what was and what became; a repeat leaves none."""
    accounts, keys = stores.accounts, stores.keys
    account = await accounts.create("one")
    key, fresh = api_key.generate(RANDOM), api_key.generate(RANDOM)
    for _ in range(2):
        await accounts.approve("one")
    for _ in range(2):
        await accounts.set_limits("one", Limits(requests_per_minute=5))
    for _ in range(2):
        old = await keys.issue("one", new_key(key, models=("m",)))
    for _ in range(2):
        await keys.set_limits(old.key_id, Limits(tokens_per_minute=9))
    for _ in range(2):
        new = await keys.rotate(old.key_id, new_key(fresh), 0)
    for _ in range(2):
        await keys.revoke(new.key_id)
    for _ in range(2):
        await accounts.suspend("one")
    for _ in range(2):
        await accounts.close("one")
    issued = {
        "name": {"from": None, "to": "laptop"},
        "models": {"from": None, "to": ["m"]},
    }
    assert await told(stores) == [
        (
            "account_created",
            "",
            {"name": {"from": None, "to": "one"}, "state": {"from": None, "to": "pending"}},
        ),
        ("account_approved", "", {"state": {"from": "pending", "to": "approved"}}),
        ("account_limited", "", {"requests_per_minute": {"from": None, "to": 5}}),
        ("key_issued", old.key_id, issued | {"prefix": {"from": None, "to": old.prefix}}),
        ("key_limited", old.key_id, {"tokens_per_minute": {"from": None, "to": 9}}),
        (
            "key_issued",
            new.key_id,
            issued
            | {"prefix": {"from": None, "to": new.prefix}}
            | {"tokens_per_minute": {"from": None, "to": 9}},
        ),
        (
            "key_rotated",
            old.key_id,
            {
                "replaced_by": {"from": None, "to": new.key_id},
                "state": {"from": "active", "to": "revoked"},
            },
        ),
        ("key_revoked", new.key_id, {"state": {"from": "active", "to": "revoked"}}),
        ("account_suspended", "", {"state": {"from": "approved", "to": "suspended"}}),
        (
            "account_closed",
            "",
            {
                "state": {"from": "suspended", "to": "closed"},
                "revoked_keys": {"from": None, "to": []},
            },
        ),
    ]
    records = await stores.audit.list()
    assert {record.actor for record in records} == {ACTOR}
    assert {record.account_id for record in records} == {account.account_id}


async def test_list(stores):
    """Records are listed newest first, of an account or of all, and at most so many."""
    one = await stores.accounts.create("one")
    await stores.accounts.create("two")
    await stores.accounts.approve("one")
    of_one = await stores.audit.list(one.account_id)
    assert [record.action for record in of_one] == ["account_approved", "account_created"]
    every = await stores.audit.list(limit=2)
    assert [record.action for record in every] == ["account_approved", "account_created"]
    assert every[0].number > every[1].number
    with pytest.raises(InvalidFieldError, match="limit"):
        await stores.audit.list(limit=10_001)


async def test_refused_changes_leave_none(stores):
    """A change that is refused leaves no record."""
    await stores.accounts.create("one")
    before = await stores.audit.list()
    with pytest.raises(StateError):
        await stores.accounts.suspend("one")
    with pytest.raises(AlreadyExistsError):
        await stores.accounts.create("one")
    assert await stores.audit.list() == before


@pytest.mark.parametrize("table", ["audit", "key_events"])
async def test_all_or_nothing(stores, table):
    """If the record or the event cannot be written, the change is not made either."""
    key = api_key.generate(RANDOM)
    await stores.accounts.create("one")
    issued = await stores.keys.issue("one", new_key(key))
    before = await stores.audit.list()
    await stores.ask(f"alter table {table} add constraint broken check (false) not valid")
    for change in (
        stores.accounts.approve("one"),
        stores.accounts.close("one"),
        stores.accounts.set_limits("one", Limits(1)),
        stores.keys.revoke(issued.key_id),
        stores.keys.set_limits(issued.key_id, Limits(1)),
        stores.keys.rotate(issued.key_id, new_key(api_key.generate(RANDOM)), 0),
        stores.keys.issue("one", new_key(api_key.generate(RANDOM))),
    ):
        with pytest.raises(asyncpg.CheckViolationError, match="broken"):
            await change
    await stores.ask(f"alter table {table} drop constraint broken")
    assert await stores.audit.list() == before
    assert await stores.keys.list() == [issued]
    (account,) = await stores.accounts.list()
    assert account.state == "pending"
    assert (await stores.verify(key)).sequence == 1


@pytest.mark.parametrize(
    "statement",
    [
        "update audit set actor = 'nobody'",
        "delete from audit",
        "truncate audit",
        "update audit set number = default where false",
        "with gone as (delete from audit returning 1) select count(*) from gone",
    ],
)
@pytest.mark.parametrize("replication_role", ["origin", "replica"])
async def test_append_only(stores, database, statement, replication_role):
    """Nobody changes or deletes a record, not even the owner of the table and superuser."""
    await stores.accounts.create("one")
    before = await stores.audit.list()
    connection = await asyncpg.connect(database)
    try:
        await connection.execute(f"set session_replication_role = {replication_role}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="append-only"):
            await connection.execute(statement)
    finally:
        await connection.close()
    assert await stores.audit.list() == before
