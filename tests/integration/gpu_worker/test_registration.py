"""What a worker does while its schedulers are away."""

import asyncio

import structlog

from fastrun.v1.scheduler_pb2 import Heartbeat, WorkerHello
from gpu_worker.registration import Registration
from gpu_worker.slots import Slots

TRIES = 3


async def test_a_scheduler_that_stays_away_is_told_of_once():
    """A worker tries again and again, and says so the first time only."""
    tries = asyncio.Semaphore(0)

    async def hang_up(_reader, writer):
        tries.release()
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    registration = Registration(
        [f"{host}:{port}"],
        slots=Slots(1, instance_id="i"),
        heartbeat=Heartbeat,
        on_drain=lambda _: None,
    )
    with structlog.testing.capture_logs() as lines:
        running = asyncio.create_task(registration.run(WorkerHello(worker_id="w")))
        async with asyncio.timeout(30):
            for _ in range(TRIES):
                await tries.acquire()
        running.cancel()
        await asyncio.wait([running])
    server.close()
    assert [line["event"] for line in lines] == ["scheduler_not_reached"]
