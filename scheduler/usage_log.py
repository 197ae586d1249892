"""What generations used, as their workers told: kept for edges that find records of a dead one."""

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from fastrun.v1.generation_pb2 import Usage
from fastrun.v1.scheduler_pb2 import GenerationUsage

KEPT_S = 3600.0
MOST_KEPT = 100_000


class _Counts(msgspec.Struct, frozen=True):
    """A Usage in less memory: the message that it came in is not kept for it."""

    prompt: int
    cached: int
    completion: int
    reasoning: int

    @classmethod
    def of(cls, usage: Usage, former: "_Counts | None") -> "_Counts":
        """Take the counts; of a generation that went on elsewhere, the prompt is its first one's.

        Its answer counts what it was resumed with, so that the longer one is the later one, in
        whatever order they are told.
        """
        told = cls(
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            usage.reasoning_tokens,
        )
        if former is None:
            return told
        first, last = former, told
        if first.completion > last.completion:
            first, last = last, first
        return cls(first.prompt, first.cached, last.completion, last.reasoning)

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt,
            cached_tokens=self.cached,
            completion_tokens=self.completion,
            reasoning_tokens=self.reasoning,
        )


class _Entry(msgspec.Struct, frozen=True, eq=False):
    at: float
    request_id: str
    generation: int
    worker_id: str
    counts: _Counts | None


class UsageLog:
    """The last generations that ended; times are monotonic seconds."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self._requests: dict[str, dict[int, _Entry]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(
        self, request_id: str, generation: int, worker_id: str, usage: Usage | None, now: float
    ) -> None:
        """Keep what a worker said.

        Args:
            request_id: of the request.
            generation: its index.
            worker_id: who ran it.
            usage: None when it never ran there; what is known of it from before then stays.
            now: monotonic seconds.
        """
        generations = self._requests.setdefault(request_id, {})
        former = generations.get(generation)
        known = counts = former.counts if former else None
        if usage is not None:
            counts = _Counts.of(usage, known)
        if known is not None and counts == known:
            return  # it never ran there, or is told again
        if former and known and usage and usage.completion_tokens < known.completion:
            worker_id = former.worker_id  # who tells later has begun it, and the other ended it
        entry = _Entry(now, request_id, generation, worker_id, counts)
        generations[generation] = entry
        self._entries.append(entry)
        self._forget(now)

    def find(self, request_ids: Iterable[str], now: float) -> Iterator[GenerationUsage]:
        """Return what is known of these requests."""
        self._forget(now)
        for request_id in request_ids:
            for entry in self._requests.get(request_id, {}).values():
                yield GenerationUsage(
                    request_id=request_id,
                    generation=entry.generation,
                    worker_id=entry.worker_id,
                    usage=entry.counts.usage() if entry.counts else None,
                )

    def _forget(self, now: float) -> None:
        entries = self._entries
        while entries and (len(entries) > MOST_KEPT or entries[0].at + KEPT_S <= now):
            old = entries.popleft()
            generations = self._requests.get(old.request_id, {})
            if generations.get(old.generation) is old:
                del generations[old.generation]
                if not generations:
                    del self._requests[old.request_id]
