"""What a worker says of itself."""

import msgspec
import pytest

from fastrun.service import leases
from fastrun.v1.scheduler_pb2 import LeaseClaims, WorkerState
from gpu_worker.engine.protocol import EngineDeadError, EngineStats
from gpu_worker.metrics import Metrics
from gpu_worker.slots import Slots
from gpu_worker.vitals import Vitals

STATS = EngineStats(
    running=1,
    waiting=2,
    kv_blocks_used=3,
    kv_blocks_total=9,
    prompt_tokens=50,
    cached_tokens=20,
    completion_tokens=100,
    preemptions=0,
    prefill_tokens=70,
    context_tokens=80,
)


class Meter:
    """An engine that only counts."""

    def __init__(self):
        self.counters = STATS
        self.death = None

    def stats(self):
        return self.counters

    def health(self):
        if self.death:
            raise EngineDeadError(self.death)


def test_a_heartbeat_tells_leases_state_and_counters():
    """Everything a scheduler places by is in a heartbeat; the rate is that of the last interval."""
    slots = Slots(2, instance_id="me")
    slots.lead(1, b"k")
    slots.admit(leases.sign(LeaseClaims(lease_id="a", instance_id="me", term=1), b"k"))
    engine, now = Meter(), [10.0]
    vitals = Vitals(engine, slots, Metrics(2), clock=lambda: now[0])
    vitals.check()
    now[0] = 12.0
    vitals.check()
    now[0] = 14.0
    engine.counters = msgspec.structs.replace(STATS, completion_tokens=160)
    vitals.check()
    vitals.state = WorkerState.WORKER_STATE_DRAINING
    beat = vitals.heartbeat(moved=5)
    assert list(beat.running_lease_ids) == ["a"]
    assert beat.state == WorkerState.WORKER_STATE_DRAINING
    assert (beat.waiting, beat.kv_blocks_used, beat.kv_blocks_total) == (2, 3, 9)
    assert (beat.prompt_tokens, beat.cached_tokens) == (50, 20)
    assert (beat.prefill_tokens, beat.context_tokens, beat.moved) == (70, 80, 5)
    assert beat.tokens_per_second == 30.0


def test_a_dead_engine_is_noticed():
    """The check passes on what the engine says of its health."""
    engine = Meter()
    vitals = Vitals(engine, Slots(1, instance_id="me"), Metrics(1), clock=lambda: 0.0)
    engine.death = "stuck"
    with pytest.raises(EngineDeadError, match="stuck"):
        vitals.check()
