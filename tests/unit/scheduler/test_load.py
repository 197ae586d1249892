"""What a worker has to do, by what it says and what it cannot have said yet."""

import pytest

from fastrun.v1.scheduler_pb2 import Heartbeat
from scheduler.load import Load, Work


@pytest.fixture
def load():
    return Load()


def hear(load, now, *lease_ids, **figures):
    load.heard(Heartbeat(running_lease_ids=lease_ids, **figures), now)


def test_what_is_granted_counts_at_once(load):
    """Until a heartbeat lists the lease, its work is on top of what the heartbeat says."""
    hear(load, 0.0, prefill_tokens=100, context_tokens=1000)
    load.granted("a", Work(50, 80), 0.1)
    assert (load.backlog(0.1), load.context_tokens) == (150, 1080)
    hear(load, 1.0, prefill_tokens=10, context_tokens=900)
    assert (load.backlog(1.0), load.context_tokens) == (60, 980)
    hear(load, 2.0, "a", prefill_tokens=20, context_tokens=1500)
    assert (load.backlog(2.0), load.context_tokens) == (20, 1500)


def test_what_ends_counts_no_more(load):
    """Its context is free; its prompt had been processed if the worker has told of it."""
    load.granted("a", Work(50, 80), 0.0)
    load.granted("b", Work(30, 30), 0.0)
    hear(load, 1.0, "a", prefill_tokens=20, context_tokens=200)
    load.ended("a")
    assert (load.backlog(1.0), load.context_tokens) == (50, 150)
    load.ended("b")
    load.ended("unknown")
    assert (load.backlog(1.0), load.context_tokens) == (20, 120)


def test_a_worker_that_does_not_tell_is_guessed(load):
    """Without figures the leases held are the load, their prompts processed once they run."""
    load.granted("a", Work(50, 80), 0.0)
    load.granted("b", Work(30, 40), 0.0)
    hear(load, 1.0, "a")
    assert (load.backlog(1.0), load.context_tokens) == (30, 120)


def test_prompts_are_processed_between_heartbeats(load):
    """At the rate that was seen while there was always one to process."""
    hear(load, 0.0, prefill_tokens=3000)
    hear(load, 1.0, prefill_tokens=2000)
    assert load.prefill_rate == 1000
    assert [load.backlog(now) for now in (1.0, 2.5, 4.0)] == [2000, 500, 0]
    load.granted("a", Work(700, 700), 2.5)
    assert load.backlog(2.5) == 1200
    assert load.settled_backlog == 1200


def test_a_pause_measures_nothing(load):
    """A worker that had nothing to do in between was not that slow."""
    hear(load, 0.0, prefill_tokens=100)
    hear(load, 1.0)
    hear(load, 2.0, prefill_tokens=100)
    assert load.prefill_rate == 0


def test_new_prompts_count_in_the_rate(load):
    """What came with new leases has been processed too."""
    hear(load, 0.0, prefill_tokens=1000)
    load.granted("a", Work(800, 800), 0.2)
    hear(load, 1.0, "a", prefill_tokens=600)
    assert load.prefill_rate == 1200


def test_memory_is_told_in_blocks(load):
    """As the share that is in use."""
    hear(load, 0.0, kv_blocks_used=3, kv_blocks_total=4)
    assert load.kv_share == 0.75
