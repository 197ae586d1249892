"""GET /v1/usage: what the account of a key has used, by day and model."""

from collections import Counter
from collections.abc import Callable
from datetime import MINYEAR, UTC, date, datetime, timedelta

from aiohttp import web
from multidict import MultiMapping

from edge.authentication import Authenticator
from edge.errors import USAGE_UNKNOWN, Refusal, invalid
from edge.exchange import Exchange
from edge.openai_replies import UsageList, UsageOfDay, encode
from edge.usage_link import UsageLink
from fastrun.service.errors import ServiceError
from fastrun.v1.auth_pb2 import QueryUsageRequest, UsageSum
from fastrun.v1.error_pb2 import ErrorReason

MOST_DAYS = 366
USUAL_DAYS = 30
MOST_AT_ONCE = 4
"""Questions of one account: each is a query in the database that all share."""

_FIELDS = {"first_day", "last_day"}


class Usage:
    """Serves it."""

    def __init__(
        self,
        authenticator: Authenticator,
        link: UsageLink,
        *,
        today: Callable[[], date] = lambda: datetime.now(UTC).date(),
    ) -> None:
        self._authenticator = authenticator
        self._link = link
        self._today = today
        self._asking: Counter[str] = Counter()

    async def __call__(self, exchange: Exchange) -> web.StreamResponse:
        """Answer one request.

        Raises:
            Refusal: what the client is told instead.
        """
        caller = await self._authenticator.caller(exchange.request.headers)
        exchange.facts.update(account_id=caller.account_id, key_id=caller.key_id)
        first, last = days(exchange.request.query, self._today())
        sums = await self._sums(caller.account_id, first, last)
        reply = UsageList(
            object="list",
            first_day=first.isoformat(),
            last_day=last.isoformat(),
            data=[_of_day(each) for each in sums],
        )
        return exchange.json(encode(reply))

    async def _sums(self, account_id: str, first: date, last: date) -> list[UsageSum]:
        if self._asking[account_id] >= MOST_AT_ONCE:
            raise Refusal(429, f"ask for usage at most {MOST_AT_ONCE} times at once")
        self._asking[account_id] += 1
        try:
            answer = await self._link.query(
                QueryUsageRequest(
                    account_id=account_id, first_day=first.isoformat(), last_day=last.isoformat()
                )
            )
        except ServiceError as error:
            if error.detail.reason == ErrorReason.ERROR_REASON_INVALID_REQUEST:
                raise
            raise Refusal(503, USAGE_UNKNOWN, reason="usage_unknown") from None
        finally:
            self._asking[account_id] -= 1
            if self._asking[account_id] == 0:
                del self._asking[account_id]
        return list(answer.sums)


def days(query: MultiMapping[str], today: date) -> tuple[date, date]:
    """Read the first and the last day that are asked for.

    Args:
        query: of the URL.
        today: in UTC; the last day unless told otherwise.

    Raises:
        Refusal: 400.
    """
    if not _FIELDS.issuperset(query.keys()):
        raise invalid("use first_day and last_day alone, each a day such as 2026-11-29")
    last = _day(query, "last_day") or today
    first = _day(query, "first_day") or last - timedelta(days=USUAL_DAYS - 1)
    if first > last:
        raise invalid("last_day must not be before first_day")
    if (last - first).days >= MOST_DAYS:
        raise invalid(f"ask for at most {MOST_DAYS} days at once")
    return first, last


def _day(query: MultiMapping[str], field: str) -> date | None:
    told = query.getall(field, [])
    if not told:
        return None
    try:
        day = date.fromisoformat(told[0])
    except ValueError:
        day = None
    # Other forms of ISO 8601 are not for others to read; and 29 days before must be a day, too.
    if day is None or len(told) > 1 or day.isoformat() != told[0] or day.year < MINYEAR + 1:
        raise invalid(f"{field} must be one day such as 2026-11-29")
    return day


def _of_day(each: UsageSum) -> UsageOfDay:
    return UsageOfDay(
        day=each.day,
        model=each.model,
        requests=each.requests,
        prompt_tokens=each.prompt_tokens,
        cached_tokens=each.cached_tokens,
        completion_tokens=each.completion_tokens,
        reasoning_tokens=each.reasoning_tokens,
        lost_requests=each.lost_requests,
        cost_micros=each.cost_micros if each.HasField("cost_micros") else None,
    )
