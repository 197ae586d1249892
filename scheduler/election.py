"""Asks Postgres who leads, again and again, and keeps there which models were ever served."""

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.worker_pb2 import ModelCard
from scheduler.sessions import Sessions
from scheduler.store import Row, Store, StoreUnavailableError

log = structlog.get_logger()

RENEW_S = 0.5
# Before its first answer Postgres may be starting, or its tables may be on their way.
FIRST_TRIES_S = 0.1
# So long after Postgres was away who leads may renew its row before another one takes it.
PATIENCE_S = RENEW_S + 0.5
# What is asked now is done so long after the last answer, or not at all.
TAKEN_WITHIN = timedelta(seconds=RENEW_S + 0.5)
# After a row has ended, so that the clock of Postgres agrees that it has.
ENDED_S = 0.01


class Election:
    """The way from the store to the decisions and back."""

    def __init__(
        self,
        store: Store,
        sessions: Sessions,
        *,
        clock: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        """Wire it.

        Args:
            store: where the row is.
            sessions: told whose it is.
            clock: monotonic seconds.
            on_change: called after the sessions were told something by this.
        """
        self._store = store
        self._sessions = sessions
        self._clock = clock
        self._on_change = on_change
        self._kept: dict[str, ModelCard] = {}
        """The models that Postgres knows, while we lead."""
        self._problem: str | None = None
        self._answered = False
        self._in_touch_since: float | None = None
        self._told_at: datetime | None = None
        """By the clock of Postgres, when it last answered."""
        self._running: asyncio.Task[None] | None = None

    @property
    def why_not_ready(self) -> str | None:
        """Why it is not known whether we lead; None once Postgres has told."""
        return None if self._answered else self._problem or "Postgres has not answered yet"

    def start(self) -> None:
        """Begin."""
        self._running = asyncio.create_task(self._run(), name="election")

    async def close(self) -> None:
        """End, and let another one lead at once."""
        if self._running is None:
            return
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        try:
            # Also while standing by: what was under way may have taken the row.
            await self._store.release()
        except StoreUnavailableError as error:
            if self._sessions.leader.leads:
                log.warning("row_not_released", reason=str(error))
        self._store.close()

    async def forget(self, model: str) -> None:
        """Forget a model.

        Raises:
            ServiceError: it is unknown or served, we do not lead, or Postgres cannot be asked.
        """
        self._sessions.models.check_forgettable(model)
        try:
            leads = await self._store.forget(model, term=self._sessions.leader.term)
        except StoreUnavailableError as error:
            raise ServiceError(ErrorReason.ERROR_REASON_UNAVAILABLE, str(error)) from error
        if not leads:
            raise ServiceError(
                ErrorReason.ERROR_REASON_UNAVAILABLE,
                "this scheduler does not lead any more: ask the one that does",
            )
        # What is served by now stays known, and is kept again.
        self._kept.pop(model, None)
        self._sessions.models.forget(model)

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            try:
                wait_s = await self._ask()
            except Exception:
                # Who leads goes on leading, and another one may take over, whatever is wrong here.
                log.exception("election_failed")
                wait_s = RENEW_S
            await asyncio.sleep(max(0.0, began + wait_s - time.monotonic()))

    async def _ask(self) -> float:
        """Ask once; return how long after the beginning to ask again, in seconds."""
        leader = self._sessions.leader
        try:
            row = await self._store.hold(
                least=leader.least, term=leader.term, take_until=self._take_until()
            )
            self._told(row)
            if leader.leads:
                await self._keep_models()
        except StoreUnavailableError as error:
            self._miss(str(error))
            return RENEW_S if self._answered else FIRST_TRIES_S
        if self._problem is not None:
            log.info("leader_row_found", term=row.term, ours=row.ours)
        self._problem, self._answered = None, True
        self._told_at = row.told_at
        if self._in_touch_since is None:
            self._in_touch_since = time.monotonic()
        return self._pause_s(row)

    def _pause_s(self, row: Row) -> float:
        """How long to wait from one question to the next."""
        if row.ours:
            return RENEW_S
        until_ended = max(row.left_s, 0.0) + ENDED_S
        if self._may_take():
            return min(RENEW_S, until_ended)
        return min(RENEW_S, max(until_ended, PATIENCE_S / 5))

    def _may_take(self) -> bool:
        since = self._in_touch_since
        return since is not None and time.monotonic() - since >= PATIENCE_S

    def _take_until(self) -> datetime | None:
        if self._told_at is None or not self._may_take():
            return None
        return self._told_at + TAKEN_WITHIN

    def _miss(self, problem: str) -> None:
        """Say it once: to miss what was there is worse than to wait for what is coming."""
        if self._problem is None and self._answered:
            log.warning("leader_row_lost", reason=problem, leads=self._sessions.leader.leads)
        elif self._problem is None:
            log.info("leader_row_awaited", reason=problem)
        self._problem = problem
        self._in_touch_since = None

    def _told(self, row: Row) -> None:
        now = self._clock()
        if row.cards is not None:
            self._kept = {card.model: card for card in row.cards}
            self._sessions.models.know(row.cards)
        if row.ours:
            self._sessions.terms.took_row(row.term, now)
        else:
            self._sessions.terms.refused_row(row.term, now)
        self._on_change()

    async def _keep_models(self) -> None:
        cards = self._sessions.fleet.cards
        news = [card for model, card in cards.items() if self._kept.get(model) != card]
        if not news:
            return
        await self._store.remember(news, term=self._sessions.leader.term)
        self._kept.update({card.model: card for card in news})
