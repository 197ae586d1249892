"""Whether a service answers, speaks our protocol, and has the time that we have."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fastrun.cli.connection import Service, why_not_reached
from fastrun.cli.doctor import clock, protocol
from fastrun.cli.doctor.finding import Finding, ok, wrong
from fastrun.service import rpc
from fastrun.service.identity import Role
from fastrun.service.rpc import CLOCK, VERSION

TIMEOUT_S = 5.0


def check(services: Iterable[Service], cure: str | None = None) -> list[Finding]:
    """Ask each service; one that does not answer costs TIMEOUT_S.

    Args:
        services: that are to be asked, all at once.
        cure: what to do where nothing answers; see why_not_reached().
    """

    async def run() -> list[list[Finding]]:
        return await asyncio.gather(*(_ask(service, cure) for service in services))

    return [finding for findings in asyncio.run(run()) for finding in findings]


async def _ask(service: Service, cure: str | None) -> list[Finding]:
    what = f"{called(service.role)} at {service.address}"
    before_s = time.time()
    try:
        async with rpc.channel(service.address, service.role, service.tls) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            call = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
            answer = await call
            told = {key: str(value) for key, value in await call.trailing_metadata()}
    except grpc.aio.AioRpcError as error:
        return [wrong("service", why_not_reached(service, error.details() or "", cure))]
    after_s = time.time()
    return list(_told(what, answer.status, told, before_s, after_s))


def _told(
    what: str, status: int, told: dict[str, str], before_s: float, after_s: float
) -> Iterator[Finding]:
    if status == health_pb2.HealthCheckResponse.SERVING:
        yield ok("service", f"the {what} serves")
    else:
        yield wrong("service", f"the {what} takes no new calls: it is ending, see its log")
    yield protocol.check(what, told.get(VERSION, ""))
    if CLOCK in told:
        theirs_s = int(told[CLOCK]) / 1000
        yield clock.compare(f"the {what}", theirs_s, before_s=before_s, after_s=after_s)


def called(role: Role) -> str:
    """What people call a service."""
    return "auth service" if role is Role.AUTH else str(role)
