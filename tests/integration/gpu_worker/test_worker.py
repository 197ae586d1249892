"""A worker as edges meet it, over real gRPC."""

import asyncio
from random import Random

import pytest

from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import FinishReason
from fastrun.v1.worker_pb2 import GetInfoRequest
from gpu_worker.frames import Events


def text_of(events):
    """Join what the deltas say."""
    return "".join(event.content for kind, event in events if kind == "delta")


def ids_of(events):
    """Join the deltas' token ids."""
    return [number for kind, event in events if kind == "delta" for number in event.token_ids]


async def test_many_requests_share_one_attach(run_stack):
    """Each of many concurrent requests gets its own text, in order, and its exact usage."""
    async with run_stack(slots=32) as stack:
        edge = stack.edge()
        texts = {
            edge.start(stack.ask(f"[[text=answer {n} 🐱]]")): f"answer {n} 🐱" for n in range(32)
        }
        for stream_id, text in texts.items():
            events = await edge.end(stream_id)
            kinds = [kind for kind, _ in events]
            assert kinds[0] == "accepted"
            assert set(kinds[1:-1]) == {"delta"}
            assert text == text_of(events)
            finished = events[-1][1]
            assert finished.reason == FinishReason.FINISH_REASON_STOP
            assert finished.usage.completion_tokens == len(text.encode()) + 1 == len(ids_of(events))
            assert finished.usage.prompt_tokens == events[0][1].prompt_tokens > 0
        await stack.scheduler.until(lambda s: len(s.freed) == 32)
        assert sum(freed.usage.completion_tokens for freed in stack.scheduler.freed) == sum(
            len(text.encode()) + 1 for text in texts.values()
        )


async def test_stop_texts_and_limits_end_a_request(stack):
    """A stop text is cut off, and max_tokens ends with length; both counted exactly."""
    edge = stack.edge()
    stopped = await edge.end(edge.start(stack.ask("[[text=one two three]]", stop=["two"])))
    assert text_of(stopped) == "one "
    assert stopped[-1][1].reason == FinishReason.FINISH_REASON_STOP
    assert stopped[-1][1].usage.completion_tokens == 7
    limited = await edge.end(edge.start(stack.ask("[[text=one two three]]", max_tokens=5)))
    assert text_of(limited) == "one t"
    assert limited[-1][1].reason == FinishReason.FINISH_REASON_LENGTH
    assert limited[-1][1].usage.completion_tokens == 5


async def test_a_failed_request_ends_alone(stack):
    """An engine error is the last event of its request; the stream and others go on."""
    edge = stack.edge()
    failing = edge.start(stack.ask("[[fail=3]]"))
    other = edge.start(stack.ask("[[text=fine]]"))
    kind, failed = (await edge.end(failing))[-1]
    assert kind == "failed"
    assert failed.error.reason == ErrorReason.ERROR_REASON_ENGINE_FAILED
    assert text_of(await edge.end(other)) == "fine"
    await stack.scheduler.until(lambda s: len(s.freed) == 2)


async def test_a_request_of_which_something_cannot_be_sent_ends_alone(stack, monkeypatch):
    """It fails as a fault of ours and frees its slot; the stream and the others on it go on."""
    edge = stack.edge()
    move = Events._move_delta_to

    def refusing(events, delta):
        if events._stream_id == broken:
            delta.content = "\ud800"
        move(events, delta)

    broken, other = edge.start(stack.ask("go on")), edge.start(stack.ask("[[text=fine]]"))
    monkeypatch.setattr(Events, "_move_delta_to", refusing)
    kind, failed = (await edge.end(broken))[-1]
    assert kind == "failed"
    assert failed.error.reason == ErrorReason.ERROR_REASON_INTERNAL
    assert text_of(await edge.end(other)) == "fine"
    assert text_of(await edge.end(edge.start(stack.ask("[[text=well]]")))) == "well"
    await stack.scheduler.until(lambda s: len(s.freed) == 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "other"}, "serves 'scripted'"),
        ({"messages": []}, "messages is required"),
        ({"stop": [""]}, "stop takes up to 4"),
        ({"messages": "x" * 9000}, "context window is 8192 tokens and the prompt has 9"),
        ({"messages": "x" * 200_000}, "context window is 8192 tokens and the prompt has more"),
    ],
)
async def test_bad_input_never_reaches_the_engine(stack, change, message):
    """A wrong request fails at once with what to do, and its lease comes back unused."""
    request = stack.ask()
    for name, value in change.items():
        if isinstance(value, list):
            del getattr(request, name)[:]
            getattr(request, name).extend(value)
        elif name == "messages":
            request.messages[0].content = value
        else:
            setattr(request, name, value)
    edge = stack.edge()
    events = await edge.end(edge.start(request))
    assert [kind for kind, _ in events] == ["failed"]
    assert events[0][1].error.reason == ErrorReason.ERROR_REASON_INVALID_REQUEST
    assert message in events[0][1].error.message
    await stack.scheduler.until(lambda s: s.freed)
    assert not stack.scheduler.freed[0].HasField("usage")


async def test_special_tokens_in_a_prompt_are_text(stack):
    """A user who writes a turn marker gets a longer prompt, not another turn."""
    edge = stack.edge()
    plain = await edge.end(edge.start(stack.ask("ab[[tokens=1]]")))
    marked = await edge.end(edge.start(stack.ask("a<|im_end|>b[[tokens=1]]")))
    assert marked[0][1].prompt_tokens - plain[0][1].prompt_tokens == len("<|im_end|>")


async def abort_and_check(stack, edge, stream_id):
    """Abort twice and expect one Finished{ABORTED} and one SlotFreed."""
    edge.abort(stream_id)
    edge.abort(stream_id)
    events = await edge.end(stream_id)
    await stack.scheduler.until(lambda s: s.freed)
    after = await edge.end(edge.start(stack.ask("[[tokens=1]]")))
    assert after[-1][0] == "finished"
    assert [kind for kind, _ in events].count("finished") == 1
    assert events[-1][1].reason == FinishReason.FINISH_REASON_ABORTED
    await stack.scheduler.until(lambda s: len(s.freed) == 2)
    return events


async def test_abort_before_the_engine(stack):
    """A request that is aborted in the same frame as its Start ends without usage."""
    edge = stack.edge()
    stream_id = edge.start(stack.ask("hello"))
    events = await abort_and_check(stack, edge, stream_id)
    assert [kind for kind, _ in events] == ["finished"]
    assert not stack.scheduler.freed[0].HasField("usage")


async def test_abort_in_prefill(run_stack):
    """A request that the engine still reads is aborted with its prompt counted."""
    async with run_stack(scripted_prompt_tokens_per_s=1.0) as stack:
        edge = stack.edge()
        stream_id = edge.start(stack.ask("hello"))
        while not edge.events[stream_id]:
            await asyncio.sleep(0.01)
        edge.abort(stream_id)
        events = await edge.end(stream_id)
        assert [kind for kind, _ in events] == ["accepted", "finished"]
        usage = events[-1][1].usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (events[0][1].prompt_tokens, 0)
        await stack.scheduler.until(lambda s: s.freed)


async def test_abort_in_decode(slow_stack):
    """A running request is aborted with the tokens it has made."""
    edge = slow_stack.edge()
    stream_id = edge.start(slow_stack.ask("hello"))
    await edge.first_delta(stream_id)
    events = await abort_and_check(slow_stack, edge, stream_id)
    assert events[-1][1].usage.completion_tokens == len(ids_of(events)) > 0
    assert slow_stack.scheduler.freed[0].usage.completion_tokens == len(ids_of(events))


async def test_abort_after_the_end_changes_nothing(stack):
    """An Abort that crosses the request's own end is ignored."""
    edge = stack.edge()
    stream_id = edge.start(stack.ask("[[tokens=2]]"))
    await edge.end(stream_id)
    edge.abort(stream_id)
    await edge.end(edge.start(stack.ask("[[tokens=1]]")))
    assert [kind for kind, _ in edge.events[stream_id]].count("finished") == 1


async def test_a_broken_attach_aborts_its_requests(slow_stack):
    """When an Attach ends all its requests end, those of another one go on."""
    edge, other = slow_stack.edge(), slow_stack.edge()
    for _ in range(3):
        await edge.first_delta(edge.start(slow_stack.ask("hello")))
    staying = other.start(slow_stack.ask("[[tokens=50]]"))
    edge.close()
    await slow_stack.scheduler.until(lambda s: len(s.freed) == 3)
    assert (await other.end(staying))[-1][1].usage.completion_tokens == 51
    info = await slow_stack.stub.GetInfo(GetInfoRequest())
    assert info.slots_in_use == 0


async def test_a_reused_stream_id_closes_the_attach(stack):
    """An edge that breaks the protocol loses its stream, not the worker."""
    edge = stack.edge()
    await edge.end(edge.start(stack.ask("[[tokens=1]]"), stream_id=5))
    edge.start(stack.ask("[[tokens=1]]"), stream_id=5)
    await asyncio.wait_for(edge.task, 10)
    again = stack.edge()
    assert (await again.end(again.start(stack.ask("[[tokens=1]]"))))[-1][0] == "finished"


async def test_random_aborts_leak_nothing(run_stack):
    """Hundreds of requests cut off at random moments: each ends once, each slot comes back once."""
    count, random = 300, Random(1)
    async with run_stack(slots=32, scripted_tokens_per_s=500.0) as stack:
        edge, witness = stack.edge(), stack.edge()
        watched = witness.start(stack.ask("[[text=undisturbed]]"))
        free = asyncio.Semaphore(31)

        async def one(lease_id):
            async with free:
                request = stack.ask("[[tokens=30]]")
                request.lease = stack.scheduler.lease(lease_id)
                stream_id = edge.start(request)
                if random.random() < 0.8:
                    await asyncio.sleep(random.random() * 0.08)
                    edge.abort(stream_id)
                await edge.end(stream_id)
                # Finished may be there before the slot is: a scheduler grants when it hears so.
                await stack.scheduler.until(lambda s: lease_id in s.freed_ids())

        await asyncio.gather(*[one(f"random-{n}") for n in range(count)])
        assert text_of(await witness.end(watched)) == "undisturbed"
        await stack.scheduler.until(lambda s: len(s.freed) == count + 1)
        assert len(set(stack.scheduler.freed_ids())) == count + 1
        for events in edge.events.values():
            kinds = [kind for kind, _ in events]
            assert kinds[-1] == "finished"
            assert kinds.count("finished") == 1
            assert events[-1][1].usage.completion_tokens == len(ids_of(events))
        assert (await stack.stub.GetInfo(GetInfoRequest())).slots_in_use == 0
