"""What a request used, from what its generations have. Pure.

Counts are real or absent: a worker told them, or the edge received the tokens.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from edge.usage_lines import Closed, Counts, Ending, Open, Status, Void
from fastrun.v1 import auth_pb2
from fastrun.v1.auth_pb2 import UsageRecord
from fastrun.v1.generation_pb2 import Usage
from fastrun.v1.scheduler_pb2 import GenerationUsage

_STATUSES = {
    Status.COMPLETED: auth_pb2.USAGE_STATUS_COMPLETED,
    Status.CANCELLED: auth_pb2.USAGE_STATUS_CANCELLED,
    Status.FAILED: auth_pb2.USAGE_STATUS_FAILED,
    Status.PARTIAL: auth_pb2.USAGE_STATUS_PARTIAL,
    Status.LOST: auth_pb2.USAGE_STATUS_LOST,
}


def counts_of(usage: Usage) -> Counts:
    """What a worker told of one generation."""
    return Counts(
        prompt=usage.prompt_tokens,
        cached=usage.cached_tokens,
        completion=usage.completion_tokens,
        reasoning=usage.reasoning_tokens,
    )


def add_up(generations: Sequence[Counts | None], choices: int) -> Counts:
    """Add up what the generations of a request used.

    Args:
        generations: by index; None: it did not run, or nobody knows.
        choices: how many of them each prompt has; its tokens count once.
    """
    if len(generations) == 1:
        return generations[0] or Counts()
    prompts = [
        next((each for each in generations[first : first + choices] if each is not None), None)
        for first in range(0, len(generations), choices)
    ]
    return Counts(
        prompt=_sum(prompts, lambda each: each.prompt),
        cached=_sum(prompts, lambda each: each.cached),
        completion=_sum(generations, lambda each: each.completion),
        reasoning=_sum(generations, lambda each: each.reasoning),
    )


def closed(request: Open, ending: Ending, *, worker_id: str = "", counts: Counts) -> Closed:
    """Make the record of a request."""
    return Closed(
        request_id=request.request_id,
        account_id=request.account_id,
        key_id=request.key_id,
        model=request.model,
        started_at=request.started_at,
        ending=ending,
        worker_id=worker_id,
        counts=counts,
    )


def settled(
    request: Open, found: Iterable[GenerationUsage], *, is_final: bool
) -> Closed | Void | None:
    """Decide about a request from what the schedulers know of it.

    Args:
        request: one that is over, with its ending.
        found: what they know of its generations.
        is_final: nothing more will be known.

    Returns:
        Its record; Void if it never ran; None if they are to be asked again.
    """
    known = list(found)
    ran = {each.generation: each for each in known if each.HasField("usage")}
    ending = request.ending or Ending(status=Status.PARTIAL)
    if {each.generation for each in known}.issuperset(request.generations):
        if ran:
            return _found(request, ran, ending)
        if not request.unsure:
            return Void(request_id=request.request_id)
    if not is_final:
        return None
    if ran:
        return _found(request, ran, msgspec.structs.replace(ending, status=Status.PARTIAL))
    return closed(
        request, msgspec.structs.replace(ending, status=Status.LOST, finish=""), counts=Counts()
    )


def message(record: Closed) -> UsageRecord:
    """A record as the auth service takes it; what nobody knows stays absent, and 0 stays 0."""
    counts, ending = record.counts, record.ending
    return UsageRecord(
        request_id=record.request_id,
        account_id=record.account_id,
        key_id=record.key_id,
        model=record.model,
        worker_id=record.worker_id,
        prompt_tokens=counts.prompt,
        cached_tokens=counts.cached,
        completion_tokens=counts.completion,
        reasoning_tokens=counts.reasoning,
        first_token_ms=ending.first_token_ms,
        duration_ms=ending.duration_ms,
        finish=ending.finish,
        status=_STATUSES[ending.status],
        started_at=record.started_at,
    )


def _found(request: Open, ran: dict[int, GenerationUsage], ending: Ending) -> Closed:
    size = max((*ran, *request.generations)) + 1
    counts = [counts_of(ran[index].usage) if index in ran else None for index in range(size)]
    last = ran[max(ran)]
    return closed(request, ending, worker_id=last.worker_id, counts=add_up(counts, request.choices))


def _sum(parts: Sequence[Counts | None], of: Callable[[Counts], int | None]) -> int | None:
    known = [value for part in parts if part is not None and (value := of(part)) is not None]
    return sum(known) if known else None
