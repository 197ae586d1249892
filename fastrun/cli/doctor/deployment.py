"""A deployment as its operators reach it: its services, its database by them, its workers."""

from collections.abc import Iterator
from dataclasses import replace

import grpc.aio

from fastrun.cli.connection import TIMEOUT_S, Service, ask
from fastrun.cli.doctor import fleet, services
from fastrun.cli.doctor.finding import Finding, ok, wrong
from fastrun.cli.errors import CommandError
from fastrun.v1 import admin_pb2, admin_pb2_grpc
from fastrun.v1.scheduler_pb2 import WatchFleetRequest, WatchFleetResponse
from fastrun.v1.scheduler_pb2_grpc import SchedulerServiceStub


def check(auth: Service, scheduler: Service) -> Iterator[Finding]:
    """Look at a deployment.

    Args:
        auth: its auth service.
        scheduler: its schedulers.
    """
    each = [replace(scheduler, address=address) for address in scheduler.address.split(",")]
    yield from services.check([auth, *each])
    yield _accounts(auth)
    yield from _fleet(scheduler)


def _accounts(auth: Service) -> Finding:
    """Whether the auth service can ask Postgres, with a question that costs nothing."""
    try:
        ask(
            auth,
            lambda channel: admin_pb2_grpc.AdminServiceStub(channel).ListPrices(
                admin_pb2.ListPricesRequest(), timeout=TIMEOUT_S
            ),
        )
    except CommandError as error:
        return wrong("accounts", f"the auth service cannot look them up: {error}")
    return ok("accounts", "the auth service can ask Postgres")


def _fleet(scheduler: Service) -> Iterator[Finding]:
    async def talk(channel: grpc.aio.Channel) -> WatchFleetResponse | None:
        request = WatchFleetRequest(interval_ms=0)
        async for answer in SchedulerServiceStub(channel).WatchFleet(request, timeout=TIMEOUT_S):
            found: WatchFleetResponse = answer
            return found
        return None

    try:
        answer = ask(scheduler, talk)
    except CommandError as error:
        yield wrong("fleet", str(error))
        return
    if answer is not None:
        yield from fleet.check(answer)
