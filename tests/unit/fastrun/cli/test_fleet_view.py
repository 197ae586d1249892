"""A fleet as people and programs see it."""

from fastrun.cli.fleet_view import fields, hit_rate, lines
from fastrun.v1.scheduler_pb2 import Heartbeat, QueueStatus, WatchFleetResponse, WorkerStatus
from fastrun.v1.worker_pb2 import Gpu

BUSY = WorkerStatus(
    worker_id="w1",
    instance_id="i1",
    address="h1:1",
    model="tiny",
    state="serving",
    slots=4,
    slots_in_use=3,
    heartbeat=Heartbeat(
        running_lease_ids=["a", "b"],
        waiting=1,
        kv_blocks_used=30,
        kv_blocks_total=40,
        tokens_per_second=99.96,
        prompt_tokens=1000,
        cached_tokens=900,
        prefill_tokens=7,
        context_tokens=8,
        moved=2,
    ),
    gpus=[Gpu(name="NVIDIA H200", memory_bytes=150_754_820_096)] * 2,
)
NEW = WorkerStatus(worker_id="w2", model="tiny", state="joining", slots=4, address="h2:1")
GONE = WorkerStatus(worker_id="w3", model="tiny", state="gone", slots=4, slots_in_use=4)


def test_a_fleet_in_lines():
    """Each worker, the sum of those that are up, each queue, and whether the books are right."""
    answer = WatchFleetResponse(
        workers=[BUSY, NEW, GONE],
        queues=[QueueStatus(model="tiny", waiting=2, bound=32)],
        edges=2,
        drift=0,
        term=7,
        leads=True,
    )
    assert lines(answer) == [
        "WORKER  MODEL  STATE    SLOTS  QUEUE  CACHED  TOKENS/S   KV  GPUS             ADDRESS",
        "w1      tiny   serving    3/4      1     90%       100  75%  2x H200 140 GiB  h1:1",
        "w2      tiny   joining    0/4      0       -         0    -  -                h2:1",
        "w3      tiny   gone       4/4      0       -         0    -  -",
        "total          2 up       3/8      1     90%       100  75%",
        "",
        "queue of tiny: 2 waiting, room for 32",
        "edges 2, drift 0, term 7",
    ]


def test_one_worker_needs_no_sum_and_a_scheduler_says_that_it_stands_by():
    """Who looks at a scheduler that does not lead is told so."""
    told = lines(WatchFleetResponse(workers=[BUSY], term=7))
    assert not any(line.startswith("total") for line in told)
    assert told[-1] == "this scheduler stands by: it sees the fleet, and another one grants"


def test_names_do_not_move_the_cursor():
    """What a worker calls itself is shown and not obeyed."""
    told = lines(WatchFleetResponse(workers=[WorkerStatus(worker_id="\x1b[2J", state="serving")]))
    assert told[1].startswith(r"\x1b[2J ")


def test_a_fleet_as_json():
    """Rates are rounded, and absent where nothing was measured."""
    told = fields(WatchFleetResponse(workers=[BUSY, NEW], term=7, leads=True))
    assert (told["term"], told["leads"], told["drift"]) == (7, True, 0)
    busy, new = told["workers"]
    assert (busy["running"], busy["tokens_per_second"], busy["cache_hit_rate"]) == (2, 100.0, 0.9)
    assert (busy["prefill_tokens"], busy["context_tokens"], busy["moved"]) == (7, 8, 2)
    assert new["cache_hit_rate"] is None
    assert busy["gpus"] == [{"name": "NVIDIA H200", "memory_bytes": 150_754_820_096}] * 2
    assert new["gpus"] == []


def test_gpus_of_several_kinds_are_counted_by_kind():
    """As they come in the machine."""
    gpus = [
        Gpu(name=name, memory_bytes=24 << 30) for name in ("NVIDIA L4", "RTX 4090", "NVIDIA L4")
    ]
    told = lines(WatchFleetResponse(workers=[WorkerStatus(worker_id="w", gpus=gpus)]))
    assert "  2x L4 24 GiB, 1x RTX 4090 24 GiB" in told[1]


def test_hit_rate_counts_tokens():
    """A worker that has read more weighs more."""
    other = WorkerStatus(heartbeat=Heartbeat(prompt_tokens=9000, cached_tokens=0))
    assert hit_rate([BUSY, other]) == 0.09
