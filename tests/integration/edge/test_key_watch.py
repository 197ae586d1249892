"""The edge watches what changes about keys, and does without where it cannot."""

import asyncio
import random

import pytest

from fastrun.service import api_key
from fastrun.v1.auth_pb2 import AccountState, KeyState

MODELS, CHAT = "/v1/models", "/v1/chat/completions"
PENDING = {"account_state": AccountState.ACCOUNT_STATE_PENDING}
APPROVED = {"account_state": AccountState.ACCOUNT_STATE_APPROVED}
SUSPENDED = {"account_state": AccountState.ACCOUNT_STATE_SUSPENDED}
REVOKED = {"key_state": KeyState.KEY_STATE_REVOKED}


async def status(stack, key=None):
    headers = {"authorization": f"Bearer {key or stack.key}"}
    return (await stack.client.get(MODELS, headers=headers)).status_code


async def becomes(stack, code, key=None):
    async with asyncio.timeout(5):
        while await status(stack, key) != code:
            await asyncio.sleep(0.005)


async def watched_to_the_end(stack, until):
    await until(lambda: stack.edge._keys.sequence == len(stack.auth.events))


@pytest.mark.parametrize("change", [REVOKED, SUSPENDED], ids=["revoked", "suspended"])
async def test_closed(start, until, change):
    """A key is refused as soon as the event has come, also when nobody can be asked."""
    async with start() as stack:
        assert await status(stack) == 200
        stack.auth.is_down = True
        await stack.auth.change(stack.key, **change)
        await watched_to_the_end(stack, until)
        assert await status(stack) == 401


async def test_approved(start, until):
    """A pending key passes as soon as the event of its approval has come."""
    async with start() as stack:
        key = stack.auth.issue(**PENDING)
        assert await status(stack, key) == 401
        await stack.auth.change(key, **APPROVED)
        await watched_to_the_end(stack, until)
        assert await status(stack, key) == 200


async def test_issued(start, until):
    """A key that was unknown a moment ago passes as soon as the event of its issue has come."""
    async with start() as stack:
        key = api_key.generate(random.SystemRandom())
        assert await status(stack, key) == 401
        other = stack.auth.issue()
        stack.auth.known[api_key.key_sha256(key)] = stack.auth.known[api_key.key_sha256(other)]
        await stack.auth.change(key)
        await watched_to_the_end(stack, until)
        assert await status(stack, key) == 200


async def test_revoked_while_answering(start, until):
    """A revoke between the read and the reply of VerifyKey is not undone by that reply."""
    async with start() as stack:
        reading, told = asyncio.Event(), asyncio.Event()

        async def hold():
            reading.set()
            await told.wait()

        stack.auth.on_read = hold
        asking = asyncio.create_task(status(stack))
        await reading.wait()
        await stack.auth.change(stack.key, **REVOKED)
        await watched_to_the_end(stack, until)
        told.set()
        assert await asking == 401
        assert stack.auth.asked == 2


async def test_watch_goes_on(start, until):
    """A watch that was cut goes on where it ended, and what happened meanwhile counts."""
    async with start() as stack:
        assert await status(stack) == 200
        await stack.auth.change(stack.key)
        await watched_to_the_end(stack, until)
        assert await status(stack) == 200
        await stack.auth.go_down()
        await until(lambda: not stack.edge._keys.is_watched)
        await stack.auth.change(stack.key, **REVOKED)
        assert await status(stack) == 200  # nobody can know
        stack.auth.watchable.set()
        await watched_to_the_end(stack, until)
        assert stack.auth.watched_after == [0, 1]
        assert await status(stack) == 401


async def test_not_watched(start, until):
    """Without a watch an answer that is not fresh is asked before its use."""
    async with start(key_fresh_s=0) as stack:
        assert await status(stack) == 200
        await stack.auth.cut_watch()
        await until(lambda: not stack.edge._keys.is_watched)
        await stack.auth.change(stack.key, **REVOKED)
        assert await status(stack) == 401


async def test_silent_watch(start, until):
    """A watch that says nothing any more is no watch."""
    async with start(key_fresh_s=0) as stack:
        assert await status(stack) == 200
        stack.auth.hushed = asyncio.Event()
        await stack.auth.change(stack.key, **REVOKED)
        await until(lambda: not stack.edge._keys.is_watched)
        assert await status(stack) == 401
        stack.auth.hushed.set()
        await until(lambda: stack.edge._keys.is_current)


async def test_missing_events(start, until):
    """A stream that leaves events out is not counted on."""
    async with start() as stack:
        assert await status(stack) == 200
        await stack.auth.change(stack.key)
        await watched_to_the_end(stack, until)
        stack.auth.events[0].sequence = 7
        stack.edge._keys.on_reset(5)
        await until(lambda: not stack.edge._keys.is_watched)


async def test_out_of_reach(start, until):
    """While nobody can be asked known keys pass, unknown ones get 503, and the edge is ready."""
    async with start(key_fresh_s=0, verify_timeout_s=0.2, auth_retry_s=0.1) as stack:
        assert await status(stack) == 200
        stack.auth.frozen = stack.auth.hushed = asyncio.Event()
        await until(lambda: not stack.edge._keys.is_watched)
        unknown = stack.auth.issue()
        for _ in range(3):
            assert await status(stack) == 200
            assert await status(stack, unknown) == 503
        assert (await stack.client.get("/readyz")).status_code == 200
        stack.auth.frozen.set()
        await becomes(stack, 200, unknown)
        await until(lambda: stack.edge._keys.is_current)


async def test_out_of_reach_for_too_long(start, until):
    """When no key can be served any more the edge is not ready, until the auth service is back."""
    async with start(key_fresh_s=0, key_grace_s=0) as stack:
        await stack.auth.go_down()
        await until(lambda: stack.edge._keys.is_useless)
        response = await stack.client.get("/readyz")
        assert response.status_code == 503
        assert "cannot say which keys are good" in response.text
        stack.auth.watchable.set()
        await until(lambda: stack.edge._why_not_ready() is None)


async def test_models_of_a_key(start, body):
    """A model that a key may not use does not exist for it."""
    async with start() as stack:
        key = stack.auth.issue(models=["other/model"])
        headers = {"authorization": f"Bearer {key}"}
        message = "model 'test/model' does not exist"
        for response in (
            await stack.client.post(CHAT, json=body(), headers=headers),
            await stack.client.get(f"{MODELS}/test/model", headers=headers),
        ):
            assert response.status_code == 404
            assert response.json()["error"]["message"] == message
        assert (await stack.client.get(MODELS, headers=headers)).json()["data"] == []
        assert not stack.scheduler.acquires

        key = stack.auth.issue(models=["other/model", "test/model"])
        headers = {"authorization": f"Bearer {key}"}
        assert (await stack.client.post(CHAT, json=body(), headers=headers)).status_code == 200
        listed = (await stack.client.get(MODELS, headers=headers)).json()["data"]
        assert [each["id"] for each in listed] == ["test/model"]


@pytest.mark.parametrize("change", [REVOKED, SUSPENDED], ids=["revoked", "suspended"])
async def test_running_finish(start, body, until, change):
    """By default an answer that has begun is finished when its key is revoked."""
    async with start() as stack:
        stack.worker.script = lambda run: (run.accept(), run.delta("Hel"))
        posting = asyncio.create_task(stack.client.post(CHAT, json=body(stream=True)))
        await until(lambda: stack.worker.runs)
        await stack.auth.change(stack.key, **change)
        await watched_to_the_end(stack, until)
        assert await status(stack) == 401
        run = stack.worker.runs[0]
        run.delta("lo")
        run.finish()
        assert (await posting).text.rstrip().endswith("[DONE]")
        assert not run.aborted.is_set()


async def test_running_abort(start, body, until):
    """Where it is so set, an answer that has begun ends with an error event, and its worker stops."""
    async with start(revoked_streams="abort") as stack:
        stack.worker.script = lambda run: (run.accept(), run.delta("Hel"))
        other = {"authorization": f"Bearer {stack.auth.issue(account_id='acc_2')}"}
        sibling = asyncio.create_task(
            stack.client.post(CHAT, json=body(stream=True), headers=other)
        )
        await until(lambda: stack.worker.runs)
        async with stack.client.stream("POST", CHAT, json=body(stream=True)) as response:
            assert response.status_code == 200
            await stack.auth.change(stack.key, **SUSPENDED)
            text = "".join([piece async for piece in response.aiter_text()])
        assert '"code":401' in text
        assert "[DONE]" not in text
        await stack.worker.runs[1].aborted.wait()
        stack.worker.runs[0].finish()
        assert (await sibling).text.rstrip().endswith("[DONE]")


async def test_plain_abort(start, body, until):
    """A plain answer that has begun and is aborted is a 401."""
    async with start(revoked_streams="abort") as stack:
        stack.worker.script = lambda run: (run.accept(), run.delta("Hel"))
        posting = asyncio.create_task(stack.client.post(CHAT, json=body(n=2)))
        await until(lambda: len(stack.worker.runs) == 2)
        await stack.auth.change(stack.key, **REVOKED)
        response = await posting
        assert response.status_code == 401
        assert response.json()["error"]["message"] == "invalid or missing API key"
        for run in stack.worker.runs:
            await run.aborted.wait()


async def test_waiting(start, body, until):
    """What waits for a slot is refused when its key is revoked, and waits no longer."""
    async with start() as stack:
        stack.scheduler.on_acquire = stack.scheduler.queue
        posting = asyncio.create_task(stack.client.post(CHAT, json=body(stream=True)))
        await until(lambda: stack.scheduler.acquires)
        await stack.auth.change(stack.key, **REVOKED)
        response = await posting
        assert response.status_code == 401
        await until(lambda: stack.scheduler.cancels)


async def test_body_after_revoke(start, until):
    """A request whose key is revoked while its body comes is refused."""
    async with start() as stack:

        async def slowly():
            yield b'{"model": "test/model", '
            await until(lambda: stack.auth.asked)
            await stack.auth.change(stack.key, **REVOKED)
            await watched_to_the_end(stack, until)
            yield b'"messages": [{"role": "user", "content": "Hi."}]}'

        headers = {"content-type": "application/json"}
        response = await stack.client.post(CHAT, content=slowly(), headers=headers)
        assert response.status_code == 401
        assert not stack.scheduler.acquires
