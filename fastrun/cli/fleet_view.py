"""What `fastrun fleet` shows: a fleet as lines for people, and as JSON for programs. Pure."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from fastrun.cli.output import columns
from fastrun.v1.scheduler_pb2 import WatchFleetResponse, WorkerStatus

TITLES = (
    "worker",
    "model",
    "state",
    "slots",
    "queue",
    "cached",
    "tokens/s",
    "kv",
    "gpus",
    "address",
)
NUMBERS = frozenset({"slots", "queue", "cached", "tokens/s", "kv"})
GONE = "gone"
GIB = 1 << 30


def lines(answer: WatchFleetResponse) -> list[str]:
    """Lay out a fleet in columns."""
    return [*columns(TITLES, rows(answer), right=NUMBERS), "", *notes(answer)]


def rows(answer: WatchFleetResponse) -> list[tuple[object, ...]]:
    """Its workers and their sum, as cells below TITLES."""
    told = [_row(worker) for worker in answer.workers]
    if len(answer.workers) > 1:
        told.append(_sum([worker for worker in answer.workers if worker.state != GONE]))
    return told


def notes(answer: WatchFleetResponse) -> list[str]:
    """Its queues, and whether the books are right."""
    told = [
        f"queue of {queue.model}: {queue.waiting} waiting, room for {queue.bound}"
        for queue in answer.queues
    ]
    told.append(f"edges {answer.edges}, drift {answer.drift}, term {answer.term}")
    if not answer.leads:
        told.append("this scheduler stands by: it sees the fleet, and another one grants")
    return told


def fields(answer: WatchFleetResponse) -> dict[str, Any]:
    """The fleet as JSON; the names are part of what scripts rely on."""
    return {
        "workers": [_worker(worker) for worker in answer.workers],
        "queues": [
            {"model": queue.model, "waiting": queue.waiting, "bound": queue.bound}
            for queue in answer.queues
        ],
        "drift": answer.drift,
        "edges": answer.edges,
        "edge_versions": list(answer.edge_versions),
        "term": answer.term,
        "leads": answer.leads,
    }


def hit_rate(workers: Iterable[WorkerStatus]) -> float | None:
    """How much of all prompts their caches held, since they started; None: there were none."""
    beats = [worker.heartbeat for worker in workers]
    prompts = sum(beat.prompt_tokens for beat in beats)
    return sum(beat.cached_tokens for beat in beats) / prompts if prompts else None


def _row(worker: WorkerStatus) -> tuple[object, ...]:
    return (
        worker.worker_id,
        worker.model,
        worker.state,
        *_figures([worker]),
        _gpus(worker),
        worker.address,
    )


def _sum(workers: list[WorkerStatus]) -> tuple[object, ...]:
    return ("total", "", f"{len(workers)} up", *_figures(workers), "", "")


def _figures(workers: list[WorkerStatus]) -> tuple[str, ...]:
    beats = [worker.heartbeat for worker in workers]
    blocks = sum(beat.kv_blocks_total for beat in beats)
    used = sum(beat.kv_blocks_used for beat in beats)
    return (
        f"{sum(each.slots_in_use for each in workers)}/{sum(each.slots for each in workers)}",
        f"{sum(beat.waiting for beat in beats)}",
        _percent(hit_rate(workers)),
        f"{sum(beat.tokens_per_second for beat in beats):.0f}",
        _percent(used / blocks if blocks else None),
    )


def _gpus(worker: WorkerStatus) -> str:
    """Such as `2x H200 140 GiB`."""
    kinds = Counter((gpu.name, round(gpu.memory_bytes / GIB)) for gpu in worker.gpus)
    told = [
        f"{count}x {name.removeprefix('NVIDIA ')} {gib} GiB" for (name, gib), count in kinds.items()
    ]
    return ", ".join(told) or "-"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"


def _worker(worker: WorkerStatus) -> dict[str, Any]:
    beat = worker.heartbeat
    rate = hit_rate([worker])
    return {
        "worker_id": worker.worker_id,
        "instance_id": worker.instance_id,
        "address": worker.address,
        "model": worker.model,
        "state": worker.state,
        "slots": worker.slots,
        "slots_in_use": worker.slots_in_use,
        "running": len(beat.running_lease_ids),
        "waiting": beat.waiting,
        "kv_blocks_used": beat.kv_blocks_used,
        "kv_blocks_total": beat.kv_blocks_total,
        "tokens_per_second": round(beat.tokens_per_second, 1),
        "prompt_tokens": beat.prompt_tokens,
        "cached_tokens": beat.cached_tokens,
        "cache_hit_rate": None if rate is None else round(rate, 4),
        "prefill_tokens": beat.prefill_tokens,
        "context_tokens": beat.context_tokens,
        "moved": beat.moved,
        "version": worker.version,
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in worker.gpus],
    }
