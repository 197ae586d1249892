"""How a worker comes to its end when it is asked to: what runs may finish, the rest moves."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

log = structlog.get_logger()

# Grants that were under way when the schedulers heard of the drain have come by then.
SETTLE_S = 1.0
# For the last events to reach edges and schedulers before their streams are cut.
LAST_WORDS_S = 0.5
# How long the engine may take to let go of what was aborted.
ABORT_LIMIT_S = 5.0


class Running(Protocol):
    """The requests that a drain is about."""

    @property
    def count(self) -> int:
        """How many run."""

    async def idle(self) -> None:
        """Return when none runs."""

    def close(self) -> None:
        """Let none begin from now on."""

    def move(self) -> None:
        """Abort all; each is told to go on elsewhere once the engine has let go of it."""

    def told_to_move(self) -> None:
        """Tell those that the engine still holds."""


class Drain:
    """A drain that begins once; its deadline may be set anew while it lasts."""

    def __init__(
        self, running: Running, *, announce: Callable[[], Awaitable[bool]], ended: asyncio.Event
    ) -> None:
        """Wire it.

        Args:
            running: the requests.
            announce: tells everybody, at the beginning and at the end; returns whether there are
                schedulers who may have granted something meanwhile.
            ended: set at the end.
        """
        self.ended = ended
        self._running = running
        self._announce = announce
        self._overdue = asyncio.Event()
        self._deadline = math.inf  # by the loop's clock
        self._timer: asyncio.Handle | None = None

    @property
    def begun(self) -> bool:
        """Whether it was begun."""
        return self._timer is not None

    def within(self, seconds: float, *, or_sooner: bool = False) -> None:
        """Set the deadline.

        Args:
            seconds: from now.
            or_sooner: leave a deadline that is nearer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        if or_sooner and self._deadline <= deadline:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._deadline = deadline
        self._timer = loop.call_later(seconds, self._overdue.set)

    async def run(self) -> None:
        """Drain; to be called once, when the deadline is set."""
        log.info("drain_began", running=self._running.count)
        if await self._announce():
            await self._unless_overdue(asyncio.sleep(SETTLE_S))
        while self._running.count and not self._overdue.is_set():
            await self._unless_overdue(self._running.idle())
        self._running.close()
        if left := self._running.count:
            await self._move(left)
        await self._announce()
        await asyncio.sleep(LAST_WORDS_S)
        self.ended.set()

    async def _move(self, count: int) -> None:
        log.info("drain_moves", count=count)
        self._running.move()
        try:
            await asyncio.wait_for(self._running.idle(), ABORT_LIMIT_S)
        except TimeoutError:
            log.warning("engine_holds_requests", count=self._running.count)
            self._running.told_to_move()

    async def _unless_overdue(self, work: Awaitable[None]) -> None:
        tasks = {asyncio.ensure_future(work), asyncio.ensure_future(self._overdue.wait())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
