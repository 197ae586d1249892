"""What becomes of a request, told to the spool."""

import pytest

from edge.errors import Refusal
from edge.metering import Metering
from edge.usage_lines import Closed, Counts, Ending, Open, Status, Void
from edge.usage_spool import Spool
from fastrun.v1.generation_pb2 import Finished, FinishReason, Usage

COMPLETED = Ending(status=Status.COMPLETED, finish="stop", duration_ms=5)
CANCELLED = Ending(status=Status.CANCELLED, duration_ms=5)
FAILED = Ending(status=Status.FAILED, duration_ms=5)


class Told:
    """A spool, and what was said to it."""

    def __init__(self, folder):
        self.spool = Spool(folder, "ab", limit_bytes=1 << 20)
        self.spool.repair()
        self.ends = []
        self.statuses = []
        self.metering = Metering(self.spool, on_end=self.statuses.append)
        end, ask = self.spool.end, self.spool.ask
        self.spool.end = lambda line: (self.ends.append(line), end(line))
        self.spool.ask = lambda request: (self.ends.append(request), ask(request))

    def meter(self, **fields):
        known = {"request_id": "r1", "account_id": "a", "key_id": "k", "model": "m"}
        return self.metering.meter(Open(**{**known, "started_at": 1.0, **fields}))


@pytest.fixture
def told(tmp_path):
    """What the spool is told."""
    each = Told(tmp_path)
    yield each
    each.spool.close()


def finished(reason=FinishReason.FINISH_REASON_STOP, prompt=3, completion=2):
    usage = Usage(prompt_tokens=prompt, completion_tokens=completion)
    return Finished(reason=reason, usage=usage)


def aborted(**counts):
    return finished(FinishReason.FINISH_REASON_ABORTED, **counts)


def test_a_request_that_was_served_leaves_its_record(told):
    """The worker's own counts stand in it."""
    meter = told.meter()
    tally = meter.attempt(0, "w1")
    tally.accepted(3)
    tally.received(1)
    tally.finished(finished())
    meter.end(COMPLETED)
    (record,) = told.ends
    assert Counts(prompt=3, cached=0, completion=2, reasoning=0) == record.counts
    assert (record.ending, record.worker_id) == (COMPLETED, "w1")
    assert told.statuses == [Status.COMPLETED]


async def test_what_a_fault_keeps_from_its_record_is_asked_for(told, monkeypatch):
    """The schedulers know what it used as well, and an edge that ends does not wait for it."""
    meter = told.meter()
    tally = meter.attempt(0, "w1")
    tally.accepted(3)
    tally.finished(finished())
    with monkeypatch.context() as patch:
        patch.setattr("edge.metering.add_up", None)
        meter.end(COMPLETED)
    (asked,) = told.ends
    assert (asked.request_id, asked.ending) == ("r1", COMPLETED)
    assert told.spool.to_ask() == [asked]
    assert told.statuses == [None]
    await told.metering.idle()


async def test_what_a_second_fault_keeps_from_being_asked_for_is_asked_for_all_the_same(
    told, monkeypatch
):
    """By what was written when it began: its record is not left open, and nothing raises."""
    meter = told.meter(choices=2)
    tallies = [meter.attempt(index, "w1") for index in (1, 0)]
    for tally in tallies:
        tally.accepted(3)
    meter.end(COMPLETED)
    with monkeypatch.context() as patch:
        patch.setattr(Spool, "opened", None)
        for tally in tallies:
            tally.finished(finished())
    (asked,) = told.spool.to_ask()
    assert (asked.request_id, asked.generations, asked.unsure) == ("r1", (0, 1), True)
    assert asked.ending == Ending(status=Status.PARTIAL)
    assert told.statuses == [None]
    await told.metering.idle()


async def test_no_fault_of_the_spool_raises_out_of_an_end(told, monkeypatch):
    """Whoever tells a tally its end goes on, and so does an edge that is to end."""
    meter = told.meter()
    tally = meter.attempt(0, "w1")
    tally.accepted(3)
    meter.end(COMPLETED)
    monkeypatch.setattr(told.spool, "end", None)
    monkeypatch.setattr(told.spool, "ask", None)
    tally.finished(finished())
    assert told.statuses == [None]
    await told.metering.idle()
    assert told.spool.opened("r1").generations == (0,)


async def test_a_record_waits_for_the_end_of_what_was_aborted(told):
    """A client that left pays what the worker says, which comes after the handler is gone."""
    meter = told.meter()
    tally = meter.attempt(0, "w1")
    tally.accepted(3)
    meter.end(CANCELLED)
    assert not told.ends
    tally.finished(aborted(completion=9))
    await told.metering.idle()
    (record,) = told.ends
    assert (record.ending.status, record.counts.completion) == (Status.CANCELLED, 9)


def test_an_abort_that_is_not_answered_leaves_what_came(told):
    """Tokens that were received count, and the record says that it is partial."""
    meter = told.meter()
    tally = meter.attempt(0, "w1")
    tally.accepted(3)
    tally.received(2)
    tally.received(1)
    meter.end(CANCELLED)
    tally.lost(was_sent=True)
    (record,) = told.ends
    assert Counts(prompt=3, completion=3) == record.counts
    assert record.ending.status == Status.PARTIAL


def test_a_request_that_no_worker_accepted_leaves_none(told):
    """Refused, aborted before it was accepted, or never sent: nobody has served it."""
    meter = told.meter()
    meter.attempt(0, "w1").failed()
    meter.attempt(0, "w2").lost(was_sent=False)
    meter.attempt(0, "w3").finished(aborted())
    meter.end(FAILED)
    assert [Void(request_id="r1")] == told.ends
    assert told.statuses == [None]


def test_nothing_is_written_of_a_request_that_never_got_a_slot(told):
    """What was refused before has no usage at all."""
    told.meter().end(FAILED)
    assert not told.ends
    assert told.spool.next_batch(1) == []


def test_a_worker_that_vanished_before_it_accepted_is_asked_about(told):
    """Whether it ran is not known here."""
    meter = told.meter()
    meter.attempt(0, "w1").lost(was_sent=True)
    meter.end(FAILED)
    (request,) = told.ends
    assert isinstance(request, Open)
    assert (request.ending, request.generations) == (FAILED, (0,))
    assert told.spool.to_ask() == [request]


def test_a_retry_counts_what_the_client_is_told(told):
    """Of several tries of a generation the last one that ran stands in the record."""
    meter = told.meter()
    first = meter.attempt(0, "w1")
    first.accepted(3)
    first.lost(was_sent=True)
    second = meter.attempt(0, "w2")
    assert told.spool.opened("r1").unsure
    second.accepted(3)
    second.finished(finished())
    meter.end(COMPLETED)
    (record,) = told.ends
    assert (record.ending.status, record.worker_id) == (Status.COMPLETED, "w2")
    assert record.counts.completion == 2


def test_the_prompt_counts_once_for_all_its_choices(told):
    """Two choices of one prompt: one prompt, both completions; and both starts are written."""
    meter = told.meter(choices=2)
    tallies = [meter.attempt(index, "w1") for index in (1, 0)]
    assert told.spool.opened("r1").generations == (0, 1)
    assert not told.spool.opened("r1").unsure
    for tally in tallies:
        tally.accepted(3)
        tally.finished(finished())
    meter.end(COMPLETED)
    (record,) = told.ends
    assert (record.counts.prompt, record.counts.completion) == (3, 4)


def test_a_generation_in_doubt_beside_one_that_ran_makes_it_partial(told):
    """The request was admitted, and what the other one used is not known."""
    meter = told.meter(choices=2)
    one, other = meter.attempt(0, "w1"), meter.attempt(1, "w2")
    one.accepted(3)
    other.lost(was_sent=True)
    one.finished(aborted(completion=1))
    meter.end(FAILED)
    (record,) = told.ends
    assert isinstance(record, Closed)
    assert (record.ending.status, record.counts.completion) == (Status.PARTIAL, 1)


def test_no_request_begins_without_a_spool(told):
    """It is refused before it asks for a slot, and before it starts."""
    meter = told.meter()
    told.spool.close()
    for begin in (told.meter, lambda: meter.attempt(0, "w1")):
        with pytest.raises(Refusal) as refused:
            begin()
        assert (refused.value.status, refused.value.message) == (
            503,
            "usage cannot be recorded right now",
        )
