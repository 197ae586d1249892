"""What workers told, for edges that ask."""

from fastrun.v1.generation_pb2 import Usage
from scheduler import usage_log
from scheduler.usage_log import UsageLog


def usage(completion, prompt=5, cached=1):
    return Usage(
        prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion, reasoning_tokens=2
    )


def test_finds_generations():
    """Each generation is told with its worker and its counts; of one that never ran, without."""
    log = UsageLog()
    log.add("r", 0, "w1", usage(7), 0.0)
    log.add("r", 1, "w2", None, 0.0)
    log.add("other", 0, "w1", usage(9), 0.0)
    first, second = log.find(["r", "nobody"], 1.0)
    assert (first.request_id, first.generation, first.worker_id) == ("r", 0, "w1")
    assert first.usage == usage(7)
    assert (second.generation, second.worker_id) == (1, "w2")
    assert not second.HasField("usage")


def test_a_generation_on_two_workers():
    """One that was resumed has its first prompt and its last answer; a refusal takes nothing."""
    log = UsageLog()
    log.add("r", 0, "w1", usage(7), 0.0)
    log.add("r", 0, "w2", usage(20, prompt=12, cached=11), 1.0)
    log.add("r", 0, "w3", None, 2.0)
    (found,) = log.find(["r"], 2.0)
    assert (found.worker_id, found.usage) == ("w2", usage(20))


def test_told_in_another_order():
    """Of a generation on two workers the longer answer is the later one, whoever tells first."""
    log = UsageLog()
    log.add("r", 0, "w2", usage(20, prompt=12, cached=11), 1.0)
    log.add("r", 0, "w1", usage(7), 2.0)
    log.add("r", 0, "w1", usage(7), 3.0)
    (found,) = log.find(["r"], 3.0)
    assert (found.worker_id, found.usage) == ("w2", usage(20))
    assert len(log) == 2


def test_forgets_the_old():
    """After an hour nothing is left, also of what was told twice."""
    log = UsageLog()
    log.add("r", 0, "w1", usage(1), 0.0)
    log.add("r", 0, "w2", usage(2), 10.0)
    assert len(list(log.find(["r"], 3605.0))) == 1
    assert not list(log.find(["r"], 3610.0))
    assert not len(log)
    assert not log._requests


def test_forgets_the_many(monkeypatch):
    """Of more than it may keep, the last ones are known."""
    monkeypatch.setattr(usage_log, "MOST_KEPT", 3)
    log = UsageLog()
    for number in range(5):
        log.add(f"r{number}", 0, "w", usage(number), 0.0)
    found = [each.request_id for each in log.find([f"r{number}" for number in range(5)], 0.0)]
    assert found == ["r2", "r3", "r4"]
