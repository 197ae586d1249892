"""What a request used."""

from hypothesis import given
from hypothesis import strategies as st

from edge.generate_request import Batch
from edge.usage_lines import Closed, Counts, Ending, Open, Status, Void
from edge.usage_records import add_up, closed, counts_of, message, settled
from fastrun.v1 import auth_pb2
from fastrun.v1.generation_pb2 import GenerateRequest, Usage
from fastrun.v1.scheduler_pb2 import GenerationUsage

USAGES = st.builds(
    Usage,
    prompt_tokens=st.integers(0, 100),
    cached_tokens=st.integers(0, 100),
    completion_tokens=st.integers(0, 100),
    reasoning_tokens=st.integers(0, 100),
)


def request(**fields):
    known = {
        "request_id": "r1",
        "account_id": "a1",
        "key_id": "k1",
        "model": "m",
        "started_at": 2.5,
        "generations": (0,),
        "ending": Ending(status=Status.PARTIAL),
    }
    return Open(**{**known, **fields})


def found(generation=0, worker_id="w1", **usage):
    return GenerationUsage(
        request_id="r1",
        generation=generation,
        worker_id=worker_id,
        usage=Usage(**usage) if usage else None,
    )


@given(st.integers(1, 3), st.lists(USAGES, min_size=1, max_size=4), st.data())
def test_a_record_says_what_the_client_is_told(choices, firsts, data):
    """Sums over whole generations are those of the answer's usage."""
    usages = [data.draw(USAGES) for _ in range(len(firsts) * choices)]
    prompts = ["p"] * len(firsts)
    told = Batch(GenerateRequest(), seed=1, prompts=prompts, choices=choices).usage(usages)
    assert counts_of(told) == add_up([counts_of(each) for each in usages], choices)


def test_what_nobody_knows_is_absent_and_what_is_known_counts():
    """An unknown count is left out of its sum, and a sum of nothing is no 0."""
    part = Counts(prompt=5, completion=0)
    whole = Counts(prompt=7, cached=2, completion=3, reasoning=1)
    assert Counts(prompt=5, completion=0) == add_up([part, None], 1)
    assert Counts(prompt=12, cached=2, completion=3, reasoning=1) == add_up([part, whole], 1)
    assert Counts(prompt=7, cached=2, completion=6, reasoning=2) == add_up([None, whole, whole], 3)
    assert Counts() == add_up([], 1)


def test_a_request_of_a_dead_edge_has_what_its_worker_told():
    """The counts are the worker's, the status says that something was lost."""
    record = settled(request(), [found(prompt_tokens=4, completion_tokens=2)], is_final=False)
    assert isinstance(record, Closed)
    assert Counts(prompt=4, cached=0, completion=2, reasoning=0) == record.counts
    assert (record.ending.status, record.worker_id) == (Status.PARTIAL, "w1")


def test_a_request_that_never_ran_leaves_no_record():
    """All that was started is known, and nothing ran."""
    assert Void(request_id="r1") == settled(request(), [found()], is_final=False)


def test_what_is_not_known_of_all_that_was_started_is_asked_again():
    """One of two generations is not known yet; at last the other one counts alone."""
    both = request(generations=(0, 1), choices=2)
    known = [found(generation=1, prompt_tokens=4, completion_tokens=2)]
    assert settled(both, known, is_final=False) is None
    record = settled(both, known, is_final=True)
    assert isinstance(record, Closed)
    assert (record.counts.prompt, record.counts.completion) == (4, 2)
    assert record.ending.status == Status.PARTIAL


def test_what_nobody_knows_any_more_is_lost():
    """It is recorded, with all that is known, and without counts."""
    ending = Ending(status=Status.FAILED, duration_ms=9)
    record = settled(request(ending=ending), [], is_final=True)
    assert isinstance(record, Closed)
    assert (record.ending.status, record.ending.duration_ms) == (Status.LOST, 9)
    assert Counts() == record.counts
    assert settled(request(), [], is_final=False) is None


def test_a_try_before_the_last_may_have_run():
    """That the last try never ran does not say that no try did."""
    unsure = request(unsure=True)
    assert settled(unsure, [found()], is_final=False) is None
    record = settled(unsure, [found()], is_final=True)
    assert isinstance(record, Closed)
    assert record.ending.status == Status.LOST


def test_a_living_edge_knows_how_a_request_ended():
    """Once all is known of it, its own status stands."""
    ending = Ending(status=Status.CANCELLED, first_token_ms=3, duration_ms=9)
    record = settled(request(ending=ending), [found(prompt_tokens=1)], is_final=False)
    assert isinstance(record, Closed)
    assert record.ending == ending


def test_the_message_keeps_zero_and_absent_apart():
    """0 is sent as 0, and what nobody knows is not sent."""
    ending = Ending(status=Status.LOST)
    sent = message(closed(request(), ending, counts=Counts(prompt=0)))
    assert sent.HasField("prompt_tokens")
    assert not any(
        sent.HasField(field)
        for field in ("cached_tokens", "completion_tokens", "first_token_ms", "duration_ms")
    )
    assert sent.status == auth_pb2.USAGE_STATUS_LOST
    assert sent.started_at == 2.5
