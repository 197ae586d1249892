"""How much a worker process has to do, in tokens: what it says, and what it cannot have said yet.

A heartbeat is up to a second old. So to its figures is added what was granted and is not in its
list of running leases, and taken off what has been freed since; and the prompts that it said were
still to be processed shrink at the rate at which they did before.
"""

import msgspec

from fastrun.v1.scheduler_pb2 import Heartbeat

RATE_WEIGHT = 0.3
SHORTEST_SAMPLE_S = 0.2


class Work(msgspec.Struct, frozen=True):
    """What one lease is expected to be for its worker."""

    prefill_tokens: float
    """Of its prompt, without what is cached."""
    context_tokens: float
    """That it holds in the engine once it runs."""


_UNKNOWN = Work(0.0, 0.0)


class Load:
    """The load of one worker process; times are monotonic seconds."""

    __slots__ = (
        "_backlog_at",
        "_heard_at",
        "_leases",
        "_reported_backlog",
        "_unheard",
        "context_tokens",
        "kv_share",
        "prefill_rate",
        "settled_backlog",
    )

    def __init__(self) -> None:
        self._leases: dict[str, Work] = {}
        # Granted, and not in a heartbeat yet.
        self._unheard: dict[str, Work] = {}
        self.context_tokens = 0.0
        """That running requests hold."""
        self.settled_backlog = 0.0
        """Prompt tokens to process when something last changed; what does not change with time."""
        self._backlog_at = 0.0
        self._reported_backlog = 0.0
        self._heard_at: float | None = None
        self.kv_share = 0.0
        """Of the engine's memory for contexts that is in use, 0 to 1."""
        self.prefill_rate = 0.0
        """Tokens per second, as seen between heartbeats; 0 until it has been seen."""

    def backlog(self, now: float) -> float:
        """Return how many prompt tokens there are still to process."""
        return max(self.settled_backlog - self.prefill_rate * (now - self._backlog_at), 0.0)

    def granted(self, lease_id: str, work: Work, now: float) -> None:
        """Add what a new lease will be."""
        self._leases[lease_id] = work
        self._unheard[lease_id] = work
        self.settled_backlog = self.backlog(now) + work.prefill_tokens
        self._backlog_at = now
        self.context_tokens += work.context_tokens

    def ended(self, lease_id: str) -> None:
        """Take off what is over: its context, and its prompt if the worker never told of it."""
        work = self._leases.pop(lease_id, _UNKNOWN)
        self.context_tokens = max(self.context_tokens - work.context_tokens, 0.0)
        if self._unheard.pop(lease_id, None):
            self.settled_backlog = max(self.settled_backlog - work.prefill_tokens, 0.0)

    def heard(self, heartbeat: Heartbeat, now: float) -> None:
        """Take what a worker says in place of what was expected."""
        came = 0.0
        for lease_id in heartbeat.running_lease_ids:
            if work := self._unheard.pop(lease_id, None):
                came += work.prefill_tokens
        self._measure(came, heartbeat.prefill_tokens, now)
        unheard = self._unheard.values()
        self._reported_backlog = float(heartbeat.prefill_tokens)
        self.settled_backlog = self._reported_backlog + sum(work.prefill_tokens for work in unheard)
        self._backlog_at = self._heard_at = now
        if heartbeat.context_tokens or heartbeat.prefill_tokens:
            self.context_tokens = heartbeat.context_tokens + sum(
                work.context_tokens for work in unheard
            )
        else:
            # It does not tell, or runs nothing: what is held is the best guess.
            self.context_tokens = sum(work.context_tokens for work in self._leases.values())
        if heartbeat.kv_blocks_total:
            self.kv_share = heartbeat.kv_blocks_used / heartbeat.kv_blocks_total

    def _measure(self, came: float, left: int, now: float) -> None:
        """See how fast prompts are processed, between two heartbeats without a pause between."""
        if self._heard_at is None or not (self._reported_backlog and left):
            return
        span = now - self._heard_at
        done = self._reported_backlog + came - left
        if span < SHORTEST_SAMPLE_S or done <= 0:
            return
        weight = RATE_WEIGHT if self.prefill_rate else 1.0
        self.prefill_rate += weight * (done / span - self.prefill_rate)
