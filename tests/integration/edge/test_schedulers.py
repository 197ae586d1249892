"""The edge's sessions with schedulers: who is obeyed, what is asked again, and what is told."""

import asyncio
from pkgutil import resolve_name

import pytest

import fastrun
from edge.turns import Turn
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.scheduler_pb2 import ModelList

CHAT = "/v1/chat/completions"
PARAMETERS = [
    "chat_template_kwargs",
    "frequency_penalty",
    "max_completion_tokens",
    "max_tokens",
    "min_p",
    "n",
    "parallel_tool_calls",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "temperature",
    "tool_choice",
    "tools",
    "top_k",
    "top_p",
]


async def test_hello(start, until):
    """The first item names this edge process, the leases it holds and the highest term it saw."""
    async with start() as stack:
        first = stack.scheduler.hellos[0]
        assert first.edge_id
        assert list(first.lease_ids) == []
        stack.scheduler.drop_sessions()
        await until(lambda: len(stack.scheduler.hellos) == 2)
        assert stack.scheduler.hellos[1].edge_id == first.edge_id
        assert stack.scheduler.hellos[1].term == 1


async def test_an_edge_is_of_the_version_that_it_began_as(start, until, monkeypatch):
    """Whatever is installed meanwhile: an upgrade is looked after by what runs."""
    async with start() as stack:
        began_as = stack.scheduler.hellos[0].version
        monkeypatch.setattr(fastrun, "__version__", "9.0.0", raising=False)
        stack.scheduler.drop_sessions()
        await until(lambda: len(stack.scheduler.hellos) == 2)
        assert stack.scheduler.hellos[1].version == began_as


async def test_held_leases_are_in_the_hello(start, body, until):
    """A session that comes back names the lease of what runs, and that runs on unharmed."""
    async with start() as stack:
        stack.worker.script = lambda run: run.accept()
        asking = asyncio.create_task(stack.client.post(CHAT, json=body()))
        await until(lambda: stack.worker.runs)
        stack.scheduler.drop_sessions()
        await until(lambda: len(stack.scheduler.hellos) == 2)
        assert list(stack.scheduler.hellos[1].lease_ids) == ["lease_1"]
        stack.worker.runs[0].answer("fine")
        assert (await asking).status_code == 200
        assert stack.edge._scheduler._held == set()


async def test_waiting_is_asked_again(start, body, until):
    """What waits when a session breaks is asked again, with the time it has waited."""
    async with start() as stack:
        stack.scheduler.on_acquire = stack.scheduler.queue
        asking = asyncio.create_task(stack.client.post(CHAT, json=body()))
        await until(lambda: len(stack.scheduler.acquires) == 1)
        stack.scheduler.drop_sessions()
        stack.scheduler.on_acquire = stack.scheduler.grant
        assert (await asking).status_code == 200
        first, again = stack.scheduler.acquires
        assert first.request_id == again.request_id
        assert again.waited_ms > first.waited_ms


async def test_no_scheduler(start, body, until):
    """Without a scheduler requests wait a little and are then refused, and readyz says why."""
    async with start(scheduler_timeout_s=0.2) as stack:
        stack.edge._scheduler._sessions[0]._hello = None  # no session can be opened any more
        stack.scheduler.drop_sessions()
        await until(lambda: not stack.edge._scheduler.connected)
        for response in (
            await stack.client.post(CHAT, json=body()),
            await stack.client.get("/v1/models"),
        ):
            assert response.status_code == 503
            message = response.json()["error"]["message"]
            assert message == "no scheduler can be reached right now"
            assert int(response.headers["retry-after"]) >= 1
        response = await stack.client.get("/readyz")
        assert response.status_code == 503
        assert "no scheduler is connected" in response.text


@pytest.mark.parametrize(
    ("answer", "where"),
    [("grant", "edge.scheduler_link.Grant"), ("reject", "edge.turns.Turn.fail")],
)
async def test_a_fault_in_an_answer_is_that_request_s(
    start, body, until, monkeypatch, answer, where
):
    """Its client is told that it is a fault of ours, its lease is given back, others are served."""
    async with start() as stack:
        if answer == "reject":
            stack.scheduler.on_acquire = lambda acquire: stack.scheduler.reject(
                acquire, ErrorReason.ERROR_REASON_QUEUE_FULL
            )
        with monkeypatch.context() as patch:
            patch.setattr(where, broken_once(where))
            response = await stack.client.post(CHAT, json=body())
        assert (response.status_code, response.json()["error"]["code"]) == (500, 500)
        if answer == "grant":
            await until(lambda: stack.scheduler.releases == ["lease_1"])
        await until(lambda: stack.scheduler.cancels)
        assert stack.edge._scheduler.waiting == 0
        stack.scheduler.on_acquire = stack.scheduler.grant
        assert (await stack.client.post(CHAT, json=body())).status_code == 200


def broken_once(where):
    """What is there, but that it fails the first time."""
    original, calls = resolve_name(where), []

    def call(*args, **named):
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError
        return original(*args, **named)

    return call


async def test_a_fault_in_one_wish_is_no_other_s(start, body, until, monkeypatch):
    """What waits when a scheduler comes back is asked for, but for what cannot be."""
    async with start() as stack:
        stack.scheduler.on_acquire = stack.scheduler.queue
        asking = [asyncio.create_task(stack.client.post(CHAT, json=body())) for _ in range(3)]
        await until(lambda: len(stack.scheduler.acquires) == 3)
        link, lost = stack.edge._scheduler, stack.scheduler.acquires[0].request_id
        send = link._send

        def sending(turn):
            if turn.wish.request_id == lost:
                raise RuntimeError
            send(turn)

        monkeypatch.setattr(link, "_send", sending)
        stack.scheduler.on_acquire = stack.scheduler.grant
        stack.scheduler.drop_sessions()
        statuses = [response.status_code for response in await asyncio.gather(*asking)]
        assert sorted(statuses) == [200, 200, 500]
        assert link.waiting == 0


async def test_highest_term_is_obeyed(start, body, until):
    """Of two schedulers only the one with the highest term is asked; when it goes, the other."""
    async with start(schedulers=2) as stack:
        leader, other = stack.schedulers
        await until(lambda: other.hellos)
        assert (await stack.client.post(CHAT, json=body())).status_code == 200
        assert (len(leader.acquires), len(other.acquires)) == (1, 0)
        leader.on_acquire = leader.queue
        asking = asyncio.create_task(stack.client.post(CHAT, json=body()))
        await until(lambda: len(leader.acquires) == 2)
        other.term = leader.term + 1
        other.welcome()
        assert (await asking).status_code == 200
        assert len(other.acquires) == 1
        leader.grant(leader.acquires[-1])
        await until(lambda: leader.releases)
        assert len(stack.worker.runs) == 2


async def test_scheduler_that_answers_nothing(start, body, until):
    """A scheduler that forgets a request costs it its time in the queue and no more."""
    async with start(queue_timeout_s=0) as stack:
        stack.scheduler.on_acquire = stack.scheduler.queue
        response = await stack.client.post(CHAT, json=body())
        assert response.status_code == 429
        await until(lambda: stack.scheduler.cancels)
        assert stack.scheduler.cancels == [stack.scheduler.acquires[0].request_id]


async def test_scheduler_that_breaks_off(start, body):
    """A request that no scheduler survives costs it its time in the queue, and little more."""
    async with start(queue_timeout_s=0, scheduler_timeout_s=0.5) as stack:
        stack.scheduler.on_acquire = lambda _: stack.scheduler.drop_sessions()
        async with asyncio.timeout(20):
            response = await stack.client.post(CHAT, json=body())
        assert response.status_code in (429, 503)
        assert len(stack.scheduler.acquires) > 1


async def test_a_fault_in_a_grant_ends_no_session(start, body, until, monkeypatch):
    """The lease goes back, and what else the edge asks for is granted in the same session."""
    async with start() as stack:
        with monkeypatch.context() as patch:
            patch.setattr(Turn, "grant", None)
            asking = asyncio.create_task(stack.client.post(CHAT, json=body()))
            await until(lambda: stack.scheduler.releases == ["lease_1"])
        asking.cancel()
        assert (await stack.client.post(CHAT, json=body())).status_code == 200
        assert len(stack.scheduler.hellos) == 1


async def test_acquire_holds_what_the_request_needs(start, body):
    """The scheduler is told who asks for which model, and how long it may wait."""
    async with start(queue_timeout_s=7) as stack:
        await stack.client.post(CHAT, json=body())
        acquire = stack.scheduler.acquires[0]
        assert acquire.account_id == "acc_1"
        assert acquire.model == "test/model"
        assert acquire.queue_timeout_ms == 7000
        assert acquire.waited_ms == 0
        assert not acquire.front


async def test_model_list_is_replaced(start, until):
    """What can serve is what the scheduler last said."""
    async with start() as stack:
        response = await stack.client.get("/v1/models")
        assert response.json() == {
            "object": "list",
            "data": [
                {
                    "id": "test/model",
                    "object": "model",
                    "created": 1,
                    "owned_by": "fastrun",
                    "context_length": 1000,
                    "max_output_tokens": 1000,
                    "features": ["tools"],
                    "supported_parameters": PARAMETERS,
                }
            ],
        }
        for path in ("test/model", "test%2Fmodel", "test%2fmodel/"):
            one = await stack.client.get(f"/v1/models/{path}")
            assert one.json() == response.json()["data"][0]
            head = await stack.client.head(f"/v1/models/{path}")
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == one.headers["content-length"]
        assert (await stack.client.get("/v1/models/other")).status_code == 404
        head = await stack.client.head("/v1/models")
        assert (head.status_code, head.content) == (200, b"")
        stack.scheduler.send(models=ModelList(complete=True))
        await until(lambda: stack.edge._scheduler.catalogue.card("test/model") is None)
        assert (await stack.client.get("/v1/models")).json()["data"] == []


async def test_the_list_says_what_is_published_of_a_model(start, until):
    """A name for people, where it is published and what its weights are, where that is known."""
    async with start() as stack:
        card = stack.scheduler.models.models[0].card
        card.name, card.hugging_face_id, card.quantization = "Test", "org/test", "fp8"
        stack.scheduler.welcome()
        await until(lambda: stack.edge._scheduler.catalogue.card("test/model").name == "Test")
        model = (await stack.client.get("/v1/models/test/model")).json()
        shown = [model[key] for key in ("name", "hugging_face_id", "quantization")]
        assert shown == ["Test", "org/test", "fp8"]


@pytest.mark.parametrize("size", [10, 400_000])
async def test_worker_gets_the_whole_request(start, body, size, until):
    """Sampling, stop, salt, lease and text reach the worker; large requests on a second stream."""
    async with start(schedulers=1) as stack:
        stack.scheduler.models.models[0].card.context_length = 1_000_000
        stack.scheduler.welcome()
        card = stack.edge._scheduler.catalogue.card
        await until(lambda: card("test/model").context_length == 1_000_000)
        messages = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a" * size}]},
            {"role": "assistant", "content": None},
        ]
        fields = {
            "max_completion_tokens": 5,
            "max_tokens": 7,
            "temperature": 0,
            "top_p": 0.5,
            "top_k": 3.0,
            "min_p": 0.1,
            "frequency_penalty": -1,
            "presence_penalty": 1.5,
            "repetition_penalty": 1.1,
            "seed": 42,
            "stop": "END",
        }
        small = await stack.client.post(CHAT, json=body())
        response = await stack.client.post(CHAT, json=body(messages=messages, **fields))
        assert (small.status_code, response.status_code) == (200, 200)
        request = stack.worker.runs[-1].request
        assert request.lease == b"signed lease_2"
        assert request.cache_salt == "salt_1"
        assert [(each.role, len(each.content)) for each in request.messages] == [
            (1, 9),
            (2, size),
            (3, 0),
        ]
        assert not request.messages[2].HasField("content")
        assert list(request.stop) == ["END"]
        sampling = request.sampling
        assert (sampling.max_tokens, sampling.top_k, sampling.seed) == (5, 3, 42)
        assert sampling.HasField("temperature")
        assert (sampling.temperature, sampling.top_p, sampling.min_p) == (0, 0.5, 0.1)
        assert (sampling.frequency_penalty, sampling.presence_penalty) == (-1, 1.5)
        assert sampling.repetition_penalty == 1.1
        first = stack.worker.runs[0].request.sampling
        assert first.HasField("seed")
        assert not first.HasField("temperature")
        assert len(stack.worker.attaches) == (2 if size > 256 << 10 else 1)


async def test_who_stands_by_is_not_asked(start, body, until):
    """With a scheduler that stands by alone there is none, and no name is refused for good."""
    async with start(scheduler_timeout_s=0.2) as stack:
        await stack.client.post(CHAT, json=body())
        stack.scheduler.term = 0
        stack.scheduler.welcome()
        await until(lambda: not stack.edge._scheduler.connected)
        for model in ("test/model", "nobody/knows"):
            response = await stack.client.post(CHAT, json=body(model=model))
            assert response.status_code == 503
        assert len(stack.scheduler.acquires) == 1
        asking = asyncio.create_task(stack.client.post(CHAT, json=body()))
        stack.scheduler.term = 2
        stack.scheduler.welcome()
        assert (await asking).status_code == 200
        missing = await stack.client.post(CHAT, json=body(model="nobody/knows"))
        assert missing.status_code == 404


async def test_each_term_begins_with_a_hello_to_all(start, body, until):
    """The leader learns what is held here, and who believed to lead that it does not."""
    async with start(schedulers=2) as stack:
        leader, other = stack.schedulers
        stack.worker.script = lambda run: run.accept()
        asking = asyncio.create_task(stack.client.post(CHAT, json=body()))
        await until(lambda: stack.worker.runs)
        stack.worker.script = lambda run: run.answer("again")
        other.term = leader.term + 3
        other.welcome()
        for scheduler in (other, leader):
            await until(lambda: [each.term for each in scheduler.hellos_again][-1:] == [other.term])  # noqa: B023 - awaited here
            assert list(scheduler.hellos_again[-1].lease_ids) == ["lease_1"]
            scheduler.hellos_again.clear()
        other.welcome()
        leader.welcome()
        stack.worker.runs[0].answer("fine")
        assert (await asking).status_code == 200
        assert (await stack.client.post(CHAT, json=body())).status_code == 200
        assert leader.hellos_again == other.hellos_again == []
