"""What a request asks the scheduler for, and how it waits for it: one place, one slot at a time."""

import asyncio

import msgspec

from edge.caller import Caller
from edge.prefix_blocks import UNKNOWN, PrefixBlocks
from fastrun.service.errors import ServiceError
from fastrun.v1.scheduler_pb2 import RateLimit


class Wish(msgspec.Struct, frozen=True):
    """Slots that a request asks for, one for each of the generations named."""

    request_id: str
    caller: Caller
    model: str
    queue_timeout_s: float
    """In all."""
    waited_s: float = 0.0
    """Of that, before this wish."""
    excluded_worker_ids: tuple[str, ...] = ()
    front: bool = False
    """A worker refused its lease: it goes to the head of the queue."""
    generations: tuple[int, ...] = (0,)
    """Indices."""
    choices: int = 1
    """So many generations in a row have the same prompt."""
    token_estimate: int = 0
    """What the whole request may use, for the limits."""
    prefix: PrefixBlocks = UNKNOWN
    """Where its prompt may be cached."""
    resumed_tokens: int = 0
    """What was generated before, to be processed anew with the prompt."""
    resume: bool = False
    """It ran: it goes ahead of all that has not."""
    traceparent: str = ""
    """What its wait is a part of; empty: it is not traced."""


class Grant(msgspec.Struct, frozen=True):
    """A slot of one worker, held by a lease until it is given back or its generation ends."""

    lease_id: str
    lease: bytes
    """Opaque to the edge."""
    worker_id: str
    instance_id: str
    address: str
    """host:port."""


class Turn:
    """The one place in the queue of a wish: its slots come one by one, as they free."""

    def __init__(self, wish: Wish, now: float) -> None:
        loop = asyncio.get_running_loop()
        self.wish = wish
        self.timer: asyncio.TimerHandle | None = None
        """Ends the wait."""
        self.rate_limit: RateLimit | None = None
        """What is left of the caller's limits, as last told."""
        self._since = now
        self._begun_at: float | None = None
        self._slots: dict[int, asyncio.Future[Grant]] = {
            generation: loop.create_future() for generation in wish.generations
        }

    @property
    def has_begun(self) -> bool:
        """Whether a first slot was granted: from then on there is no deadline in the queue."""
        return self._begun_at is not None

    @property
    def waiting(self) -> list[int]:
        """The generations that have no slot yet and still want one."""
        return [generation for generation, slot in self._slots.items() if not slot.done()]

    def waited_s(self, now: float) -> float:
        """How long it has waited, or had when the first slot came."""
        return self.wish.waited_s + (self._begun_at or now) - self._since

    async def come(self, generation: int) -> None:
        """Wait for the slot of one generation.

        Raises:
            ServiceError: refused, waited too long, or no scheduler is there.
        """
        await self._slots[generation]

    def take(self, generation: int) -> Grant:
        """Take the slot that has come; from here on it is the caller's to give back."""
        return self._slots.pop(generation).result()

    def grant(self, generation: int, grant: Grant, now: float) -> bool:
        """A slot was granted; returns whether it is still wanted."""
        slot = self._slots.get(generation)
        if slot is None or slot.done():
            return False
        if self._begun_at is None:
            self._begun_at = now
        self.stop_timer()
        slot.set_result(grant)
        return True

    def fail(self, generation: int, error: ServiceError) -> None:
        """There will be no slot."""
        slot = self._slots.get(generation)
        if slot is not None and not slot.done():
            slot.set_exception(error)
            slot.exception()  # seen, also when nobody waits for it any more

    def stop_timer(self) -> None:
        """Nothing is to happen by time alone any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def close(self) -> tuple[list[Grant], bool]:
        """End it.

        Returns:
            The slots that were granted and never taken, and whether a generation still waited.
        """
        self.stop_timer()
        slots, self._slots = self._slots.values(), {}
        still_waited = any(not slot.done() or slot.cancelled() for slot in slots)
        for slot in slots:
            slot.cancel()
        granted = [slot for slot in slots if not slot.cancelled() and slot.exception() is None]
        return [slot.result() for slot in granted], still_waited
