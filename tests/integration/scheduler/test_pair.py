"""Two real schedulers over one Postgres, with edges and workers that speak to both."""

import asyncio
from contextlib import asynccontextmanager

import asyncpg
import grpc
import pytest

from fastrun.service import leases
from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.scheduler_pb2 import ForgetModelRequest, ListModelsRequest


@pytest.fixture
def pair(scheduler, database):
    """Two of them, the leader first."""

    @asynccontextmanager
    async def start():
        async with scheduler(database_url=database) as first:
            await first.until(lambda view: view.leads)
            async with scheduler(database_url=database) as second:
                yield first, second

    return start


async def test_one_leads_and_the_other_takes_over(pair):
    """When the leader stops the other one leads with a higher term, and all say Hello again."""
    async with pair() as (first, second):
        worker = await first.worker()
        standing_by = second.edge("edge-2")
        assert (await standing_by.next("welcome")).term == 0
        watching = await second.add_worker()
        assert (await watching.welcome()).term == 0
        edge = first.edge()
        edge.acquire("r1")
        granted = await edge.next("granted")
        claims = leases.verify(granted.lease, worker.welcomed.lease_key)
        assert claims.term == worker.welcomed.term

        watching.hello |= {"running_leases": [granted.lease]}
        await first.service.stop()
        welcome = await watching.welcome()
        assert welcome.term > claims.term
        assert (await standing_by.next("welcome")).term == welcome.term
        standing_by.acquire("r2")
        assert (await standing_by.answer()).position == 1
        watching.free(granted.lease_id)
        other = await standing_by.next("granted")
        assert leases.verify(other.lease, welcome.lease_key).request_id == "r2"


async def test_models_outlive_schedulers(scheduler, database):
    """One that was served is known to the next scheduler without any worker, until forgotten."""
    async with scheduler(database_url=database) as stack:
        await stack.until(lambda view: view.leads)
        await stack.worker()
        refused = await refusal(stack, "tiny")
        assert refused.reason == ErrorReason.ERROR_REASON_CONFLICT
        await kept(database, ["tiny"])
    async with scheduler(database_url=database) as stack:
        await stack.until(lambda view: view.leads)
        listed = await stack.stub.ListModels(ListModelsRequest())
        (state,) = listed.models
        assert (state.card.model, state.card.context_length, state.ready) == ("tiny", 256, False)
        edge = stack.edge()
        edge.acquire("r1")
        assert (await edge.next("rejected")).error.reason == ErrorReason.ERROR_REASON_NO_WORKER
        await stack.stub.ForgetModel(ForgetModelRequest(model="tiny"))
        assert (await refusal(stack, "tiny")).reason == ErrorReason.ERROR_REASON_NOT_FOUND
        edge.acquire("r2")
        assert (await edge.next("rejected")).error.reason == ErrorReason.ERROR_REASON_UNKNOWN_MODEL
        await kept(database, [])


async def test_who_stands_by_forgets_nothing(pair):
    """It says to ask the leader."""
    async with pair() as (_, second):
        refused = await refusal(second, "tiny")
        assert refused.reason == ErrorReason.ERROR_REASON_UNAVAILABLE


async def test_without_postgres_it_stands_by(scheduler):
    """A starting scheduler waits for Postgres: it may be that another one leads."""
    async with scheduler(database_url="postgresql://nobody@127.0.0.1:1/none") as stack:
        edge = stack.edge()
        assert (await edge.next("welcome")).term == 0
        view = await stack.until(lambda view: view.edges == 1)
        assert not view.leads
        assert stack.service._why_not_ready() is not None


async def test_without_a_database_models_are_forgotten_as_well(scheduler):
    """They are kept nowhere, and known while the scheduler runs."""
    async with scheduler() as stack:
        worker = await stack.worker()
        await worker.leave()
        await stack.until(lambda view: view.workers[0].state == "gone")
        await stack.stub.ForgetModel(ForgetModelRequest(model="tiny"))
        assert (await refusal(stack, "tiny")).reason == ErrorReason.ERROR_REASON_NOT_FOUND


async def refusal(stack, model):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.stub.ForgetModel(ForgetModelRequest(model=model))
    return ServiceError.of_rpc(caught.value).detail


async def kept(database, models):
    connection = await asyncpg.connect(database)
    async with asyncio.timeout(10):
        while [
            row["model"] for row in await connection.fetch("select * from known_models")
        ] != models:
            await asyncio.sleep(0.01)
    await connection.close()
