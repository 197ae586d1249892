"""One place in the queue."""

from collections import deque

import msgspec

from scheduler.prefix_index import NO_PROMPT, Prompt


class Waiting(msgspec.Struct, frozen=True, eq=False):
    """A place in the queue; times are monotonic seconds."""

    edge_id: str
    request_id: str
    generations: deque[int]
    """Those of the request that still need a slot, next one first."""
    account_id: str
    model: str
    excluded: frozenset[str]
    """Ids of workers that must not be chosen, and of processes: the one that follows may be."""
    front: bool
    """Goes before all that are not."""
    arrived_at: float
    """When it began to wait, at another scheduler perhaps."""
    asked_at: float
    """When it was asked for here."""
    deadline: float
    number: int
    """Counts up: tells apart what arrived together."""
    key_id: str = ""
    choices: int = 0
    """So many generations in a row have the same prompt."""
    prompt: Prompt = NO_PROMPT
    """What each generation begins with, as far as is known."""
    tokens: int = 1
    """What one generation may use, estimated, and at least 1: what its slot costs its account."""
    resume: bool = False
    """It was running: goes before all that was not."""
    begun: bool = False
    """Part of its request has a slot or a place already: no request is refused in part."""
    traceparent: str = ""
    """What its wait is a part of; empty: it is not traced."""

    @property
    def came_back(self) -> bool:
        """Whether it had a slot before, which its account has paid for."""
        return self.front or self.resume

    @property
    def turn(self) -> tuple[float, int]:
        """Sorts what belongs to one account: the earliest first."""
        return (self.arrived_at, self.number)
