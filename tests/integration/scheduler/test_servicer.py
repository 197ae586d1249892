"""The scheduler as edges, workers and tools see it over gRPC."""

import asyncio
import urllib.request

import grpc
import pytest

from fastrun.service import leases
from fastrun.service.errors import ServiceError
from fastrun.service.leases import LeaseError, verify
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.scheduler_pb2 import (
    EdgeMessage,
    EdgeMessages,
    ListModelsRequest,
    WatchFleetRequest,
    WorkerReport,
    WorkerReports,
)
from scheduler.metrics import Metrics
from scheduler.sessions import Sessions


async def test_a_free_slot_is_granted_with_a_lease_that_its_worker_accepts(scheduler):
    """An Acquire is answered by a lease signed with the key that the worker was welcomed with."""
    async with scheduler() as stack:
        worker = await stack.worker()
        edge = stack.edge()
        edge.acquire("r1")
        granted = await edge.next("granted")
        claims = verify(granted.lease, worker.welcomed.lease_key)
        assert (
            granted.worker_id,
            granted.instance_id,
            granted.address,
        ) == ("w", "w-1", "w-1:7003")
        assert (
            claims.request_id,
            claims.account_id,
            claims.instance_id,
            claims.edge_id,
        ) == ("r1", "acc", "w-1", "edge-1")
        assert claims.term == worker.welcomed.term == (await edge_term(stack))


async def edge_term(stack):
    other = stack.edge("edge-term")
    return (await other.next("welcome")).term


async def test_a_request_waits_until_the_worker_frees_a_slot(scheduler):
    """Beyond the slots a request is queued, and granted when SlotFreed comes."""
    async with scheduler() as stack:
        worker = await stack.worker()
        edge = stack.edge()
        edge.acquire("r1")
        first = await edge.next("granted")
        edge.acquire("r2")
        edge.acquire("r3")
        assert [(await edge.answer()).position for _ in range(2)] == [1, 2]
        worker.free(first.lease_id)
        assert (await edge.answer()).request_id == "r2"
        await stack.in_use(1)


async def test_a_fault_in_an_acquire_ends_no_session(scheduler, monkeypatch):
    """Only its request is refused, as a fault of ours; what else the edge asks for is granted."""

    def odd(metrics, model, waited_s):
        raise RuntimeError(model)

    async with scheduler() as stack:
        worker, edge = await stack.worker(), stack.edge()
        with monkeypatch.context() as patch:
            patch.setattr(Metrics, "granted", odd)
            edge.acquire("r1")
            rejected = await edge.answer()
        assert rejected.request_id == "r1"
        assert rejected.error.reason == ErrorReason.ERROR_REASON_INTERNAL
        worker.free((await worker.next("void")).lease_id)
        edge.acquire("r2")
        assert (await edge.next("granted")).request_id == "r2"
        assert not edge.running.done()


async def test_a_fault_does_not_stop_the_clock(scheduler, monkeypatch):
    """Whoever has waited too long is told so, also after something else that was due has failed."""
    failed = asyncio.Event()
    tick = Sessions.tick

    def odd(sessions, now):
        if failed.is_set():
            tick(sessions, now)
        else:
            failed.set()
            raise RuntimeError

    monkeypatch.setattr("scheduler.servicer.TICK_AGAIN_S", 0.01)
    async with scheduler() as stack:
        await stack.worker()
        edge = stack.edge()
        edge.acquire("r1")
        await edge.next("granted")
        monkeypatch.setattr(Sessions, "tick", odd)
        edge.acquire("r2", queue_timeout_ms=1)
        await edge.next("rejected")
        assert failed.is_set()


async def test_eight_generations_share_one_slot_with_others(scheduler):
    """Each slot that frees goes to the next in turn: one request's many do not keep others out."""
    async with scheduler() as stack:
        worker = await stack.worker()
        edge = stack.edge()
        edge.acquire("r1", generations=range(8))
        edge.acquire("r2")
        granted = await edge.next("granted")
        assert [(await edge.answer()).position for _ in range(2)] == [1, 2]
        order = []
        for number in range(9):
            claims = verify(granted.lease, worker.welcomed.lease_key)
            order.append((granted.request_id, granted.generation, claims.generation))
            view = await stack.until(lambda view: view.workers[0].slots_in_use == 1)
            assert view.workers[0].slots_in_use == 1
            worker.free(granted.lease_id)
            if number < 8:
                granted = await edge.next("granted")
        generations = [("r1", number, number) for number in range(8)]
        assert order == [*generations[:2], ("r2", 0, 0), *generations[2:]]
        await stack.in_use(0)


async def test_a_refused_generation_is_asked_for_alone(scheduler):
    """Its retry goes to the front and leaves its siblings alone; Cancel ends them all."""
    async with scheduler() as stack:
        worker = await stack.worker(slots=2)
        edge = stack.edge()
        edge.acquire("r1", generations=range(4))
        first, second = [await edge.next("granted") for _ in range(2)]
        edge.acquire("r1", generations=[second.generation], front=True)
        assert (await worker.next("void")).lease_id == second.lease_id
        worker.free(second.lease_id)
        again = await edge.next("granted")
        assert again.generation == second.generation
        edge.say(cancel={"request_id": "r1"})
        worker.free(first.lease_id)
        worker.free(again.lease_id)
        view = await stack.in_use(0)
        assert view.queues[0].waiting == 0


async def test_one_refusal_names_all_generations(scheduler):
    """When the time is up of a request that has not begun."""
    async with scheduler() as stack:
        await stack.worker()
        edge = stack.edge()
        edge.acquire("r0")
        await edge.next("granted")
        edge.acquire("r1", generations=range(3), queue_timeout_ms=100)
        rejected = await edge.next("rejected")
        assert list(rejected.generations) == [0, 1, 2]
        assert rejected.error.reason == ErrorReason.ERROR_REASON_QUEUE_TIMEOUT
        await stack.in_use(1)


async def test_a_wait_ends_at_its_deadline(scheduler):
    """What has waited as long as it may is refused as at capacity, with a time to come back."""
    async with scheduler() as stack:
        await stack.worker()
        edge = stack.edge()
        edge.acquire("r1")
        await edge.next("granted")
        edge.acquire("r2", queue_timeout_ms=100)
        rejected = await edge.next("rejected")
        assert rejected.request_id == "r2"
        assert rejected.error.reason == ErrorReason.ERROR_REASON_QUEUE_TIMEOUT
        assert rejected.error.message == "all backends for this model are at capacity"
        assert 1_000 <= rejected.error.retry_after_ms <= 120_000


async def test_a_full_queue_refuses_at_once(scheduler):
    """A newcomer that finds the queue full is refused without waiting."""
    async with scheduler(queue_per_slot=1) as stack:
        await stack.worker()
        edge = stack.edge()
        for request_id in ("r1", "r2", "r3"):
            edge.acquire(request_id)
        rejected = await edge.next("rejected")
        assert rejected.request_id == "r3"
        assert rejected.error.reason == ErrorReason.ERROR_REASON_QUEUE_FULL


async def test_a_cancelled_wait_gets_nothing(scheduler):
    """After Cancel the next in the queue has its turn."""
    async with scheduler() as stack:
        worker = await stack.worker()
        edge = stack.edge()
        edge.acquire("r1")
        first = await edge.next("granted")
        edge.acquire("r2")
        edge.acquire("r3")
        edge.say(cancel={"request_id": "r2"})
        edge.say(cancel={"request_id": "r2"})
        await stack.until(lambda view: view.queues[0].waiting == 1)
        worker.free(first.lease_id)
        assert (await edge.next("granted")).request_id == "r3"


async def test_an_unused_lease_is_released(scheduler):
    """Release gives the slot to the next without a word from the worker."""
    async with scheduler() as stack:
        await stack.worker()
        edge = stack.edge()
        edge.acquire("r1")
        first = await edge.next("granted")
        edge.acquire("r2")
        edge.say(release={"lease_id": first.lease_id})
        assert (await edge.next("granted")).request_id == "r2"


async def test_a_lost_lease_holds_its_slot_until_the_worker_frees_it(scheduler):
    """LeaseLost makes the scheduler ask the worker; only the answer frees the slot."""
    async with scheduler() as stack:
        worker = await stack.worker()
        edge = stack.edge()
        edge.acquire("r1")
        first = await edge.next("granted")
        edge.acquire("r2")
        edge.say(lease_lost={"lease_id": first.lease_id})
        assert (await worker.next("void")).lease_id == first.lease_id
        await stack.in_use(1)
        worker.free(first.lease_id)
        assert (await edge.next("granted")).request_id == "r2"


async def test_an_edge_that_stays_away_has_its_leases_voided(scheduler):
    """After its session has been gone for the limit the worker is asked to void its leases."""
    async with scheduler() as stack:
        worker = await stack.worker(slots=2)
        edge = stack.edge()
        edge.acquire("r1")
        granted = await edge.next("granted")
        await edge.leave()
        assert (await worker.next("void")).lease_id == granted.lease_id
        await stack.in_use(1)
        worker.free(granted.lease_id)
        await stack.in_use(0)


async def test_an_edge_that_comes_back_keeps_what_it_lists(scheduler):
    """A new Hello keeps the leases it lists, and voids those that never reached the edge."""
    async with scheduler(gone_after_s=60.0) as stack:
        worker = await stack.worker(slots=2)
        edge = stack.edge()
        edge.acquire("r1")
        edge.acquire("r2")
        kept, missed = [await edge.next("granted") for _ in range(2)]
        await edge.leave()
        back = stack.edge(lease_ids=[kept.lease_id])
        assert (await worker.next("void")).lease_id == missed.lease_id
        back.say(release={"lease_id": kept.lease_id})
        await stack.in_use(1)


async def test_a_newer_session_of_an_edge_survives_the_end_of_the_older(scheduler):
    """The clean-up of a replaced session leaves the session that replaced it alone."""
    async with scheduler(gone_after_s=0.0) as stack:
        worker = await stack.worker()
        old = stack.edge()
        await old.next("welcome")
        new = stack.edge()
        await new.next("welcome")
        async with asyncio.timeout(5):
            await old.running
        new.acquire("r1")
        granted = await new.next("granted")
        new.acquire("r2")
        await new.next("queued")
        worker.free(granted.lease_id)
        assert (await new.next("granted")).request_id == "r2"
        assert (await stack.in_use(1)).edges == 1


async def test_a_worker_that_comes_back_keeps_its_leases(scheduler):
    """With the same instance the listed leases stay, absent ones are voided, none is freed."""
    async with scheduler(gone_after_s=60.0) as stack:
        worker = await stack.worker(slots=2)
        edge = stack.edge()
        edge.acquire("r1")
        edge.acquire("r2")
        first, second = [await edge.next("granted") for _ in range(2)]
        await worker.leave()
        back = await stack.worker(slots=2, running=[first.lease], term=worker.welcomed.term)
        assert (await back.next("void")).lease_id == second.lease_id
        await stack.in_use(2)
        back.free(second.lease_id)
        view = await stack.in_use(1)
        assert view.term == worker.welcomed.term


async def test_a_new_process_of_a_worker_starts_with_empty_books(scheduler):
    """A new instance ends the leases of the old one at once, and the old one may not come back."""
    async with scheduler() as stack:
        old = await stack.worker()
        edge = stack.edge()
        edge.acquire("r1")
        await edge.next("granted")
        edge.acquire("r2")
        await stack.worker("w", "w-2")
        assert (await edge.next("granted")).instance_id == "w-2"
        async with asyncio.timeout(5):
            await old.running
        call = stack.stub.WorkerSession()
        hello = {"worker_id": "w", "instance_id": "w-1", "address": "x:1", "model": {"model": "m"}}
        await call.write(WorkerReports(items=[WorkerReport(hello=hello)]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert ServiceError.of_rpc(caught.value).detail.reason == ErrorReason.ERROR_REASON_CONFLICT


async def test_a_restarted_scheduler_rebuilds_its_books(scheduler):
    """From the workers' Hellos a new scheduler knows every running lease, and leads above."""
    async with scheduler() as first:
        worker = await first.worker(slots=2)
        edge = first.edge()
        edge.acquire("r1")
        edge.acquire("r2")
        running, orphan = [await edge.next("granted") for _ in range(2)]
        term, key = worker.welcomed.term, worker.welcomed.lease_key
    async with scheduler() as second:
        edge = second.edge(lease_ids=[running.lease_id], term=term)
        assert (await edge.next("welcome")).term > term
        worker = await second.worker(
            slots=2,
            running=[running.lease, _granted_to(orphan.lease, "edge-dead", key)],
            term=term,
        )
        assert worker.welcomed.term > term
        edge.acquire("r3")
        assert (await edge.answer()).position == 1
        assert (await worker.next("void")).lease_id == orphan.lease_id
        worker.free(orphan.lease_id)
        granted = await edge.next("granted")
        assert granted.request_id == "r3"
        assert verify(granted.lease, worker.welcomed.lease_key)
        with pytest.raises(LeaseError):
            verify(running.lease, worker.welcomed.lease_key)
        await second.in_use(2)


def _granted_to(blob, edge_id, key):
    claims = leases.read(blob)
    claims.edge_id = edge_id
    return leases.sign(claims, key)


async def test_everybody_is_told_when_the_term_rises(scheduler):
    """A Hello from under a higher term raises ours, and all sessions get a new Welcome."""
    async with scheduler() as stack:
        edge = stack.edge()
        before = await edge.next("welcome")
        worker = await stack.worker()
        await stack.worker("v", "v-1", term=41)
        assert (await edge.next("welcome")).term == 42 > before.term
        again = await worker.welcome()
        assert again.term == 42
        assert again.lease_key != worker.welcomed.lease_key


async def test_models_are_pushed_with_every_change(scheduler):
    """An edge learns at once that a model can be served, and that it no longer can."""
    async with scheduler() as stack:
        edge = stack.edge()
        worker = await stack.worker()
        while not (models := await edge.next("models")).models:
            pass
        assert [
            (each.card.model, each.card.context_length, each.ready) for each in models.models
        ] == [("tiny", 256, True)]
        await worker.leave()
        while (models := await edge.next("models")).models[0].ready:
            pass
        listed = await stack.stub.ListModels(ListModelsRequest())
        assert listed.models == models.models
        assert listed.complete
        edge.acquire("r1")
        error = (await edge.next("rejected")).error
        assert error.reason == ErrorReason.ERROR_REASON_NO_WORKER
        assert error.message == "no backend is available for this model"
        edge.acquire("r2", model="x")
        error = (await edge.next("rejected")).error
        assert error.reason == ErrorReason.ERROR_REASON_UNKNOWN_MODEL
        assert error.message == "model 'x' does not exist"


async def test_after_the_start_what_is_missing_is_waited_for(scheduler):
    """While the view is not complete a request for a missing model waits, then is refused."""
    async with scheduler(warm_up_s=2.0) as stack:
        edge = stack.edge()
        assert not (await edge.next("models")).complete
        edge.acquire("r1")
        edge.acquire("r2", model="x")
        assert {"r1", "r2"} == {(await edge.next("queued")).request_id for _ in range(2)}
        await stack.worker()
        assert (await edge.next("granted")).request_id == "r1"
        rejected = await edge.next("rejected")
        assert rejected.request_id == "r2"
        assert rejected.error.reason == ErrorReason.ERROR_REASON_UNKNOWN_MODEL


async def test_a_stream_that_does_not_begin_with_hello_is_refused(scheduler):
    """The first item must be a Hello; the call's status says so."""
    async with scheduler() as stack:
        call = stack.stub.EdgeSession()
        await call.write(EdgeMessages(items=[EdgeMessage(cancel={"request_id": "r"})]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_the_fleet_and_its_metrics_can_be_watched(scheduler):
    """WatchFleet tells slots, queue, drift and edges once when asked with interval 0."""
    async with scheduler() as stack:
        worker = await stack.worker()
        edge = stack.edge()
        edge.acquire("r1")
        granted = await edge.next("granted")
        worker.say(heartbeat={"running_lease_ids": [granted.lease_id], "tokens_per_second": 7})
        edge.acquire("r2")
        await edge.next("queued")
        await stack.until(lambda view: view.workers[0].heartbeat.tokens_per_second == 7)
        (view,) = [each async for each in stack.stub.WatchFleet(WatchFleetRequest())]
        assert (view.edges, view.term, view.drift) == (1, 1, 0)
        assert (view.queues[0].waiting, view.queues[0].bound) == (1, 4)
        only = view.workers[0]
        assert (only.model, only.state, only.slots, only.slots_in_use) == ("tiny", "serving", 1, 1)
        text = await asyncio.to_thread(_read, f"http://127.0.0.1:{stack.ports['admin']}/metrics")
        assert 'fastrun_scheduler_grants_total{model="tiny"} 1.0' in text
        assert "fastrun_scheduler_drift 0.0" in text


async def test_what_cannot_be_observed_once_is_observed_again(scheduler, monkeypatch):
    """A fault of ours in what is counted now and then is not the end of all figures."""
    faults, observe, observed = [KeyError("w1")], Metrics.observe, asyncio.Event()

    def sometimes(metrics, view):
        if faults:
            raise faults.pop()
        observe(metrics, view)
        observed.set()

    monkeypatch.setattr(Metrics, "observe", sometimes)
    monkeypatch.setattr("scheduler.__main__.OBSERVE_INTERVAL_S", 0)
    async with scheduler(), asyncio.timeout(20):
        await observed.wait()


def _read(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()
