"""Requests as they arrive: read from a trace, split, and sped up.

The format of traces is the public one of Mooncake: one JSON object a line, with `timestamp` in
milliseconds, `input_length` and `output_length` in tokens, and in `hash_ids` one id for each block
of 512 tokens of the prompt, where equal ids at the start mean equal beginnings.
"""

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec

BLOCK_TOKENS = 512

_MASK = 2**64 - 1

Count = Annotated[int, msgspec.Meta(ge=1)]


class TraceError(Exception):
    """A trace cannot be read; the message names the line."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for, once."""

    number: int
    """From 0, in the order of arrival."""
    account: int
    arrives_s: float
    """Virtual seconds from the beginning."""
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """A hash for each full block of the prompt, of all up to its end: what caches can hold."""


class _Line(msgspec.Struct, frozen=True):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Count
    output_length: Count
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0)]]


def mixed(*numbers: int) -> int:
    """Mix numbers into one of 64 bits that looks random (the finisher of SplitMix64)."""
    state = 0
    for number in numbers:
        state = (state ^ number) + 0x9E3779B97F4A7C15 & _MASK
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


class Accounts:
    """Shares out work among accounts: the k-th has a share of 1/k."""

    def __init__(self, count: int, seed: int) -> None:
        weights = list(itertools.accumulate(1 / rank for rank in range(1, count + 1)))
        self._bounds = [weight / weights[-1] for weight in weights]
        self._seed = seed

    def of(self, root: int) -> int:
        """Return the account of whatever begins with a block; always the same one."""
        return bisect.bisect_right(self._bounds, mixed(self._seed, root) / 2**64)


def read_trace(lines: Iterable[bytes], *, accounts: int, seed: int) -> list[Request]:
    """Read a trace.

    It names no accounts. A conversation is known by its second block, as all may share the first,
    and belongs to one account. Accounts share no blocks, as their caches are salted.

    Args:
        lines: of the file.
        accounts: how many to share the conversations out among.
        seed: of that.

    Raises:
        TraceError: a line is not as it should be.
    """
    decoder = msgspec.json.Decoder(_Line)
    owners = Accounts(accounts, seed)
    requests = []
    for number, line in enumerate(lines, start=1):
        try:
            record = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise TraceError(f"line {number}: {error}") from error
        wanted = -(-record.input_length // BLOCK_TOKENS)
        if len(record.hash_ids) != wanted:
            raise TraceError(
                f"line {number}: {record.input_length} tokens make {wanted} blocks of "
                f"{BLOCK_TOKENS}, but hash_ids has {len(record.hash_ids)}"
            )
        account = owners.of(record.hash_ids[:2][-1])
        full = record.hash_ids[: record.input_length // BLOCK_TOKENS]
        requests.append(
            Request(
                number=number - 1,
                account=account,
                arrives_s=record.timestamp / 1000,
                prompt_tokens=record.input_length,
                output_tokens=record.output_length,
                blocks=tuple(mixed(account, block) for block in full),
            )
        )
    if not requests:
        raise TraceError("the trace is empty")
    return in_order(requests)


def in_order(requests: Iterable[Request]) -> list[Request]:
    """Sort requests by arrival, number them anew, and let the first one arrive at 0."""
    ordered = sorted(requests, key=lambda request: request.arrives_s)
    begin = ordered[0].arrives_s
    return [
        replace(request, number=number, arrives_s=request.arrives_s - begin)
        for number, request in enumerate(ordered)
    ]


def part(requests: Sequence[Request], which: str) -> list[Request]:
    """Return the `first` or `second` half of the requests, by number, or `all`."""
    middle = len(requests) // 2
    halves = {"first": requests[:middle], "second": requests[middle:], "all": requests}
    return in_order(halves[which])


def at_rate(requests: Sequence[Request], per_second: float) -> list[Request]:
    """Scale time so that so many requests arrive in a second on average."""
    span = requests[-1].arrives_s
    scale = len(requests) / per_second / span if span else 1.0
    return [replace(request, arrives_s=request.arrives_s * scale) for request in requests]
