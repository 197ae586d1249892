"""What the scheduler keeps in Postgres: the row of the leader, and the models ever served."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import asyncpg
import msgspec
from google.protobuf import json_format

from fastrun.service import queries
from fastrun.v1.worker_pb2 import ModelCard

LEADS_S = 1.5
"""So long after it was last renewed the row can be taken by another scheduler."""
DEADLINE_S = 1.0
_SESSION = {"application_name": "fastrun-scheduler"}

# What the driver raises when Postgres is away, stops, starts, is full, does not let us in, or does
# not have our tables yet.
_OUTAGES: tuple[type[Exception], ...] = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)

T = TypeVar("T")


class StoreUnavailableError(Exception):
    """Postgres cannot be asked in time; what was asked for may have happened."""


@dataclass(frozen=True, slots=True)
class Row:
    """The row of the leader."""

    term: int
    ours: bool
    left_s: float
    """Until it can be taken, unless it is renewed."""
    told_at: datetime
    """By the server's clock."""
    cards: tuple[ModelCard, ...] | None
    """All models ever served; None: we led with this term before, and know them."""


class Store:
    """One connection, and a deadline for every call, also when Postgres is frozen.

    Args:
        dsn: where it is.
        holder: this process, and no other one ever.
        deadline_s: seconds that a call takes at most.
    """

    def __init__(self, dsn: str, holder: str, *, deadline_s: float = DEADLINE_S) -> None:
        self._dsn = dsn
        self._holder = holder
        self._deadline_s = deadline_s
        self.sql = queries.load("scheduler")
        self._connection: asyncpg.Connection | None = None
        self._running: set[asyncio.Task[object]] = set()

    async def hold(self, *, least: int, term: int, take_until: datetime | None) -> Row:
        """Renew the row, or take it if it has ended.

        Args:
            least: the lowest term to hold it with.
            term: that we lead with; 0: none.
            take_until: by the server's clock, when to leave a row alone that has ended and was
                not given up: a server that was frozen does later what it was asked before. None:
                leave it alone at once.

        Raises:
            StoreUnavailableError: nobody knows whose it is.
        """
        sql = self.sql["hold_leadership"]
        row = await self._within(
            lambda kept: kept.fetchrow(sql, self._holder, least, term, LEADS_S, take_until)
        )
        if row is None:
            raise StoreUnavailableError("the row of the leader is missing: restore it")
        cards = None if row["cards"] is None else _cards(row["cards"])
        return Row(row["term"], row["ours"], row["left_s"], row["told_at"], cards)

    async def release(self) -> None:
        """Let another scheduler take the row at once, if it is ours.

        What was asked before and is still under way is over first, also if nobody waits for it any
        more: it could renew the row after this, or take it.

        Raises:
            StoreUnavailableError: perhaps it has to wait.
        """
        if self._running:
            await asyncio.wait(self._running, timeout=self._deadline_s)
        sql = self.sql["release_leadership"]
        await self._within(lambda kept: kept.execute(sql, self._holder))

    async def remember(self, cards: Iterable[ModelCard], *, term: int) -> None:
        """Keep what is known of models, if the row is ours with this term.

        Raises:
            StoreUnavailableError: perhaps they are not kept.
        """
        sql = self.sql["remember_models"]
        kept_cards = list(cards)
        models = [card.model for card in kept_cards]
        texts = [json_format.MessageToJson(card, indent=None) for card in kept_cards]
        await self._within(lambda kept: kept.execute(sql, self._holder, term, models, texts))

    async def forget(self, model: str, *, term: int) -> bool:
        """Forget a model; returns whether the row is ours with this term, or nothing happened.

        Raises:
            StoreUnavailableError: perhaps it is forgotten.
        """
        sql = self.sql["forget_model"]
        return bool(await self._within(lambda kept: kept.fetchval(sql, self._holder, term, model)))

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
        for task in self._running:
            task.cancel()

    async def _within(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        """Do work, and walk away from it at the deadline; the next call connects anew then.

        Cancelling it would wait: the driver first asks the server to cancel, which a frozen one
        never does.
        """
        connection, self._connection = self._connection, None

        async def whole() -> tuple[asyncpg.Connection, T]:
            used = connection
            if used is None or used.is_closed():
                used = await asyncpg.connect(
                    self._dsn, timeout=self._deadline_s, server_settings=_SESSION
                )
            try:
                return used, await work(used)
            except BaseException:
                used.terminate()
                raise

        task = asyncio.ensure_future(whole())
        self._running.add(task)  # the loop alone would not keep it
        task.add_done_callback(self._forget_task)
        try:
            await asyncio.wait({task}, timeout=self._deadline_s)
        except asyncio.CancelledError:
            task.add_done_callback(_end_late)
            raise
        if not task.done():
            if connection is not None:
                connection.terminate()
            task.add_done_callback(_end_late)
            raise StoreUnavailableError(f"Postgres did not answer within {self._deadline_s} s")
        try:
            used, result = task.result()
        except _OUTAGES as error:
            reason = str(error) or type(error).__name__
            raise StoreUnavailableError(f"Postgres cannot be asked: {reason}") from error
        self._keep(used)
        return result

    def _keep(self, used: asyncpg.Connection) -> None:
        """Use a connection again, unless another call that ran beside has left one already."""
        if self._connection is None:
            self._connection = used
        else:
            used.terminate()

    def _forget_task(self, task: "asyncio.Task[object]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # seen: what nobody waits for any more is not reported


def _end_late(task: "asyncio.Task[tuple[asyncpg.Connection, T]]") -> None:
    """End the connection of a call that nobody waits for any more."""
    if not task.cancelled() and task.exception() is None:
        task.result()[0].terminate()


def _cards(text: str) -> tuple[ModelCard, ...]:
    """Read what was kept, also by a newer fastrun."""
    return tuple(
        json_format.ParseDict(fields, ModelCard(), ignore_unknown_fields=True)
        for fields in msgspec.json.decode(text)
    )
