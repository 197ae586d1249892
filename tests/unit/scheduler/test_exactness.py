"""Whatever edges, workers and schedulers do, slots stay exact: a model of all three, driven at random.

Streams keep their order and lose what is under way when they break; everything between streams is
reordered at will. A break is noticed late: a peer may be back before the scheduler knows.
"""

import itertools
from collections import Counter, deque
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fastrun.service import leases
from fastrun.v1.scheduler_pb2 import EdgeMessage, WorkerReport
from scheduler.config import Config
from scheduler.fleet import FencedError
from scheduler.placement import Placement
from scheduler.ports import Chance
from scheduler.sessions import Sessions
from scheduler.view import drift

MODEL = "tiny"
EVERYDAY = ["acquire", "acquire", "write_start", "write_start", "finish", "release", "cancel"]
EVERYDAY += ["heartbeat", "repeat_acquire", "reconnect", "reconnect", "notice_break", "wait"]
TROUBLE = [
    "break_wire",
    "stay_away",
    "break_attach",
    "crash_edge",
    "crash_worker",
    "restart_scheduler",
    "wait",
]


class CheckedPlacement(Placement):
    """The scheduler's, and it may choose no worker that can take nothing."""

    def choose(self, model, prompt, excluded, now):
        worker = super().choose(model, prompt, excluded, now)
        if worker is not None:
            assert worker.card.model == model
            assert worker.confirmed, "a worker was chosen whose leases are not known"
            assert worker.takes_requests
            assert worker.worker_id not in excluded
            assert worker.held < worker.slots
        return worker


@pytest.fixture(autouse=True, scope="module")
def _checked():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scheduler.admission.Placement", CheckedPlacement)
        yield


class Wire:
    """One session, with what is under way in both directions."""

    def __init__(self, peer, sessions):
        self.peer = peer
        self.sessions = sessions
        self.up = deque()
        self.down = deque()
        self.closed = False

    def send(self, item):
        self.down.append(item)

    def close(self):
        self.closed = True


class SimWorker:
    """A worker process that keeps the worker's side of the rules."""

    def __init__(self, worker_id, instance_id, slots, term=0):
        self.worker_id = worker_id
        self.instance_id = instance_id
        self.slots = slots
        self.term = term
        self.key = b""
        self.running = {}
        self.used = set()
        self.voided = set()
        self.wire = None
        # The late Hello of a dead process has replaced this one, and so ended its leases.
        self.displaced = False
        # A lease that the scheduler could not know was accepted after the Hello to it was written.
        self.raced = False

    def hello(self):
        return WorkerReport(
            hello={
                "worker_id": self.worker_id,
                "instance_id": self.instance_id,
                "address": "h:1",
                "model": {"model": MODEL},
                "slots": self.slots,
                "running_leases": [lease.blob for lease in self.running.values()],
                "voided_lease_ids": self.voided,
                "term": self.term,
            }
        )

    def say(self, **item):
        if self.wire is not None:
            self.wire.up.append(WorkerReport(**item))

    def hear(self, command):
        match command.WhichOneof("item"):
            case "welcome":
                if command.welcome.term >= self.term:
                    self.term, self.key = command.welcome.term, command.welcome.lease_key
            case "void":
                lease_id = command.void.lease_id
                self.voided.add(lease_id)
                lease = self.running.get(lease_id)
                if lease is None:
                    self.say(slot_freed={"lease_id": lease_id})
                elif not lease.attached:
                    self.finish(lease_id)

    def start(self, lease):
        """Return why a Start is refused, or None."""
        try:
            claims = leases.verify(lease.blob, self.key)
        except leases.LeaseError:
            return "refused"
        if claims.instance_id != self.instance_id or claims.term != self.term:
            return "refused"
        if claims.lease_id in self.used or claims.lease_id in self.voided:
            return "refused"
        if len(self.running) >= self.slots:
            return "full"
        self.used.add(claims.lease_id)
        self.running[claims.lease_id] = lease
        return None

    def finish(self, lease_id):
        lease = self.running.pop(lease_id)
        lease.edge.leases.pop(lease_id, None)
        self.say(slot_freed={"lease_id": lease_id})


class SimEdge:
    """An edge process that keeps the edge's side of the rules.

    What waits, its outcome and what has not been answered go by (request id, generation).
    """

    def __init__(self, edge_id, outcomes):
        self.edge_id = edge_id
        self.outcomes = outcomes
        self.term = 0
        self.waiting = {}
        self.leases = {}
        self.starting = deque()
        self.wire = None
        self.unanswered = Counter()

    def hello(self):
        return EdgeMessage(
            hello={"edge_id": self.edge_id, "lease_ids": list(self.leases), "term": self.term}
        )

    def say(self, **item):
        if self.wire is not None:
            self.wire.up.append(EdgeMessage(**item))

    def want(self, request_id, generations, patience):
        for generation in generations:
            self.outcomes[request_id, generation] = None
            self.waiting[request_id, generation] = patience
        self.ask(request_id, generations)

    def wanted(self):
        """Return the generations that wait, by request."""
        generations = {}
        for request_id, generation in self.waiting:
            generations.setdefault(request_id, []).append(generation)
        return generations

    def ask(self, request_id, generations, *, front=False, resume=False, excluded=()):
        self.unanswered.update((request_id, each) for each in generations)
        self.say(
            acquire={
                "request_id": request_id,
                "generations": generations,
                "account_id": f"a{int(request_id[1:]) % 3}",
                "token_estimate": int(request_id[1:]) % 50,
                "model": MODEL,
                "queue_timeout_ms": self.waiting[request_id, generations[0]],
                "front": front,
                "resume": resume,
                "excluded_worker_ids": excluded,
            }
        )

    def hear(self, reply):
        match reply.WhichOneof("item"):
            case "welcome":
                self.term = max(self.term, reply.welcome.term)
            case "granted":
                self._granted(reply.granted)
            case "rejected":
                assert reply.rejected.generations
                for generation in reply.rejected.generations:
                    wish = (reply.rejected.request_id, generation)
                    self._answered(wish)
                    if wish in self.waiting:
                        self._end(wish, "rejected")

    def _granted(self, granted):
        wish = (granted.request_id, granted.generation)
        self._answered(wish)
        if wish not in self.waiting:
            self.say(release={"lease_id": granted.lease_id})
            return
        patience = self.waiting[wish]
        self._end(wish, "granted")
        self.leases[granted.lease_id] = SimpleNamespace(
            lease_id=granted.lease_id,
            request_id=granted.request_id,
            generation=granted.generation,
            worker_id=granted.worker_id,
            blob=granted.lease,
            instance_id=granted.instance_id,
            patience=patience,
            edge=self,
            granted_by=self.wire.sessions,
            attached=True,
            started=False,
        )

    def _answered(self, wish):
        self.unanswered[wish] -= 1
        assert self.unanswered[wish] >= 0, "more answers than questions"

    def _end(self, wish, outcome):
        del self.waiting[wish]
        assert self.outcomes[wish] is None
        self.outcomes[wish] = outcome

    def refused(self, lease, then):
        """A worker refused a Start: ask again at the head of the queue, or give up."""
        del self.leases[lease.lease_id]
        if then == "give up":
            self.say(lease_lost={"lease_id": lease.lease_id})
            return
        excluded = [lease.worker_id] if then == "elsewhere" else []
        self.again(lease, front=True, excluded=excluded)

    def again(self, lease, **fields):
        wish = (lease.request_id, lease.generation)
        self.outcomes[wish] = None
        self.waiting[wish] = lease.patience
        self.ask(lease.request_id, [lease.generation], **fields)

    def cancel(self, request_id):
        for generation in self.wanted()[request_id]:
            self._end((request_id, generation), "cancelled")
        self.say(cancel={"request_id": request_id})


class World(RuleBasedStateMachine):
    """One scheduler at a time, its peers and the wires between them."""

    def __init__(self):
        super().__init__()
        self.now = 100.0
        self.numbers = itertools.count(1)
        self.outcomes = {}
        self.workers = []
        self.edges = []
        self.wires = []
        self.start_scheduler()

    # The scheduler

    def start_scheduler(self):
        chance = Chance(
            new_id=lambda: f"l{next(self.numbers)}",
            new_key=lambda: b"key%d" % next(self.numbers),
            random=lambda: 0.5,
            wall_clock=lambda: 1_800_000_000.0 + self.now,
        )
        recorder = SimpleNamespace(
            granted=lambda _model, _waited_s: None, rejected=lambda _reason: None
        )
        self.sessions = Sessions(
            Config(queue_per_slot=1), now=self.now, chance=chance, recorder=recorder
        )

    def restart_scheduler(self, _data):
        for peer in (*self.workers, *self.edges):
            peer.wire = None
        self.wires = []
        self.start_scheduler()

    def wait(self, data):
        self.pass_time(data.draw(st.sampled_from([0.1, 1.0, 3.0, 6.0, 11.0])))

    def pass_time(self, seconds):
        until = self.now + seconds
        while (due := self.sessions.next_due()) is not None and due <= until:
            self.now = max(self.now, due)
            self.sessions.tick(self.now)
        self.now = until

    # Sessions

    def connect(self, peer):
        if peer.wire is not None:
            return
        peer.wire = Wire(peer, self.sessions)
        self.wires.append(peer.wire)
        peer.wire.up.append(peer.hello())
        if isinstance(peer, SimEdge):
            peer.unanswered.clear()
            for request_id, generations in peer.wanted().items():
                peer.ask(request_id, generations)

    def reconnect(self, data):
        if away := [peer for peer in (*self.workers, *self.edges) if peer.wire is None]:
            self.connect(data.draw(st.sampled_from(away)))

    def break_wire(self, data):
        """The peer's end breaks; what is under way to the scheduler is lost or arrives yet."""
        if not (wires := [wire for wire in self.wires if wire.peer.wire is wire]):
            return
        wire = data.draw(st.sampled_from(wires))
        wire.peer.wire = None
        wire.down.clear()
        if data.draw(st.booleans()):
            wire.up.clear()

    def notice(self, wire):
        """The scheduler sees that a session has ended."""
        self.wires.remove(wire)
        if wire.peer.wire is wire:
            wire.peer.wire = None
        if isinstance(wire.peer, SimEdge):
            self.sessions.edge_left(wire, self.now)
        else:
            self.sessions.worker_left(wire, self.now)

    def notice_break(self, data):
        if broken := [w for w in self.wires if w.closed or w.peer.wire is not w]:
            self.notice(data.draw(st.sampled_from(broken)))

    def stay_away(self, data):
        """A peer loses its session for longer than it takes to count as gone."""
        if connected := [peer for peer in (*self.workers, *self.edges) if peer.wire]:
            wire = data.draw(st.sampled_from(connected)).wire
            self.notice(wire)
            self.pass_time(6.0)

    def deliver_up(self, wire):
        item = wire.up.popleft()
        if isinstance(wire.peer, SimEdge):
            before = len(wire.down)
            self.sessions.edge_said(wire, item, self.now)
            if item.HasField("acquire"):
                answers = {each.WhichOneof("item") for each in list(wire.down)[before:]}
                assert not {"granted", "rejected"} <= answers, "a request was refused in part"
        else:
            try:
                self.sessions.worker_said(wire, item, self.now)
            except FencedError:
                wire.close()
            for worker in self.workers:
                same = worker.worker_id == wire.peer.worker_id
                worker.displaced |= same and worker is not wire.peer

    def traffic(self, data):
        """Some of what is under way arrives, in any order between streams: nothing, or all."""
        for _ in range(data.draw(st.sampled_from([0, 1, 3, 10, 30]))):
            ways = [wire.up for wire in self.wires if wire.up]
            ways += [wire.down for wire in self.wires if wire.down and wire.peer.wire is wire]
            ways += [edge.starting for edge in self.edges if edge.starting]
            if not ways:
                return
            self.arrive(data.draw(st.sampled_from(ways)), data)

    def arrive(self, way, data):
        if edge := next((each for each in self.edges if each.starting is way), None):
            self.start(edge, data.draw(st.sampled_from(["again", "elsewhere", "give up"])))
        elif wire := next((each for each in self.wires if each.up is way), None):
            self.deliver_up(wire)
        else:
            next(each for each in self.wires if each.down is way).peer.hear(way.popleft())

    # Workers

    @initialize(slots=st.lists(st.integers(1, 3), min_size=1, max_size=2))
    def set_up(self, slots):
        for number, count in enumerate(slots):
            self.workers.append(SimWorker(f"w{number}", f"w{number}-0", count))
            self.connect(self.workers[-1])
        for _ in range(2):
            self.edges.append(SimEdge(f"e{next(self.numbers)}", self.outcomes))
            self.connect(self.edges[-1])
        self.settle_wires()

    def heartbeat(self, data):
        worker = data.draw(st.sampled_from(self.workers))
        states = ["WORKER_STATE_SERVING", "WORKER_STATE_SERVING", "WORKER_STATE_DRAINING"]
        running, state = list(worker.running), data.draw(st.sampled_from(states))
        worker.say(heartbeat={"running_lease_ids": running, "state": state})

    def finish(self, data):
        running = [(w, lease_id) for w in self.workers for lease_id in w.running]
        if running:
            worker, lease_id = data.draw(st.sampled_from(running))
            worker.finish(lease_id)

    def crash_worker(self, data):
        old = data.draw(st.sampled_from(self.workers))
        for edge in self.edges:
            self.lose(edge, old)
        new = SimWorker(old.worker_id, f"{old.worker_id}-{next(self.numbers)}", old.slots)
        self.workers[self.workers.index(old)] = new
        old.wire = None
        self.connect(new)

    # Edges

    def acquire(self, data):
        patience = data.draw(st.sampled_from([0, 2_000, 20_000]))
        edge = data.draw(st.sampled_from(self.edges))
        generations = range(data.draw(st.sampled_from([1, 1, 2, 3, 8])))
        edge.want(f"r{next(self.numbers)}", generations, patience)

    def repeat_acquire(self, data):
        """Some or all that wait are asked for again, and more may join them."""
        if not (waiting := self.waiting_requests()):
            return
        edge, request_id = data.draw(st.sampled_from(waiting))
        if data.draw(st.booleans()):
            patience = data.draw(st.sampled_from([0, 20_000]))
            edge.want(request_id, [next(self.numbers)], patience)
        generations = edge.wanted()[request_id]
        edge.ask(request_id, generations[: data.draw(st.sampled_from([1, 9]))])

    def cancel(self, data):
        if waiting := self.waiting_requests():
            edge, request_id = data.draw(st.sampled_from(waiting))
            edge.cancel(request_id)

    def waiting_requests(self):
        return [(edge, each) for edge in self.edges for each in edge.wanted()]

    def unstarted(self):
        return [each for e in self.edges for each in e.leases.values() if not each.started]

    def release(self, data):
        if unstarted := self.unstarted():
            lease = data.draw(st.sampled_from(unstarted))
            self.give_back(lease)
            if data.draw(st.booleans()):
                lease.edge.say(release={"lease_id": lease.lease_id})

    def give_back(self, lease):
        del lease.edge.leases[lease.lease_id]
        lease.edge.say(release={"lease_id": lease.lease_id})

    def write_start(self, data):
        if unstarted := self.unstarted():
            lease = data.draw(st.sampled_from(unstarted))
            lease.started = True
            lease.edge.starting.append(lease)

    def start(self, edge, if_refused):
        lease = edge.starting.popleft()
        worker = next((w for w in self.workers if w.instance_id == lease.instance_id), None)
        if worker is None:
            edge.refused(lease, if_refused)
            return
        booked = self.sessions.admission.leases.get(lease.lease_id)
        verdict = worker.start(lease)
        foreign = lease.granted_by is not self.sessions or worker.displaced
        if verdict is None and booked is None and worker.wire is not None and foreign:
            worker.raced = True
        assert verdict != "full" or worker.raced, "a slot was granted twice"
        if verdict:
            edge.refused(lease, if_refused)

    def break_attach(self, data):
        edge = data.draw(st.sampled_from(self.edges))
        self.lose(edge, data.draw(st.sampled_from(self.workers)))

    def lose(self, edge, worker):
        """The Attach between an edge and a worker ends."""
        lost = [each for each in edge.leases.values() if each.instance_id == worker.instance_id]
        for lease in lost:
            if lease.started:
                del edge.leases[lease.lease_id]
                edge.say(lease_lost={"lease_id": lease.lease_id})
                if next(self.numbers) % 2:
                    edge.again(lease, resume=True, excluded=[worker.worker_id])
        edge.starting = deque(lease for lease in edge.starting if lease not in lost)
        for lease_id, lease in list(worker.running.items()):
            if lease.edge is edge:
                lease.attached = False
                worker.finish(lease_id)

    def crash_edge(self, data):
        old = data.draw(st.sampled_from(self.edges))
        for worker in self.workers:
            self.lose(old, worker)
        for wish in old.waiting:
            self.outcomes[wish] = "crashed"
        old.wire = None
        self.edges[self.edges.index(old)] = SimEdge(f"e{next(self.numbers)}", self.outcomes)

    # What happens

    @rule(data=st.data(), events=st.lists(st.sampled_from(EVERYDAY), min_size=1, max_size=6))
    def work(self, data, events):
        for event in events:
            getattr(self, event)(data)
            self.traffic(data)

    @rule(data=st.data(), event=st.sampled_from(TROUBLE))
    def fail(self, data, event):
        getattr(self, event)(data)
        self.traffic(data)

    # What must hold

    @invariant()
    def no_slot_is_held_twice(self):
        book = self.sessions.admission.leases
        for worker in self.workers:
            assert len(worker.running) <= worker.slots
            assert worker.raced or book.held(worker.instance_id) <= worker.slots
            known = self.sessions.fleet.instance(worker.instance_id)
            assert known is None or known.held == book.held(worker.instance_id)
            if known is not None and known.link is worker.wire is not None and not worker.raced:
                unbooked = [each for each in worker.running if book.get(each) is None]
                assert not unbooked, "a running lease is not booked"

    @invariant()
    def nobody_waits_beside_a_free_slot(self):
        admission = self.sessions.admission
        for waiting in admission.queue.line(MODEL):
            for worker in self.sessions.fleet.workers():
                out = worker.worker_id in waiting.excluded or not worker.takes_requests
                barred = out or worker.breaker.opens_until is not None
                assert barred or admission.leases.held(worker.instance_id) >= worker.slots

    @invariant()
    def nobody_waits_past_the_deadline(self):
        line = self.sessions.admission.queue.line(MODEL)
        assert all(waiting.deadline > self.now for waiting in line)

    @invariant()
    def each_generation_waits_at_one_place(self):
        line = self.sessions.admission.queue.line(MODEL)
        wishes = [(w.edge_id, w.request_id, each) for w in line for each in w.generations]
        assert all(waiting.generations for waiting in line)
        assert len(set(wishes)) == len(wishes) == line.slots
        assert line.requests == len({wish[:2] for wish in wishes})

    @invariant()
    def what_waits_or_runs_counts_as_concurrent(self):
        admission = self.sessions.admission
        counted = {waiting.request_id for waiting in admission.queue.line(MODEL)}
        for worker in self.sessions.fleet.workers():
            if not worker.gone:
                leases = admission.leases.of_instance(worker.instance_id)
                counted |= {lease.request_id for lease in leases if lease.request_id}
        assert admission.limits.in_flight() == counted

    def settle_wires(self):
        """Deliver all that is under way, and let breaks be noticed."""
        while True:
            for wire in [w for w in self.wires if w.closed or w.peer.wire is not w]:
                self.notice(wire)
            busy = [wire for wire in self.wires if wire.up or wire.down]
            if not busy:
                return
            for wire in busy:
                while wire.up:
                    self.deliver_up(wire)
                while wire.down and wire.peer.wire is wire:
                    wire.peer.hear(wire.down.popleft())

    def teardown(self):
        """Once all is quiet, every request has its outcome and every slot is free."""
        # Each round ends what runs; a request that has begun waits as many as it needs.
        for number in range(100):
            ended = None not in self.outcomes.values()
            if number >= 4 and ended and not len(self.sessions.admission.leases):
                break
            for peer in (*self.workers, *self.edges):
                self.connect(peer)
            self.settle_wires()
            for edge in self.edges:
                while edge.starting:
                    self.start(edge, "give up")
            for worker in self.workers:
                for lease_id in list(worker.running):
                    worker.finish(lease_id)
            for lease in self.unstarted():
                self.give_back(lease)
            for worker in self.workers:
                worker.say(heartbeat={"running_lease_ids": list(worker.running)})
            self.settle_wires()
            self.pass_time(30.0)
        self.settle_wires()
        admission = self.sessions.admission
        assert not [each for each, outcome in self.outcomes.items() if outcome is None]
        assert not len(admission.queue)
        assert not len(admission.leases), "a slot was lost"
        for worker in self.workers:
            known = self.sessions.fleet.instance(worker.instance_id)
            assert known.link is worker.wire, "a session was torn down with its predecessor"
            assert not known.gone
        for edge in self.edges:
            assert self.sessions.edges.get(edge.edge_id).link is edge.wire
        assert drift(self.sessions.fleet, admission.leases, after_s=5.0, now=self.now) == 0


World.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestExactness = World.TestCase
