"""What a simulation shows, in figures."""

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from fastrun.bench.placement.simulation import Served
from fastrun.bench.placement.workers import Machine


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One policy under one load; times in seconds, of the requests that were served."""

    policy: str
    source: str
    """Of the requests: a trace, or the seed of made-up ones."""
    workers: int
    load: float
    """Of what the fleet can carry."""
    rate: float
    """Requests a second."""
    requests: int
    refused: int
    hit_rate: float
    """Tokens of prompts that the workers had cached, of all tokens of prompts."""
    ttft_p50_s: float
    """From arrival to the first token."""
    ttft_p99_s: float
    wait_p50_s: float
    """From arrival to a slot."""
    wait_p99_s: float
    fairness: float
    """Jain's index over the accounts' mean slowdown: 1 when all are slowed down alike."""


def report(
    served: Sequence[Served],
    machine: Machine,
    *,
    policy: str,
    source: str,
    workers: int,
    load: float,
    rate: float,
) -> Report:
    """Sum up what became of all requests."""
    ran = [each for each in served if each.worker is not None]
    ttft = sorted(each.first_token_s - each.request.arrives_s for each in ran)
    waits = sorted(each.placed_s - each.request.arrives_s for each in ran)
    prompts = sum(each.request.prompt_tokens for each in ran)
    return Report(
        policy=policy,
        source=source,
        workers=workers,
        load=load,
        rate=rate,
        requests=len(served),
        refused=len(served) - len(ran),
        hit_rate=sum(each.cached_tokens for each in ran) / prompts if prompts else 0.0,
        ttft_p50_s=quantile(ttft, 0.5),
        ttft_p99_s=quantile(ttft, 0.99),
        wait_p50_s=quantile(waits, 0.5),
        wait_p99_s=quantile(waits, 0.99),
        fairness=jain(slowdowns(ran, machine)),
    )


def quantile(ordered: Sequence[float], at: float) -> float:
    """Return the value below which a part (0..1) of sorted values lies; 0 if there are none."""
    return ordered[min(len(ordered) - 1, int(at * len(ordered)))] if ordered else 0.0


def slowdowns(ran: Sequence[Served], machine: Machine) -> dict[int, float]:
    """Return for each account how many times longer its requests took than alone, on average."""
    of_account: dict[int, list[float]] = {}
    for each in ran:
        took = each.finished_s - each.request.arrives_s
        of_account.setdefault(each.request.account, []).append(took / machine.alone_s(each.request))
    return {account: statistics.fmean(each) for account, each in of_account.items()}


def jain(values: Mapping[int, float]) -> float:
    """Return Jain's fairness index: from 1/n, all for one, to 1, the same for all."""
    squares = sum(value * value for value in values.values())
    return sum(values.values()) ** 2 / (len(values) * squares) if squares else 1.0
