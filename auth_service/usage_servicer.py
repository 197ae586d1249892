"""The calls about usage and prices, of AuthService and of AdminService."""

import grpc.aio
import structlog
from google.protobuf.message import Message

from auth_service.account_store import AccountStore
from auth_service.errors import InvalidFieldError
from auth_service.metrics import Metrics
from auth_service.prices import Price, Prices, ValidPrice
from auth_service.refusals import told
from auth_service.usage import Days, Place, UsageRecord, UsageStatus, UsageSum
from auth_service.usage_store import UsageStore
from fastrun.v1 import admin_pb2, admin_pb2_grpc, auth_pb2, auth_pb2_grpc

log = structlog.get_logger()

Context = grpc.aio.ServicerContext

_STATUSES = {
    auth_pb2.USAGE_STATUS_COMPLETED: UsageStatus.COMPLETED,
    auth_pb2.USAGE_STATUS_CANCELLED: UsageStatus.CANCELLED,
    auth_pb2.USAGE_STATUS_FAILED: UsageStatus.FAILED,
    auth_pb2.USAGE_STATUS_PARTIAL: UsageStatus.PARTIAL,
    auth_pb2.USAGE_STATUS_LOST: UsageStatus.LOST,
}


class UsageServicer(auth_pb2_grpc.AuthServiceServicer):
    """What edges record, and ask on behalf of an account."""

    def __init__(self, usage: UsageStore, metrics: Metrics) -> None:
        self._usage = usage
        self._metrics = metrics

    async def RecordUsage(  # noqa: N802 - gRPC's name
        self, request: auth_pb2.RecordUsageRequest, context: "Context[Message, Message]"
    ) -> auth_pb2.RecordUsageResponse:
        """See auth.proto."""
        del context
        with self._metrics.record_seconds.time():
            recorded = await told(self._record(request))
        self._metrics.recorded(new=recorded, known=len(request.records) - recorded)
        return auth_pb2.RecordUsageResponse(recorded=recorded)

    async def QueryUsage(  # noqa: N802 - gRPC's name
        self, request: auth_pb2.QueryUsageRequest, context: "Context[Message, Message]"
    ) -> auth_pb2.QueryUsageResponse:
        """See auth.proto."""
        del context
        sums = await told(self._query(request))
        return auth_pb2.QueryUsageResponse(sums=[_sum(each) for each in sums])

    async def _record(self, request: auth_pb2.RecordUsageRequest) -> int:
        return await self._usage.record([_record(each) for each in request.records])

    async def _query(self, request: auth_pb2.QueryUsageRequest) -> list[UsageSum]:
        if not request.account_id:
            raise InvalidFieldError("account_id must not be empty")
        days = Days.parse(request.first_day, request.last_day)
        return await self._usage.of_account(request.account_id, days, key_id=request.key_id)


class AdminUsageServicer(admin_pb2_grpc.AdminServiceServicer):
    """What operators ask and set."""

    def __init__(self, accounts: AccountStore, usage: UsageStore, prices: Prices) -> None:
        self._accounts = accounts
        self._usage = usage
        self._prices = prices

    async def QueryUsage(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.AdminServiceQueryUsageRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.AdminServiceQueryUsageResponse:
        """See admin.proto."""
        del context
        sums, end = await told(self._query(request))
        return admin_pb2.AdminServiceQueryUsageResponse(
            sums=[_sum(each) for each in sums], next_page_token=end.token() if end else ""
        )

    async def RecomputeUsage(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.RecomputeUsageRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.RecomputeUsageResponse:
        """See admin.proto."""
        del context
        changed = await told(self._recompute(request))
        log.info(
            "usage_recomputed", first=request.first_day, last=request.last_day, changed=changed
        )
        return admin_pb2.RecomputeUsageResponse(changed=changed)

    async def SetPrice(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.SetPriceRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.SetPriceResponse:
        """See admin.proto."""
        del context
        told_price = request.price
        price = Price(
            model=told_price.model,
            prompt_micros=told_price.prompt_micros,
            cached_micros=told_price.cached_micros,
            completion_micros=told_price.completion_micros,
        )
        valid = await told(self._prices.set(price))
        log.info("price_set", model=price.model)
        return admin_pb2.SetPriceResponse(price=_price(valid))

    async def ListPrices(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.ListPricesRequest, context: "Context[Message, Message]"
    ) -> admin_pb2.ListPricesResponse:
        """See admin.proto."""
        del request, context
        prices = await told(self._prices.list())
        return admin_pb2.ListPricesResponse(prices=[_price(each) for each in prices])

    async def _query(
        self, request: admin_pb2.AdminServiceQueryUsageRequest
    ) -> tuple[list[UsageSum], Place | None]:
        days = Days.parse(request.first_day, request.last_day)
        if not request.account:
            after = Place.parse(request.page_token) if request.page_token else None
            return await self._usage.of_all(days, model=request.model, after=after)
        account = await self._accounts.find(request.account)
        return await self._usage.of_account(account.account_id, days, model=request.model), None

    async def _recompute(self, request: admin_pb2.RecomputeUsageRequest) -> int:
        return await self._usage.recompute(Days.parse(request.first_day, request.last_day))


def _record(record: auth_pb2.UsageRecord) -> UsageRecord:
    """Read a record; a count that is absent stays absent, and 0 stays 0.

    Raises:
        InvalidFieldError: its status is not one.
    """
    status = _STATUSES.get(record.status)
    if status is None:
        raise InvalidFieldError(f"the status of {record.request_id[:80]!r} is not known")
    given = record.HasField
    return UsageRecord(
        request_id=record.request_id,
        account_id=record.account_id,
        key_id=record.key_id,
        model=record.model,
        worker_id=record.worker_id,
        prompt_tokens=record.prompt_tokens if given("prompt_tokens") else None,
        cached_tokens=record.cached_tokens if given("cached_tokens") else None,
        completion_tokens=record.completion_tokens if given("completion_tokens") else None,
        reasoning_tokens=record.reasoning_tokens if given("reasoning_tokens") else None,
        first_token_ms=record.first_token_ms if given("first_token_ms") else None,
        duration_ms=record.duration_ms if given("duration_ms") else None,
        finish=record.finish,
        status=status,
        started_at=record.started_at,
    )


def _sum(each: UsageSum) -> auth_pb2.UsageSum:
    return auth_pb2.UsageSum(
        day=each.day.isoformat(),
        account_id=each.account_id,
        model=each.model,
        requests=each.requests,
        prompt_tokens=each.prompt_tokens,
        cached_tokens=each.cached_tokens,
        completion_tokens=each.completion_tokens,
        reasoning_tokens=each.reasoning_tokens,
        lost_requests=each.lost_requests,
        cost_micros=each.cost_micros,
    )


def _price(valid: ValidPrice) -> admin_pb2.Price:
    return admin_pb2.Price(
        model=valid.price.model,
        prompt_micros=valid.price.prompt_micros,
        cached_micros=valid.price.cached_micros,
        completion_micros=valid.price.completion_micros,
        valid_from=valid.valid_from,
    )
