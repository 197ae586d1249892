"""An answer whose worker is lost goes on at another one, and its client notices nothing."""

import json

import pytest

from fastrun.v1 import auth_pb2
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import FinishReason, Usage

CHAT = "/v1/chat/completions"
WORDS = ["Once", " upon", " a", " time", " there", " was"]
MOVED = ErrorReason.ERROR_REASON_MOVED
FAILED = ErrorReason.ERROR_REASON_ENGINE_FAILED
NO_WORKER = ErrorReason.ERROR_REASON_NO_WORKER
BROKEN = "the backend failed before the answer was complete"


def tell(run, words):
    """Tell the next words of a story that another worker may have begun."""
    begun = len(run.request.resume_token_ids)
    assert list(run.request.resume_token_ids) == list(range(1, begun + 1))
    if not begun:
        run.accept(resumable=True)
        run.send(delta={"content": WORDS[0], "token_ids": [1], "cached_tokens": 4})
        run.tokens = begun = 1
        words -= 1
    else:
        run.accept(prompt_tokens=99, resumable=True)
    for word in WORDS[begun : begun + words]:
        run.delta(word)


def end(run):
    """Tell all that is left; counts of the prompt are those of this worker."""
    tell(run, len(WORDS))
    usage = Usage(prompt_tokens=99, cached_tokens=77, completion_tokens=run.tokens)
    run.send(finished={"reason": FinishReason.FINISH_REASON_STOP, "usage": usage})


def story_of(text):
    """Put a stream together; it ends well, and begins once."""
    *events, done = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert done == "[DONE]"
    chunks = [json.loads(each) for each in events]
    assert text.count('"role"') == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    return "".join(each.get("content", "") for each in deltas), chunks[-1]["usage"]


def error_of(text):
    assert "[DONE]" not in text
    return json.loads(text.rstrip("\n").rpartition("data: ")[2])["error"]["message"]


async def ask(up, body, *, stream=True, **fields):
    """Ask for a story; return what was told of it and its usage."""
    if not stream:
        answer = await up.client.post(CHAT, json=body(**fields))
        assert answer.status_code == 200, answer.text
        told = answer.json()
        return told["choices"][0]["message"]["content"], told["usage"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    answer = await up.client.post(CHAT, json=body(**options, **fields))
    assert answer.status_code == 200, answer.text
    return story_of(answer.text)


def lose(run, how, words):
    """Tell some words; then the worker is lost in one of the ways there are."""
    tell(run, words)
    if how == "dies":
        run.drop()
    elif how == "engine dies":
        run.fail(ErrorReason.ERROR_REASON_ENGINE_DIED)
    elif how == "fails":
        run.fail(FAILED)
    elif how == "moves":
        run.fail(MOVED)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["dies", "engine dies", "fails", "moves", "is silent"])
async def test_an_answer_goes_on(start, body, until, how, stream):
    """It is told once and whole, with the prompt as counted first, and leaves one record."""
    async with start(workers=2, silence_timeout_s=1 if how == "is silent" else 60) as up:
        up.worker.script = lambda run: lose(run, how, 3) if len(up.worker.runs) == 1 else end(run)
        up.workers[1].script = end
        text, usage = await ask(up, body, stream=stream)
        assert text == "".join(WORDS)
        assert usage["prompt_tokens"] == 11
        assert usage["prompt_tokens_details"]["cached_tokens"] == 4
        assert usage["completion_tokens"] == len(WORDS)
        first, second = up.scheduler.acquires
        assert (first.resume, second.resume) == (False, True)
        assert second.queue_timeout_ms == 30_000
        assert second.prompt_tokens == first.prompt_tokens + 3
        assert second.front
        starts = [run.request for worker in up.workers for run in worker.runs]
        assert [len(each.resume_token_ids) for each in starts] == [0, 3]
        assert starts[0].sampling.seed == starts[1].sampling.seed
        await until(lambda: up.auth.recorded)
        (record,) = up.auth.recorded.values()
        assert record.status == auth_pb2.USAGE_STATUS_COMPLETED
        assert record.completion_tokens == len(WORDS)
        assert (record.prompt_tokens, record.cached_tokens) == (11, 4)


async def test_moves_count_against_nobody(start, body):
    """An answer may move any number of times, also back to where it was."""
    async with start() as up:
        up.worker.script = lambda run: (
            end(run) if len(up.worker.runs) > 5 else lose(run, "moves", 1)
        )
        text, usage = await ask(up, body)
        assert text == "".join(WORDS)
        assert usage["completion_tokens"] == len(WORDS)
        assert [list(each.excluded_worker_ids) for each in up.scheduler.acquires] == [[]] * 6
        assert not up.scheduler.faults
        assert not up.scheduler.losts


async def test_a_move_before_the_first_delta(start, body):
    """It is asked for again, ahead of all, and begins as if nothing had happened."""
    async with start() as up:

        def script(run):
            if len(up.worker.runs) <= 4:
                run.accept(resumable=True)
                run.fail(MOVED)
            else:
                end(run)

        up.worker.script = script
        text, usage = await ask(up, body)
        assert text == "".join(WORDS)
        assert usage["prompt_tokens"] == 99  # what was moved had told nothing
        assert [each.resume for each in up.scheduler.acquires] == [False, *[True] * 4]
        assert [list(each.excluded_worker_ids) for each in up.scheduler.acquires] == [[]] * 5


@pytest.mark.parametrize("how", ["dies", "engine dies"])
@pytest.mark.parametrize("words", [0, 2])
async def test_one_death_in_all(start, body, until, how, words):
    """Before and after the first delta together: a third worker is not risked.

    What was told is recorded once, and as partial where a worker could not tell its end.
    """
    async with start(workers=3) as up:

        def first(run):
            if words:
                lose(run, how, words)
            else:
                run.accept(resumable=True)
                run.drop() if how == "dies" else run.fail(ErrorReason.ERROR_REASON_ENGINE_DIED)

        up.worker.script = first
        up.workers[1].script = lambda run: lose(run, how, 2)
        answer = await up.client.post(CHAT, json=body(stream=True))
        assert error_of(answer.text) == BROKEN
        assert [len(worker.runs) for worker in up.workers] == [1, 1, 0]
        await until(lambda: up.auth.recorded)
        (record,) = up.auth.recorded.values()
        lost = auth_pb2.USAGE_STATUS_PARTIAL if how == "dies" else auth_pb2.USAGE_STATUS_FAILED
        assert (record.status, record.completion_tokens) == (lost, words + 2)
        assert record.prompt_tokens == 11


async def test_failures_go_to_two_other_workers(start, body):
    """What is failed by workers that live is given to three at most."""
    async with start(workers=4) as up:
        for worker in up.workers:
            worker.script = lambda run: lose(run, "fails", 1)
        answer = await up.client.post(CHAT, json=body(stream=True))
        assert error_of(answer.text) == BROKEN
        assert [len(worker.runs) for worker in up.workers] == [1, 1, 1, 0]
        starts = [len(worker.runs[0].request.resume_token_ids) for worker in up.workers[:3]]
        assert starts == [0, 1, 2]


async def test_refusals_while_it_resumes(start, body):
    """A worker without a slot is no failure: the answer goes on when one has it."""
    async with start(workers=2) as up:
        up.worker.script = lambda run: lose(run, "dies", 2)

        def second(run):
            if len(up.workers[1].runs) <= 3:
                run.fail(ErrorReason.ERROR_REASON_NO_SLOT)
            else:
                end(run)

        up.workers[1].script = second
        text, _ = await ask(up, body)
        assert text == "".join(WORDS)
        assert [each.resume for each in up.scheduler.acquires] == [False, *[True] * 4]
        waits = [each.waited_ms for each in up.scheduler.acquires[1:]]
        assert waits == sorted(waits)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_worker_that_cannot_go_on(start, body, stream):
    """A stream ends in its error event; a plain answer begins anew, for nobody has seen it."""
    async with start(workers=3) as up:
        up.worker.script = lambda run: lose(run, "dies", 2)
        up.workers[1].script = lambda run: run.fail(ErrorReason.ERROR_REASON_INVALID_REQUEST)
        up.workers[2].script = end
        if stream:
            answer = await up.client.post(CHAT, json=body(stream=True))
            assert error_of(answer.text) == BROKEN
            assert not up.workers[2].runs
        else:
            text, usage = await ask(up, body, stream=False)
            assert text == "".join(WORDS)
            assert usage["prompt_tokens"] == 99
        assert not up.scheduler.faults


async def test_a_resume_waits_for_a_worker_to_come_back(start, body):
    """The only worker dies: its next instance goes on with what the last one began."""
    async with start() as up:
        up.worker.script = lambda run: (
            lose(run, "dies", 2) if len(up.worker.runs) == 1 else end(run)
        )

        def on_acquire(acquire):
            if len(up.scheduler.acquires) == 5:
                up.worker.instance_id = "another instance"
            up.scheduler.grant(acquire)

        up.scheduler.on_acquire = on_acquire
        text, _ = await ask(up, body)
        assert text == "".join(WORDS)
        assert len(up.scheduler.acquires) == 5


async def test_a_resume_waits_for_a_scheduler(start, body, until):
    """While none is there the stream stays open, and goes on once one is."""
    async with start(workers=2, scheduler_timeout_s=0.1) as up:
        up.worker.script = lambda run: tell(run, 2)
        up.workers[1].script = end
        options = {"stream": True, "stream_options": {"include_usage": True}}
        async with up.client.stream("POST", CHAT, json=body(**options)) as answer:
            pieces = answer.aiter_text()
            text = await anext(pieces)
            greeted = len(up.scheduler.hellos)
            up.scheduler.is_hushed = True
            up.scheduler.drop_sessions()
            up.worker.drop_attaches()
            await until(lambda: len(up.scheduler.hellos) > greeted)
            up.scheduler.is_hushed = False
            up.scheduler.welcome()
            text += "".join([piece async for piece in pieces])
        assert story_of(text)[0] == "".join(WORDS)


async def test_no_slot_in_time(start, body):
    """A stream that finds no place to go on ends in its error event."""
    async with start(workers=2, resume_timeout_s=0.2) as up:

        def on_acquire(acquire):
            if not acquire.resume:
                up.scheduler.grant(acquire)
            elif len(up.scheduler.acquires) < 4:
                up.scheduler.reject(acquire, NO_WORKER)

        up.scheduler.on_acquire = on_acquire
        up.worker.script = lambda run: lose(run, "dies", 2)
        answer = await up.client.post(CHAT, json=body(stream=True))
        assert error_of(answer.text) == BROKEN
        assert not up.workers[1].runs


async def test_each_choice_resumes_by_itself(start, body):
    """Of two choices on two workers, the one whose worker dies goes on beside the other."""
    async with start(workers=2) as up:

        def on_acquire(acquire):
            for generation in acquire.generations:
                worker = up.workers[1 if acquire.resume else generation]
                up.scheduler.grant_one(acquire, generation, worker)

        up.scheduler.on_acquire = on_acquire
        up.worker.script = lambda run: lose(run, "dies", 4)
        up.workers[1].script = end
        answer = (await up.client.post(CHAT, json=body(n=2))).json()
        told = [each["message"]["content"] for each in answer["choices"]]
        assert told == ["".join(WORDS)] * 2
        assert answer["usage"]["prompt_tokens"] == 11
        assert answer["usage"]["completion_tokens"] == 2 * len(WORDS)
        (resumed,) = [run.request for run in up.workers[1].runs if run.request.resume_token_ids]
        assert resumed.generation == 0


async def test_poison_in_several_choices_kills_two_workers(start, body):
    """Each choice is on a worker of its own when the workers die of it, one after the other."""
    async with start(workers=4) as up:

        def on_acquire(acquire):
            for generation in acquire.generations:
                left = [each for each in up.workers if not each.runs] or [up.workers[-1]]
                worker = left[0] if acquire.resume else up.workers[generation]
                up.scheduler.grant_one(acquire, generation, worker)

        def poisoned(run):
            run.accept(resumable=True)
            if len(up.workers[0].runs) + len(up.workers[1].runs) > 1:
                up.workers[0].drop_attaches()
                up.workers[1].drop_attaches()

        up.scheduler.on_acquire = on_acquire
        for worker in up.workers[:2]:
            worker.script = poisoned
        answer = await up.client.post(CHAT, json=body(n=2))
        assert answer.status_code == 502
        assert [len(worker.runs) for worker in up.workers[:2]] == [1, 1]
        assert sum(len(worker.runs) for worker in up.workers[2:]) <= 1


@pytest.mark.parametrize(
    ("reason", "counts"),
    [
        ("ENGINE_FAILED", True),
        ("ENGINE_DIED", True),
        ("INTERNAL", True),
        ("NO_SLOT", False),
        ("LEASE_REFUSED", False),
        ("DRAINING", False),
        ("MOVED", False),
        ("INVALID_REQUEST", False),
    ],
)
async def test_which_failures_speak_against_a_worker(start, body, until, reason, counts):
    """The scheduler is told of a worker's faults, and of nothing else."""
    async with start(workers=2) as up:

        def script(run):
            if len(up.worker.runs) == 1:
                run.fail(ErrorReason.Value(f"ERROR_REASON_{reason}"))
            else:
                run.answer("fine")

        up.worker.script = script
        await up.client.post(CHAT, json=body())
        await up.client.post(CHAT, json=body())
        assert up.scheduler.faults == [up.worker.instance_id] * counts


@pytest.mark.parametrize("words", [0, 2])
async def test_silence_speaks_against_a_worker_before_its_first_token(start, body, words):
    """A worker that brings no first token is at fault; one that falls silent later is not told."""
    async with start(workers=2, first_delta_timeout_s=0.5, silence_timeout_s=0.5) as up:
        up.worker.script = lambda run: tell(run, words) if words else run.accept()
        up.workers[1].script = end
        text, _ = await ask(up, body)
        assert text == "".join(WORDS)
        assert up.scheduler.faults == ([] if words else [up.worker.instance_id])
        assert not up.scheduler.losts


async def test_a_worker_that_nobody_reaches_is_at_fault(start, body):
    """Its lease was given back, and that alone would say nothing."""
    async with start(workers=2) as up:
        up.worker.address = "127.0.0.1:1"
        up.workers[1].script = end
        await ask(up, body)
        assert up.scheduler.faults == [up.worker.instance_id]


async def test_a_client_that_leaves_speaks_against_nobody(start, body, until):
    """Neither in mid-stream nor while what it wants is resumed."""
    async with start(workers=2) as up:
        up.worker.script = lambda run: tell(run, 2)
        async with up.client.stream("POST", CHAT, json=body(stream=True)) as answer:
            await anext(answer.aiter_text())
        await until(up.worker.runs[0].aborted.is_set)
        up.scheduler.on_acquire = lambda acquire: acquire.resume or up.scheduler.grant(acquire)
        async with up.client.stream("POST", CHAT, json=body(stream=True)) as answer:
            pieces = answer.aiter_text()
            await anext(pieces)
            up.worker.drop_attaches()
            await until(lambda: up.scheduler.acquires[-1].resume)
        await until(lambda: up.scheduler.cancels)
        assert not up.scheduler.faults
        assert len(up.scheduler.losts) == 1


async def test_a_request_tells_the_blocks_of_its_prompt(start, body):
    """A conversation's next turn tells those of the former, and another account none of them."""
    async with start() as up:
        document = "All that is known of the case. " * 40
        turns = [
            {"role": "user", "content": document},
            {"role": "assistant", "content": "Hello, wörld 😀!"},
            {"role": "user", "content": "Go on." * 50},
        ]
        other = up.auth.issue(cache_salt="salt_2")
        for asked, headers in (
            (turns[:1], None),
            (turns, None),
            (turns, {"authorization": f"Bearer {other}"}),
        ):
            answer = await up.client.post(CHAT, json=body(messages=asked), headers=headers)
            assert answer.status_code == 200
        first, next_turn, strange = up.scheduler.acquires
        assert len(first.prefix_hashes) == len(document) // 256
        assert list(first.prefix_tokens) == [64, 128, 192, 256]
        assert next_turn.prefix_hashes[:4] == first.prefix_hashes
        assert len(next_turn.prefix_hashes) > 4
        assert not set(strange.prefix_hashes) & set(next_turn.prefix_hashes)
        assert first.prompt_tokens >= 310
