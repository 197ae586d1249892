"""Which leases a worker takes, and that its cap holds."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fastrun.service import leases
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import Usage
from fastrun.v1.scheduler_pb2 import LeaseClaims, SlotFreed
from gpu_worker import slots as slots_module
from gpu_worker.slots import RefusedError, Slots

KEY = b"k" * 32


def lease(lease_id="a", *, instance_id="me", term=3, key=KEY):
    """Sign a lease."""
    return leases.sign(LeaseClaims(lease_id=lease_id, instance_id=instance_id, term=term), key)


@pytest.fixture
def slots():
    """Two slots under a scheduler of term 3."""
    made = Slots(2, instance_id="me")
    assert made.lead(3, KEY)
    return made


def refusal(slots, blob):
    """Return why a lease is refused."""
    with pytest.raises(RefusedError) as caught:
        slots.admit(blob)
    return caught.value


def test_a_good_lease_holds_a_slot_until_it_is_freed(slots):
    """From admission to free() the lease is listed; then it is not, and its usage is told."""
    blob = lease("a")
    assert slots.admit(blob) == "a"
    assert (slots.in_use, slots.running_ids, slots.running_leases) == (1, ["a"], [blob])
    usage = Usage(prompt_tokens=3)
    assert slots.free("a", usage) == SlotFreed(lease_id="a", usage=usage)
    assert slots.in_use == 0


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"", "longer"),
        (b"x" * 40, "lease"),
        (lease(key=b"x" * 32), "signature"),
        (lease(instance_id="you"), "instance"),
        (lease(term=2), "term"),
        (lease(term=4), "term"),
    ],
)
def test_a_bad_lease_is_refused_and_nothing_is_freed(slots, blob, message):
    """Who cannot show a good lease learns why, and nobody else hears of it."""
    error = refusal(slots, blob)
    assert error.detail.reason == ErrorReason.ERROR_REASON_LEASE_REFUSED
    assert message in error.detail.message
    assert error.freed is None
    assert slots.in_use == 0


def test_before_a_scheduler_no_lease_is_good():
    """Without a key there is nothing to check a lease with."""
    assert "no scheduler" in str(refusal(Slots(1, instance_id="me"), lease()))


@pytest.mark.parametrize("ended", [False, True])
def test_a_lease_is_used_once(slots, ended):
    """The same lease is refused while it runs and after it has ended."""
    slots.admit(lease("a"))
    if ended:
        slots.free("a", None)
    assert "used before" in str(refusal(slots, lease("a")))


def test_beyond_the_cap_a_good_lease_is_given_back_for_good(slots):
    """A refusal for want of a slot frees the lease, which then never works again."""
    slots.admit(lease("a"))
    slots.admit(lease("b"))
    error = refusal(slots, lease("c"))
    assert error.detail.reason == ErrorReason.ERROR_REASON_NO_SLOT
    assert error.freed == SlotFreed(lease_id="c")
    slots.free("a", None)
    assert "voided" in str(refusal(slots, lease("c")))


def test_closed_slots_admit_nothing(slots):
    """After close() good leases are given back as draining; what runs goes on."""
    slots.admit(lease("a"))
    slots.close()
    error = refusal(slots, lease("b"))
    assert error.detail.reason == ErrorReason.ERROR_REASON_DRAINING
    assert error.freed == SlotFreed(lease_id="b")
    assert slots.running_ids == ["a"]


def test_void_of_an_unknown_lease_is_answered_and_remembered(slots):
    """A voided lease never starts; the answer is the same each time."""
    assert slots.void("a") == slots.void("a") == SlotFreed(lease_id="a")
    assert slots.voided_ids == ["a"]
    assert "voided" in str(refusal(slots, lease("a")))


def test_void_of_a_running_lease_waits_for_its_end(slots):
    """No answer while it runs; after its end the answer carries its usage."""
    slots.admit(lease("a"))
    assert slots.void("a") is None
    freed = slots.free("a", Usage(completion_tokens=2))
    assert slots.void("a") == freed
    assert slots.voided_ids == []


def test_a_higher_term_fences_what_has_not_started(slots):
    """Running leases survive a new term, unstarted ones die, and an older term is not obeyed."""
    slots.admit(lease("a"))
    slots.void("b")
    assert slots.lead(5, b"n" * 32)
    assert not slots.lead(4, KEY)
    assert slots.term == 5
    assert slots.running_ids == ["a"]
    assert slots.voided_ids == []
    refusal(slots, lease("c"))
    assert slots.admit(lease("d", term=5, key=b"n" * 32)) == "d"


def test_memory_is_bounded(slots, monkeypatch):
    """Ended and voided leases are forgotten oldest first."""
    monkeypatch.setattr(slots_module, "ENDED_REMEMBERED", 3)
    monkeypatch.setattr(slots_module, "VOIDED_REMEMBERED", 2)
    for number in range(5):
        slots.admit(lease(f"ended-{number}"))
        slots.free(f"ended-{number}", Usage())
        slots.void(f"voided-{number}")
    assert slots.voided_ids == ["voided-3", "voided-4"]
    assert slots.void("ended-1") == SlotFreed(lease_id="ended-1")
    assert slots.void("ended-2") == SlotFreed(lease_id="ended-2", usage=Usage())


def test_standalone_needs_no_lease():
    """A standalone worker takes requests without a lease, up to its cap."""
    slots = Slots(2, instance_id="me", standalone=True)
    first, second = slots.admit(b""), slots.admit(b"")
    assert first != second
    assert refusal(slots, b"").detail.reason == ErrorReason.ERROR_REASON_NO_SLOT


class AnyOrder(RuleBasedStateMachine):
    """Admits, frees and voids in any order, beside a model of what must hold."""

    ids = st.integers(0, 8).map(str)

    def __init__(self):
        super().__init__()
        self.slots = Slots(3, instance_id="me")
        self.slots.lead(3, KEY)
        self.running = set()
        self.dead = set()

    @rule(lease_id=ids)
    def admit(self, lease_id):
        good = lease_id not in self.running | self.dead
        try:
            self.slots.admit(lease(lease_id))
        except RefusedError as error:
            assert not good or len(self.running) == 3
            if error.freed is not None:
                assert good
                self.dead.add(lease_id)
        else:
            assert good
            self.running.add(lease_id)

    @rule(lease_id=ids)
    def free(self, lease_id):
        if lease_id in self.running:
            self.slots.free(lease_id, None)
            self.running.remove(lease_id)
            self.dead.add(lease_id)

    @rule(lease_id=ids)
    def void(self, lease_id):
        answer = self.slots.void(lease_id)
        assert (answer is None) == (lease_id in self.running)
        if answer is not None:
            self.dead.add(lease_id)

    @invariant()
    def books_agree(self):
        assert set(self.slots.running_ids) == self.running
        assert len(self.running) <= 3


TestAnyOrder = AnyOrder.TestCase
