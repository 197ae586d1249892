"""Whatever edges, workers and schedulers do, slots stay exact; see tests/fleet_model.

Also where the scheduler has bugs: what fails anywhere is at worst a request that is refused, or a
session that begins anew. Once all is quiet no slot is lost, and nobody waits.
"""

import functools
from contextlib import suppress

import pytest
import structlog
from fleet_model import CheckedPlacement, Pair, SimEdge, SimWorker, Wire, World
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from scheduler.answers import Answers
from scheduler.edges import Edges
from scheduler.fleet import FencedError, Fleet
from scheduler.leader import Leadership
from scheduler.leases import LeaseBook
from scheduler.limits import Limits
from scheduler.line import Line
from scheduler.models import Models
from scheduler.placement import Placement
from scheduler.refusals import Refusals
from scheduler.usage_log import UsageLog

BUGS = {
    Answers: ["cancelled", "failed", "granted", "queued", "rejected"],
    Edges: ["begin_term"],
    Fleet: ["beat", "begin_term", "confirm", "roster", "slots"],
    Leadership: ["knows", "tell"],
    LeaseBook: ["grant", "missing", "run", "strays", "void"],
    Limits: ["hold", "left", "let_in", "tell", "use", "why_refused"],
    Line: ["heads", "position", "suited"],
    Models: ["begin_term", "changed", "listed", "tell"],
    Placement: ["choose", "granted", "loss", "ran"],
    Refusals: ["detail", "freed", "who_makes_way", "why_expired", "why_hopeless", "why_not_wait"],
    UsageLog: ["add"],
}
"""What may fail, when it is called."""


class BugError(Exception):
    """What a bug raises."""


class Bug:
    """Bites once, at one of the next calls of what may fail."""

    def __init__(self):
        self.calls = 0
        self.bitten = set()

    def creep(self, where):
        self.calls -= 1
        if self.calls == 0:
            self.bitten.add(where)
            raise BugError(where)

    def infest(self, kind, name):
        healthy = getattr(kind, name)

        @functools.wraps(healthy)
        def call(*args, **named):
            self.creep(kind)
            return healthy(*args, **named)

        return call


BUG = Bug()


@pytest.fixture(autouse=True, scope="module")
def _checked():
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scheduler.admission.Placement", CheckedPlacement)
        for kind, names in BUGS.items():
            for name in names:
                patch.setattr(kind, name, BUG.infest(kind, name))
        yield
    structlog.reset_defaults()


class FaultyWire(Wire):
    """One that may not take what is to be sent."""

    def send(self, item):
        BUG.creep(Wire)
        super().send(item)


class FaultyWorker(SimWorker):
    """One that may swallow a Void."""

    def hear(self, wire, command):
        if command.WhichOneof("item") == "void":
            with suppress(BugError):
                BUG.creep(SimWorker)
                super().hear(wire, command)
        else:
            super().hear(wire, command)


class PatientEdge(SimEdge):
    """One that hears of faults of the scheduler's, which concern all that waits of a request."""

    def hear(self, wire, reply):
        if reply.WhichOneof("item") == "rejected" and not reply.rejected.generations:
            request_id = reply.rejected.request_id
            for generation in self.wanted().get(request_id, ()) if wire is self.leader() else ():
                self._end((request_id, generation), "failed")
            return
        super().hear(wire, reply)

    def _answered(self, wish):
        """Answers are not counted: some are lost."""


class Faulty(World):
    """Schedulers with bugs; what they do to the figures while one bites is not looked at."""

    worker_type = FaultyWorker
    edge_type = PatientEdge
    wire_type = FaultyWire

    def __init__(self):
        BUG.calls = 0
        BUG.bitten.clear()
        super().__init__()

    @rule(calls=st.integers(1, 40))
    def bug(self, calls):
        BUG.calls = calls

    def tick(self, sessions):
        with suppress(ExceptionGroup):
            super().tick(sessions)

    def poll(self):
        with suppress(BugError):
            super().poll()

    def notice(self, wire):
        with suppress(BugError):
            super().notice(wire)

    def said(self, wire, item):
        try:
            self.peers_of(wire).said(wire, item, self.now)
        except (BugError, FencedError):
            wire.close()

    def nobody_waits_beside_a_free_slot(self):
        pass

    def nobody_waits_past_the_deadline(self):
        pass

    def what_waits_or_runs_counts_as_concurrent(self):
        pass

    def teardown(self):
        BUG.calls = 0
        super().teardown()
        if Limits not in BUG.bitten:
            assert not self.leader.admission.limits.in_flight()


class FaultyPair(Faulty, Pair):
    """Two of them."""


SETTINGS = settings(
    max_examples=150,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
for machine in (World, Pair, Faulty, FaultyPair):
    machine.TestCase.settings = SETTINGS
TestExactness = World.TestCase
TestExactnessOfTwo = Pair.TestCase
TestExactnessWithFaults = Faulty.TestCase
TestExactnessOfTwoWithFaults = FaultyPair.TestCase
