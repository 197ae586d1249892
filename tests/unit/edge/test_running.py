"""Whose requests end when a key is revoked."""

import asyncio
from types import SimpleNamespace

import pytest

from edge.caller import Caller
from edge.errors import Refusal
from edge.running import Running
from fastrun.v1.auth_pb2 import VerifyKeyResponse


class Cache:
    """As much of a cache as is asked."""

    def __init__(self):
        self.open = {}

    def subscribe(self, on_closed):
        self.close = on_closed

    def is_open_to(self, caller):
        return self.open.get(caller.key_id)


def caller(account_id="a", key_id="k"):
    return Caller.of(VerifyKeyResponse(account_id=account_id, key_id=key_id))


async def held(running, who, *, has_started):
    """Hold until told otherwise; returns how it ended."""
    try:
        async with running.hold(who, SimpleNamespace(has_started=has_started)):
            await asyncio.sleep(3600)
    except Refusal as refusal:
        return refusal.status


async def ended(cache, running, close, requests):
    tasks = [
        asyncio.create_task(held(running, who, has_started=started)) for who, started in requests
    ]
    await asyncio.sleep(0)
    for each in close:
        cache.close(*each)
    for _ in range(5):
        await asyncio.sleep(0)
    found = [task.done() for task in tasks]
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [result == 401 for result in results] == found
    assert not running._by_account
    return found


@pytest.mark.parametrize(
    ("close", "expected"),
    [
        ([("a", "k")], [True, False, False]),
        ([("a", "")], [True, True, False]),
        ([("b", "k")], [False, False, False]),
        ([("a", "k"), ("a", ""), ("b", "")], [True, True, True]),
    ],
)
@pytest.mark.parametrize("abort", [False, True])
async def test_whose(close, expected, abort):
    """Those of the key, or of all keys of the account; once, however often it is told."""
    cache = Cache()
    running = Running(cache, abort=abort)
    callers = [caller(), caller(key_id="o"), caller("b", "p")]
    requests = [(each, abort) for each in callers]
    assert await ended(cache, running, close, requests) == expected


async def test_what_has_begun():
    """What a worker has begun goes on, unless it is to be aborted."""
    for abort in (False, True):
        cache = Cache()
        running = Running(cache, abort=abort)
        requests = [(caller(), True), (caller(), False)]
        assert await ended(cache, running, [("a", "k")], requests) == [abort, True]


async def test_old_news():
    """What is told of a key that is known to be open again ends nothing."""
    cache = Cache()
    cache.open["k"] = True
    running = Running(cache, abort=True)
    assert await ended(cache, running, [("a", "")], [(caller(), False)]) == [False]


async def test_closed_before():
    """Who may not call any more by the time the request is read is refused."""
    cache = Cache()
    cache.open["k"] = False
    running = Running(cache, abort=False)
    assert await held(running, caller(), has_started=False) == 401


async def test_other_timeouts():
    """What takes too long inside is told as that."""
    running = Running(Cache(), abort=True)
    with pytest.raises(TimeoutError):
        async with running.hold(caller(), SimpleNamespace(has_started=True)):
            raise TimeoutError
