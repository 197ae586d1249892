"""Who is told what requests used, and who is asked: the auth service and the schedulers."""

from __future__ import annotations  # grpc's classes are generic in their stubs only

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import grpc
import grpc.aio

from fastrun.service.errors import ServiceError
from fastrun.service.identity import Role
from fastrun.service.rpc import FreshChannel
from fastrun.service.tls import Tls
from fastrun.v1 import auth_pb2_grpc, scheduler_pb2_grpc
from fastrun.v1.auth_pb2 import (
    QueryUsageRequest,
    QueryUsageResponse,
    RecordUsageRequest,
    UsageRecord,
)
from fastrun.v1.scheduler_pb2 import FindUsageRequest, FindUsageResponse, GenerationUsage


@dataclass(frozen=True, slots=True)
class Found:
    """What the schedulers know of requests."""

    generations: Sequence[GenerationUsage]
    running: frozenset[str]
    """Requests of which some generation still holds a lease."""
    is_complete: bool
    """All schedulers have answered."""


class UsageLink:
    """Channels of their own, so that records and keys do not wait for each other."""

    def __init__(
        self,
        auth_address: str,
        scheduler_addresses: Iterable[str],
        *,
        timeout_s: float,
        tls: Tls | None,
    ) -> None:
        """Prepare; it connects when first used.

        Args:
            auth_address: host:port.
            scheduler_addresses: host:port of each.
            timeout_s: of every call.
            tls: for the channels.
        """
        self._auth = FreshChannel(auth_address, Role.AUTH, tls)
        self._schedulers = [
            FreshChannel(address, Role.SCHEDULER, tls) for address in scheduler_addresses
        ]
        self._timeout_s = timeout_s

    async def record(self, records: Sequence[UsageRecord]) -> None:
        """Return when all are recorded.

        Raises:
            ServiceError: perhaps none is.
        """
        stub: auth_pb2_grpc.AuthServiceAsyncStub = auth_pb2_grpc.AuthServiceStub(self._auth.get())
        try:
            await stub.RecordUsage(RecordUsageRequest(records=records), timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise ServiceError.of_rpc(error) from None

    async def query(self, request: QueryUsageRequest) -> QueryUsageResponse:
        """Ask what an account has used.

        Raises:
            ServiceError: nobody can say.
        """
        stub: auth_pb2_grpc.AuthServiceAsyncStub = auth_pb2_grpc.AuthServiceStub(self._auth.get())
        try:
            return await stub.QueryUsage(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise ServiceError.of_rpc(error) from None

    async def find(self, request_ids: Sequence[str]) -> Found:
        """Ask every scheduler what it knows; those that cannot be reached know nothing."""
        answers = await asyncio.gather(
            *(self._find(channel, request_ids) for channel in self._schedulers)
        )
        told = [answer for answer in answers if answer is not None]
        return Found(
            generations=[each for answer in told for each in answer.generations],
            running=frozenset(each for answer in told for each in answer.running_request_ids),
            is_complete=len(told) == len(answers),
        )

    async def close(self) -> None:
        """End what is open."""
        await asyncio.gather(*(channel.close() for channel in (self._auth, *self._schedulers)))

    async def _find(
        self, channel: FreshChannel, request_ids: Sequence[str]
    ) -> FindUsageResponse | None:
        stub: scheduler_pb2_grpc.SchedulerServiceAsyncStub = (
            scheduler_pb2_grpc.SchedulerServiceStub(channel.get())
        )
        try:
            return await stub.FindUsage(
                FindUsageRequest(request_ids=request_ids), timeout=self._timeout_s
            )
        except grpc.aio.AioRpcError:
            return None
