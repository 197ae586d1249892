"""What models cost, and since when: a new price never changes what was recorded before."""

from collections.abc import Callable
from dataclasses import dataclass

import asyncpg

from auth_service.audit import Action, Audit, difference
from auth_service.database import Connection, Database
from auth_service.errors import InvalidFieldError

MOST_MICROS = 10**12  # a million units: sums of costs always fit 64 bits

_MOST_NAME = 1000


@dataclass(frozen=True, slots=True)
class Price:
    """What a model's tokens cost, in millionths of the currency's unit for a million tokens.

    Args:
        model: the name that callers ask for.
        prompt_micros: of prompt tokens that were not cached.
        cached_micros: of prompt tokens that came from the prefix cache.
        completion_micros: of completion tokens, reasoning included.
    """

    model: str
    prompt_micros: int
    cached_micros: int
    completion_micros: int


@dataclass(frozen=True, slots=True)
class ValidPrice:
    """A price, and from when on it is the model's; seconds since 1970."""

    price: Price
    valid_from: float


def checked(price: Price) -> Price:
    """The same price.

    Raises:
        InvalidFieldError: it cannot be one.
    """
    if not price.model or len(price.model) > _MOST_NAME or not price.model.isprintable():
        raise InvalidFieldError(
            f"model must be the name of a model: 1 to {_MOST_NAME} printable characters"
        )
    for field, micros in _micros(price).items():
        if not 0 <= micros <= MOST_MICROS:
            raise InvalidFieldError(f"{field} must be from 0 to {MOST_MICROS}")
    return price


class Prices:
    """The prices of one database.

    Args:
        database: where they are.
        audit: where each change is recorded.
        actor: says who makes the change that is being made.
    """

    def __init__(self, database: Database, audit: Audit, actor: Callable[[], str]) -> None:
        self._database = database
        self._audit = audit
        self._actor = actor

    async def set(self, price: Price) -> ValidPrice:
        """Let a price be the model's from now on; if it is already, nothing changes.

        Raises:
            InvalidFieldError: it cannot be one.
            StoreUnavailableError: Postgres cannot be asked in time. It may have happened.
        """
        checked(price)
        sql = self._database.sql

        async def work(connection: Connection) -> ValidPrice:
            # Whoever adds to the sums has done so before, or sees the new price.
            await connection.execute(sql["lock_usage_days"])
            row = await connection.fetchrow(sql["find_price"], price.model)
            before = None if row is None else _valid_price(row)
            if before and before.price == price:
                return before
            row = await connection.fetchrow(sql["add_price"], price.model, *_micros(price).values())
            assert row is not None
            change = difference(
                _micros(before.price) if before else {}, {"model": price.model} | _micros(price)
            )
            await self._audit.add(connection, self._actor(), Action.PRICE_SET, change)
            return _valid_price(row)

        return await self._database.in_transaction(work)

    async def list(self) -> list[ValidPrice]:
        """The current price of every model that has one, by model.

        Raises:
            StoreUnavailableError: Postgres cannot be asked in time.
        """

        async def work(connection: Connection) -> list[asyncpg.Record]:
            return await connection.fetch(self._database.sql["list_prices"])

        return [_valid_price(row) for row in await self._database.within(work)]


def _micros(price: Price) -> dict[str, int]:
    return {
        "prompt_micros": price.prompt_micros,
        "cached_micros": price.cached_micros,
        "completion_micros": price.completion_micros,
    }


def _valid_price(row: asyncpg.Record) -> ValidPrice:
    price = Price(
        row["model"], row["prompt_micros"], row["cached_micros"], row["completion_micros"]
    )
    return ValidPrice(price, row["valid_from"])
