"""`fastrun fleet`: workers, slots, queues, and whether the books are right."""

from typing import Annotated, Any

import grpc.aio
import typer

from fastrun.cli.connection import ContextName, Scheduler, ask, scheduler_service
from fastrun.cli.data import Data
from fastrun.cli.errors import CommandError
from fastrun.cli.group import group
from fastrun.cli.output import Json, print_columns, print_json
from fastrun.v1 import scheduler_pb2, scheduler_pb2_grpc

app = group()


@app.command()
def fleet(
    watch: Annotated[bool, typer.Option("--watch", help="Show it again each second.")] = False,
    scheduler: Scheduler = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Show workers, slots in use, models and queues."""

    async def talk(channel: grpc.aio.Channel) -> bool:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        request = scheduler_pb2.WatchFleetRequest(interval_ms=1000 if watch else 0)
        seen = False
        async for answer in stub.WatchFleet(request, timeout=None if watch else 10.0):
            _show(answer, as_json=as_json)
            seen = True
        return seen

    service = scheduler_service(scheduler, data, context)
    if not ask(service, talk):
        raise CommandError(
            f"the scheduler at {service.address} says nothing: is it the leading one?"
        )


def _show(answer: scheduler_pb2.WatchFleetResponse, *, as_json: bool) -> None:
    if as_json:
        print_json(fields(answer))
        return
    print_columns(
        ("worker", "model", "state", "slots", "running", "kv blocks", "tokens/s", "address"),
        [_row(worker) for worker in answer.workers],
    )
    print()
    for queue in answer.queues:
        print(f"queue of {queue.model}: {queue.waiting} waiting, room for {queue.bound}")
    print(f"edges {answer.edges}, drift {answer.drift}, term {answer.term}")


def _row(worker: scheduler_pb2.WorkerStatus) -> tuple[object, ...]:
    beat = worker.heartbeat
    return (
        worker.worker_id,
        worker.model,
        worker.state,
        f"{worker.slots_in_use}/{worker.slots}",
        len(beat.running_lease_ids),
        f"{beat.kv_blocks_used}/{beat.kv_blocks_total}",
        f"{beat.tokens_per_second:.0f}",
        worker.address,
    )


def fields(answer: scheduler_pb2.WatchFleetResponse) -> dict[str, Any]:
    """The fleet as JSON; the names are part of what scripts rely on."""
    return {
        "workers": [
            {
                "worker_id": worker.worker_id,
                "instance_id": worker.instance_id,
                "address": worker.address,
                "model": worker.model,
                "state": worker.state,
                "slots": worker.slots,
                "slots_in_use": worker.slots_in_use,
                "running": len(worker.heartbeat.running_lease_ids),
                "waiting": worker.heartbeat.waiting,
                "kv_blocks_used": worker.heartbeat.kv_blocks_used,
                "kv_blocks_total": worker.heartbeat.kv_blocks_total,
                "tokens_per_second": round(worker.heartbeat.tokens_per_second, 1),
                "prompt_tokens": worker.heartbeat.prompt_tokens,
                "cached_tokens": worker.heartbeat.cached_tokens,
            }
            for worker in answer.workers
        ],
        "queues": [
            {"model": queue.model, "waiting": queue.waiting, "bound": queue.bound}
            for queue in answer.queues
        ],
        "drift": answer.drift,
        "edges": answer.edges,
        "term": answer.term,
    }
