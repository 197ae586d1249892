"""Which of several schedulers leads."""

import asyncio
from collections.abc import Sequence

from fastrun.cli.errors import CommandError
from fastrun.service import rpc
from fastrun.service.identity import Role
from fastrun.service.tls import ClientTls
from fastrun.v1 import scheduler_pb2, scheduler_pb2_grpc

LIMIT_S = 3.0


async def leading(addresses: Sequence[str], tls: ClientTls | None) -> str:
    """Ask all of them; return the address of the one that leads.

    Args:
        addresses: host:port of each.
        tls: what to show them; None: plaintext.

    Raises:
        CommandError: some answer, and none of them leads.
        grpc.aio.AioRpcError: none answers; why the first one does not.
    """
    answers = await asyncio.gather(
        *(_ask(address, tls) for address in addresses), return_exceptions=True
    )
    views = [each for each in answers if isinstance(each, scheduler_pb2.WatchFleetResponse)]
    if not views:
        raise next(each for each in answers if isinstance(each, BaseException))
    led = [
        (each.term, address)
        for address, each in zip(addresses, answers, strict=True)
        if isinstance(each, scheduler_pb2.WatchFleetResponse) and each.leads
    ]
    if not led:
        raise CommandError(
            f"no scheduler leads right now, of {', '.join(addresses)}: they need Postgres to agree"
        )
    return max(led)[1]


async def _ask(address: str, tls: ClientTls | None) -> scheduler_pb2.WatchFleetResponse:
    async with rpc.channel(address, Role.SCHEDULER, tls) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        calls = stub.WatchFleet(scheduler_pb2.WatchFleetRequest(), timeout=LIMIT_S)
        async for answer in calls:
            view: scheduler_pb2.WatchFleetResponse = answer
            return view
    raise CommandError(f"the scheduler at {address} says nothing: ask it again")
