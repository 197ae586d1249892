"""The life of a lease."""

import pytest

from fastrun.v1.scheduler_pb2 import LeaseClaims
from scheduler import leases
from scheduler.leases import Lease, LeaseBook, LeaseState, NoSlotError

IDS = {"lease_id": "l1", "instance_id": "i1", "edge_id": "e1", "request_id": "r1"}


def claims():
    return LeaseClaims(**IDS)


@pytest.fixture
def book():
    return LeaseBook()


def grant(book, lease_id="l1", slots=2, **changes):
    lease = Lease(**(IDS | {"lease_id": lease_id} | changes), held_since=10.0)
    book.grant(lease, slots=slots)
    return lease


def test_never_more_leases_than_slots(book):
    """A grant beyond an instance's slots is an error, also while leases are being voided."""
    book.void(grant(book, "l1"))
    grant(book, "l2")
    with pytest.raises(NoSlotError):
        grant(book, "l3")
    assert grant(book, "l3", instance_id="i2").state is LeaseState.GRANTED
    assert [book.held("i1"), book.held("i2"), book.held("i3")] == [2, 1, 0]


def test_a_listed_lease_runs(book):
    """What its worker lists is running; ids that are not booked are no leases."""
    lease = grant(book)
    book.run("i1", ["l1", "l9"])
    assert lease.state is LeaseState.RUNNING
    assert len(book) == 1


def test_only_an_unstarted_lease_is_released(book):
    """Release ends a lease whose Start was never written, also while it is being voided."""
    unstarted, voided, running, lost = (grant(book, f"l{number}", slots=9) for number in range(4))
    book.void(voided)
    book.run("i1", ["l2"])
    book.void(lost, started=True)
    assert [book.release(each) for each in (unstarted, voided, running, lost)] == [
        True,
        True,
        False,
        False,
    ]
    assert book.held("i1") == 2


def test_a_voided_lease_stays_voided_when_it_is_listed(book):
    """Doubt ends only with the lease."""
    lease = grant(book)
    book.void(lease)
    book.run("i1", ["l1"])
    assert lease.state is LeaseState.VOIDING


def test_only_the_leases_own_worker_frees_it(book):
    """SlotFreed from another instance is not about this lease."""
    lease = grant(book)
    assert book.free("i2", "l1") is None
    assert book.free("i1", "l1") is lease
    assert book.free("i1", "l1") is None
    assert len(book) == 0


def test_the_end_of_an_instance_ends_its_leases_alone(book):
    """Leases of other instances stay."""
    ended = [grant(book, "l1"), grant(book, "l2")]
    other = grant(book, "l3", instance_id="i2")
    assert book.end_instance("i1") == ended
    assert book.get("l3") is other
    assert book.of_instance("i1") == []


def test_a_running_lease_that_is_not_booked_is_restored(book):
    """From its claims a lease that another scheduler granted is known as if granted here."""
    lease = book.restore(claims(), now=1.0)
    assert lease is not None
    assert (lease.state, lease.started, lease.edge_id) == (LeaseState.RUNNING, True, "e1")
    assert book.restore(claims(), now=2.0) is lease
    assert book.held("i1") == 1


def test_what_was_freed_stays_freed(book):
    """A listing that is older than the SlotFreed does not bring a lease back."""
    grant(book)
    book.free("i1", "l1")
    assert book.restore(claims(), now=1.0) is None
    assert book.strays("i1", ["l1", "l2"]) == ["l2"]


def test_leases_are_found_by_edge_and_request(book):
    """Both indexes lose what has ended."""
    first = grant(book, "l1")
    second = grant(book, "l2", generation=1)
    assert book.of_edge("e1") == [first, second]
    assert book.of_request("r1") == [first, second]
    assert book.of_edge("e2") == book.of_request("r2") == []
    book.release(second)
    assert book.of_edge("e1") == book.of_request("r1") == [first]
    book.release(first)
    assert book.of_edge("e1") == book.of_request("r1") == []


def test_memory_of_freed_leases_is_bounded(book, monkeypatch):
    """The oldest freed lease is forgotten first."""
    monkeypatch.setattr(leases, "FREED_REMEMBERED", 1)
    for lease_id in ("l1", "l2"):
        grant(book, lease_id)
        book.free("i1", lease_id)
    assert book.strays("i1", ["l1", "l2"]) == ["l1"]
