"""Keys at the edge: who gets in, who is remembered, and what happens when nobody can be asked."""

import asyncio
import random
import time

import pytest

from fastrun.service import api_key
from fastrun.v1.auth_pb2 import AccountState, KeyState

MODELS = "/v1/models"


async def status(stack, authorization):
    headers = {"authorization": authorization} if authorization is not None else {}
    stack.client.headers.pop("authorization", None)
    response = await stack.client.get(MODELS, headers=headers)
    if response.status_code != 200:
        assert "fr_" not in response.text
    return response.status_code, response


@pytest.mark.parametrize(
    "form",
    [None, "", "Bearer", "{key}", "Basic {key}", 'Bearer "{key}"', "Bearer {key}x"],
)
async def test_malformed(start, form):
    """What is not one well-formed bearer key is a 401 without a question to the auth service."""
    async with start() as stack:
        code, response = await status(stack, form and form.format(key=stack.key))
        assert code == 401
        assert response.json()["error"]["message"] == "invalid or missing API key"
        assert response.json()["error"]["type"] == "authentication_error"
        assert stack.auth.asked == 0


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
async def test_scheme_in_any_case(start, scheme):
    """The scheme's case does not matter."""
    async with start() as stack:
        assert (await status(stack, f"{scheme} {stack.key}"))[0] == 200


async def test_several(start):
    """Which of two keys counts is not for the edge to guess."""
    async with start() as stack:
        key = f"Bearer {stack.key}"
        for headers in (
            [("Authorization", key)] * 2,
            [("Authorization", key), ("authorization", "")],
        ):
            response = await stack.client.get(MODELS, headers=headers)
            assert response.status_code == 400
            message = "send one Authorization header, not several"
            assert response.json()["error"]["message"] == message


@pytest.mark.parametrize(
    "fields",
    [
        {"account_state": AccountState.ACCOUNT_STATE_PENDING},
        {"account_state": AccountState.ACCOUNT_STATE_SUSPENDED},
        {"key_state": KeyState.KEY_STATE_REVOKED},
        {"expires_at": 1.0},
    ],
    ids=["pending", "suspended", "revoked", "expired"],
)
async def test_known_keys_that_may_not_call(start, fields):
    """They are a 401, and are remembered like any known key."""
    async with start() as stack:
        key = stack.auth.issue(**fields)
        for _ in range(3):
            assert (await status(stack, f"Bearer {key}"))[0] == 401
        assert stack.auth.asked == 1


async def test_expiry_is_checked_each_time(start):
    """A key that expires while it is remembered stops to work at that moment."""
    async with start() as stack:
        key = stack.auth.issue(expires_at=time.time() + 0.5)
        assert (await status(stack, f"Bearer {key}"))[0] == 200
        async with asyncio.timeout(5):
            while (await status(stack, f"Bearer {key}"))[0] != 401:
                await asyncio.sleep(0.02)
        assert stack.auth.asked == 1


async def test_unknown_key_is_asked_once(start):
    """An unknown key is a 401, and for a while nobody asks about it again."""
    async with start() as stack:
        key = api_key.generate(random.SystemRandom())
        for _ in range(3):
            assert (await status(stack, f"Bearer {key}"))[0] == 401
        assert stack.auth.asked == 1


async def test_many_at_once_ask_once(start):
    """A hundred requests with a key that nobody remembers cost one question."""
    async with start() as stack:
        stack.auth.frozen = asyncio.Event()
        asking = [asyncio.create_task(status(stack, f"Bearer {stack.key}")) for _ in range(100)]
        async with asyncio.timeout(5):
            while stack.auth.asked == 0:
                await asyncio.sleep(0.005)
        stack.auth.frozen.set()
        assert {(await each)[0] for each in asking} == {200}
        assert stack.auth.asked == 1


async def test_auth_down(start, until):
    """A remembered key goes on working, an unknown one is a 503 with Retry-After, never a 401."""
    async with start(key_fresh_s=0, auth_retry_s=0) as stack:
        assert (await status(stack, f"Bearer {stack.key}"))[0] == 200
        await stack.auth.go_down()
        await until(lambda: not stack.edge._keys.is_watched)
        assert (await status(stack, f"Bearer {stack.key}"))[0] == 200
        code, response = await status(stack, f"Bearer {stack.auth.issue()}")
        assert code == 503
        assert response.json()["error"]["message"] == "API keys cannot be checked right now"
        assert int(response.headers["retry-after"]) >= 1
        stack.auth.is_down = False
        assert (await status(stack, f"Bearer {stack.auth.issue()}"))[0] == 200


async def test_auth_frozen(start, until):
    """A question that is not answered in time is an outage too, and only the first waits for it."""
    async with start(key_fresh_s=0, verify_timeout_s=0.2, auth_retry_s=60) as stack:
        assert (await status(stack, f"Bearer {stack.key}"))[0] == 200
        await stack.auth.cut_watch()
        await until(lambda: not stack.edge._keys.is_watched)
        stack.auth.frozen = asyncio.Event()
        assert (await status(stack, f"Bearer {stack.auth.issue()}"))[0] == 503
        asked = stack.auth.asked
        assert (await status(stack, f"Bearer {stack.key}"))[0] == 200
        assert (await status(stack, f"Bearer {stack.auth.issue()}"))[0] == 503
        assert stack.auth.asked == asked
        stack.auth.frozen.set()


async def test_no_grace(start, until):
    """With a grace of 0 nobody is let in unasked."""
    async with start(key_fresh_s=0, key_grace_s=0) as stack:
        assert (await status(stack, f"Bearer {stack.key}"))[0] == 200
        await stack.auth.go_down()
        await until(lambda: not stack.edge._keys.is_watched)
        assert (await status(stack, f"Bearer {stack.key}"))[0] == 503
