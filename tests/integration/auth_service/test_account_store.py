import asyncio

import pytest
from auth_stores import new_key

from auth_service.accounts import AccountState, KeyState
from auth_service.errors import AlreadyExistsError, InvalidFieldError, NotFoundError, StateError
from auth_service.limits import NO_LIMITS, Limits
from fastrun.service import api_key


async def test_accounts(stores):
    """Accounts are made pending, found by id and name, and listed newest first."""
    accounts = stores.accounts
    one, two = [await accounts.create(name) for name in ("one", " two ")]
    assert (two.name, two.state) == ("two", AccountState.PENDING)
    assert await accounts.list() == [two, one]
    approved = await accounts.approve(one.account_id)
    assert approved == await accounts.approve("one")
    assert approved.state == AccountState.APPROVED
    assert await accounts.list(AccountState.APPROVED) == [approved]
    assert await accounts.list(AccountState.PENDING) == [two]
    suspended = await accounts.suspend("one")
    assert suspended.state == AccountState.SUSPENDED
    assert await accounts.suspend("one") == suspended
    assert await accounts.find("one") == suspended


async def test_refused_changes(stores):
    """A pending account is not suspended, and what does not exist is not changed."""
    accounts = stores.accounts
    await accounts.create("one")
    with pytest.raises(StateError, match="pending"):
        await accounts.suspend("one")
    for change in (accounts.approve, accounts.suspend, accounts.close, accounts.find):
        with pytest.raises(NotFoundError, match="account 'nobody' does not exist"):
            await change("nobody")
    with pytest.raises(NotFoundError):
        await accounts.approve("zero\0byte")


async def test_name_taken(stores):
    """A name belongs to one account, also when many ask for it at once."""
    made = await asyncio.gather(
        *[stores.accounts.create("one") for _ in range(8)], return_exceptions=True
    )
    refused = [result for result in made if isinstance(result, AlreadyExistsError)]
    assert len(refused) == 7
    assert "'one' is taken" in str(refused[0])
    assert len(await stores.accounts.list()) == 1


async def test_close(stores):
    """A closed account and its keys have ended for good, and its name stays taken."""
    await stores.accounts.create("one")
    await stores.accounts.approve("one")
    keys = [api_key.generate(stores.accounts._random) for _ in range(2)]
    issued = [await stores.keys.issue("one", new_key(key)) for key in keys]
    closed = await stores.accounts.close("one")
    assert closed.state == AccountState.CLOSED
    assert await stores.accounts.close("one") == closed
    for key in keys:
        identity = await stores.verify(key)
        assert identity.account_state == AccountState.CLOSED
        assert identity.key_state == KeyState.REVOKED
    for refused in (
        stores.accounts.approve("one"),
        stores.accounts.suspend("one"),
        stores.accounts.set_limits("one", Limits(requests_per_minute=1)),
        stores.keys.issue("one", new_key(api_key.generate(stores.accounts._random))),
        stores.keys.set_limits(issued[0].key_id, Limits(requests_per_minute=1)),
        stores.keys.rotate(issued[0].key_id, new_key(api_key.generate(stores.accounts._random)), 0),
    ):
        with pytest.raises(StateError):
            await refused
    with pytest.raises(AlreadyExistsError):
        await stores.accounts.create("one")


async def test_limits(stores):
    """Limits are replaced as a whole, and told with the account."""
    await stores.accounts.create("one")
    limits = Limits(requests_per_minute=60, tokens_per_month=10**12)
    assert await stores.accounts.set_limits("one", limits) == limits
    assert (await stores.accounts.find("one")).limits == limits
    assert await stores.accounts.set_limits("one", Limits(concurrent_requests=3))
    (listed,) = await stores.accounts.list()
    assert listed.limits == Limits(concurrent_requests=3)
    assert await stores.accounts.set_limits("one", NO_LIMITS) == NO_LIMITS
    assert (await stores.accounts.find("one")).limits == NO_LIMITS
    with pytest.raises(InvalidFieldError, match="tokens_per_minute must be from 1"):
        await stores.accounts.set_limits("one", Limits(tokens_per_minute=0))
