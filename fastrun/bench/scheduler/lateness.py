"""How late this process is to what it has planned: for so long an answer may lie with it unread."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

PULSE_S = 0.005


class Lateness:
    """How late each of many moments was at which it wanted to do something."""

    def __init__(self) -> None:
        self.late_s: list[float] = []

    @property
    def most_s(self) -> float:
        """At worst."""
        return max(self.late_s, default=0.0)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Watch for as long as this lasts."""
        watching = asyncio.create_task(self._watch(), name="lateness")
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _watch(self) -> None:
        while True:
            due = time.perf_counter() + PULSE_S
            await asyncio.sleep(PULSE_S)
            self.late_s.append(max(0.0, time.perf_counter() - due))
