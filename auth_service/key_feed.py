"""Reads key events from Postgres as they are committed, once for all watchers of a process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import asyncpg
import structlog

from auth_service.accounts import AccountState, KeyState
from auth_service.database import OUTAGES, SESSION, Connection, Database
from auth_service.errors import StoreUnavailableError
from auth_service.key_events import KeyEvent, KeyEventLog, Page, Update
from fastrun.service.streams import backoff_s

CHANNEL = "fastrun_key_events"
CONFIRM_S = 0.5
READ_S = 0.5
CONNECT_S = 1.0
RETRY_S = 0.4
STALE_S = 1.0
PAGE = 1000
KEPT = 100_000
PRUNE_S = 600.0

log = structlog.get_logger()

_LATEST = (1 << 63) - 1
_BROKEN: tuple[type[Exception], ...] = (asyncpg.PostgresError, ValueError)


class KeyFeed:
    """Follows the key events of one database with a connection of its own, outside the pool.

    It listens first and reads then, so that it misses nothing; and it reads every 0.5 s even if
    nobody calls, so that watchers know how far they can count on it. A read that Postgres does not
    answer in 0.5 s, or a lost connection, ends all watches.

    Args:
        dsn: where Postgres is.
        database: the same, for what is older than this process remembers.
    """

    def __init__(self, dsn: str, database: Database) -> None:
        self._dsn = dsn
        self._database = database
        self._log: KeyEventLog | None = None
        self._read_at = 0.0
        self._next = asyncio.Event()
        self._notified = asyncio.Event()
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._late: set[asyncio.Task[asyncpg.Connection]] = set()

    def start(self) -> None:
        """Begin to follow; Postgres may be down."""
        self._tasks = [
            asyncio.create_task(self._follow(), name="key-feed"),
            asyncio.create_task(self._prune(), name="key-event-pruning"),
        ]

    async def close(self) -> None:
        """End all watches, in good order."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def watch(self, after: int) -> AsyncIterator[Update]:
        """Tell what happens after a sequence: at once, and every 0.5 s at least until close().

        Args:
            after: the last sequence that was seen; 0: none.

        Raises:
            StoreUnavailableError: Postgres cannot be read any more.
        """
        # No database has come further than its own type of numbers goes.
        told = after if 0 < after <= _LATEST else None
        await self._first_read()
        while not self._closed:
            events_log = self._log
            if events_log is None:
                raise StoreUnavailableError("key events cannot be read right now")
            next_read = self._next
            behind = False
            if self._now() - self._read_at < STALE_S:  # else this process itself stood still
                update = await self._update(events_log, told)
                told = update.confirmed
                behind = told < events_log.confirmed
                yield update
            if not behind:
                await next_read.wait()

    async def _first_read(self) -> None:
        if self._log is None:
            await _wait(self._next, READ_S)

    async def _update(self, events_log: KeyEventLog, told: int | None) -> Update:
        if told is None:
            return Update([], events_log.confirmed, reset=True)
        events = events_log.after(told)
        if events is not None:
            return Update(events, events_log.confirmed)
        page = await self._older(told)
        if not page.follows(told):
            return Update([], events_log.confirmed, reset=True)
        return Update(page.events, page.read_to)

    async def _older(self, after: int) -> Page:
        async def work(connection: Connection) -> Page:
            return _page(
                await connection.fetch(self._database.sql["key_events_after"], after, PAGE)
            )

        return await self._database.within(work, deadline_s=READ_S)

    async def _follow(self) -> None:
        attempt = 0
        while True:
            try:
                connection = await self._connect()
                try:
                    attempt = 0
                    await self._read_on(connection)
                finally:
                    connection.terminate()
                    self._lose()
            except (*OUTAGES, *_BROKEN) as error:
                attempt += 1
                log.warning("key_events_lost", reason=str(error) or type(error).__name__)
            except Exception:
                # A fault of ours or of the driver's: nobody else would follow them.
                attempt += 1
                log.exception("key_feed_failed")
            await asyncio.sleep(backoff_s(attempt, cap_s=RETRY_S))

    async def _connect(self) -> asyncpg.Connection:
        """Connect and listen, or walk away in time: see Database.within."""
        task = asyncio.create_task(self._listen(), name="key-feed-connecting")
        try:
            await asyncio.wait({task}, timeout=CONNECT_S)
            if not task.done():
                raise TimeoutError(f"Postgres did not answer within {CONNECT_S} s")
        finally:
            if not task.done():
                self._late.add(task)  # the loop alone would not keep it
                task.add_done_callback(self._end_late)
        return task.result()

    async def _listen(self) -> asyncpg.Connection:
        connection = await asyncpg.connect(
            self._dsn, timeout=CONNECT_S, command_timeout=CONNECT_S, server_settings=SESSION
        )
        connection.add_termination_listener(lambda _: self._notified.set())
        await connection.add_listener(CHANNEL, lambda *_: self._notified.set())
        return connection

    def _end_late(self, task: "asyncio.Task[asyncpg.Connection]") -> None:
        self._late.discard(task)
        if not task.cancelled() and task.exception() is None:
            task.result().terminate()

    async def _read_on(self, connection: asyncpg.Connection) -> None:
        """Read whenever something was committed, and every 0.5 s.

        Raises:
            ValueError: events are missing.
        """
        sql = self._database.sql["key_events_after"]
        while True:
            self._notified.clear()
            began_at = self._now()
            after = self._log.confirmed if self._log else _LATEST
            reading = asyncio.ensure_future(connection.fetch(sql, after, PAGE))
            reading.add_done_callback(_see)
            await asyncio.wait({reading}, timeout=READ_S)
            if not reading.done() or self._now() - began_at > READ_S:
                raise TimeoutError(f"Postgres did not answer within {READ_S} s")
            page = _page(reading.result())
            self._add(page)
            self._read_at = began_at
            self._wake()
            if page.read_to == page.last:
                await _wait(self._notified, CONFIRM_S)

    def _add(self, page: Page) -> None:
        if self._log is None:
            self._log = KeyEventLog(page.last)
            log.info("key_events_followed", sequence=page.last)
        else:
            self._log.add(page)

    def _lose(self) -> None:
        self._log = None
        self._wake()

    def _wake(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def _prune(self) -> None:
        """Forget old events now and then; any process may, and it does not matter which."""

        async def work(connection: Connection) -> None:
            await connection.execute(self._database.sql["prune_key_events"], KEPT)

        while True:
            try:
                await self._database.within(work)
            except StoreUnavailableError as error:
                log.warning("key_events_not_pruned", reason=str(error))
            except Exception:
                # Another process that prunes the same may be in the way, for once.
                log.exception("key_feed_failed")
            await asyncio.sleep(PRUNE_S)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _see(reading: "asyncio.Future[list[asyncpg.Record]]") -> None:
    if not reading.cancelled():
        reading.exception()  # seen: what nobody waits for any more is not reported


def _page(rows: list[asyncpg.Record]) -> Page:
    events = [_event(row) for row in rows if row["sequence"] is not None]
    return Page(events, rows[0]["last_sequence"])


def _event(row: asyncpg.Record) -> KeyEvent:
    revoked = row["revoked"]
    return KeyEvent(
        sequence=row["sequence"],
        account_id=row["account_id"],
        key_id=row["key_id"],
        account_state=AccountState(row["account_state"]),
        key_state=None if revoked is None else KeyState.REVOKED if revoked else KeyState.ACTIVE,
    )
