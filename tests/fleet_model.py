"""A model of schedulers, edges and workers, driven at random: what they say, lose and do at will.

There is one scheduler, or two that contend for the row of the leader, which freeze, go on with what
they had before, die and cannot reach Postgres. Streams keep their order and lose what is under way
when they break; everything between streams is reordered at will. A break is noticed late: a peer may
be back before the scheduler knows.
"""

import itertools
from collections import Counter, deque
from types import SimpleNamespace

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
LEADS_S, POLL_S = 1.5, 0.5
EVERYDAY = ["acquire", "acquire", "write_start", "write_start", "finish", "release", "cancel"]
EVERYDAY += [
    "heartbeat",
    "repeat_acquire",
    "repeat_freed",
    "reconnect",
    "reconnect",
    "notice_break",
    "wait",
]
TROUBLE = [
    "break_wire",
    "stay_away",
    "break_attach",
    "crash_edge",
    "crash_worker",
    "restart_scheduler",
    "wait",
]
CONTENTION = ["depose", "depose", "freeze_scheduler", "thaw_scheduler", "toggle_postgres", "wait"]


class Row:
    """The row of the leader, as Postgres judges it."""

    def __init__(self):
        self.holder, self.term, self.expires_at = None, 0, 0.0
        self.is_there = True

    def hold(self, holder, least, now):
        """Return whether the holder has it now, and its term."""
        if holder != self.holder and now < self.expires_at:
            return False, self.term
        if holder != self.holder or self.term < least:
            self.term = max(self.term + 1, least)
        self.holder, self.expires_at = holder, now + LEADS_S
        return True, self.term


class SimScheduler:
    """One scheduler process: its decisions, and whether it moves."""

    def __init__(self, holder, sessions):
        self.holder = holder
        self.sessions = sessions
        self.frozen = False
        self.late = False
        """It has been frozen, and has not looked at the clock since."""

    def poll(self, row, now):
        leader = self.sessions.leader
        if self.frozen or not row.is_there:
            return
        ours, term = row.hold(self.holder, leader.least, now)
        if ours:
            self.sessions.terms.took_row(term, now)
        else:
            self.sessions.terms.refused_row(term, now)


class CheckedPlacement(Placement):
    """The scheduler's, and it may choose no worker that can take nothing."""

    def choose(self, model, prompt, excluded, now):
        worker = super().choose(model, prompt, excluded, now)
        if worker is not None:
            assert worker.card.model == model
            assert worker.confirmed, "a worker was chosen whose leases are not known"
            assert worker.takes_requests
            assert not {worker.worker_id, worker.instance_id} & excluded
            assert worker.held < worker.slots
        return worker


class Wire:
    """One session, with what is under way in both directions."""

    certificate = ""

    def __init__(self, peer, scheduler):
        self.peer = peer
        self.scheduler = scheduler
        self.sessions = scheduler.sessions
        self.term = None
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
        self.wires = {}
        # The late Hello of a dead process has replaced this one, and so ended its leases.
        self.displaced = False

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
        for wire in self.wires.values():
            wire.up.append(WorkerReport(**item))

    def hear(self, wire, command):
        match command.WhichOneof("item"):
            case "welcome":
                wire.term = command.welcome.term
                rose = wire.term > self.term
                if wire.term >= max(self.term, 1):
                    self.term, self.key = wire.term, command.welcome.lease_key
                if rose:
                    self.voided.clear()
                    for each in self.wires.values():
                        each.up.append(self.hello())
            case "void" if wire.term == self.term:
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
        self.wires = {}
        self.unanswered = Counter()

    def hello(self):
        return EdgeMessage(
            hello={"edge_id": self.edge_id, "lease_ids": list(self.leases), "term": self.term}
        )

    def leader(self):
        for wire in self.wires.values():
            if wire.term and wire.term == self.term:
                return wire
        return None

    def say(self, **item):
        if (wire := self.leader()) is not None:
            wire.up.append(EdgeMessage(**item))

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

    def hear(self, wire, reply):
        match reply.WhichOneof("item"):
            case "welcome":
                self._welcomed(wire, reply.welcome.term)
            case "granted":
                self._granted(wire, reply.granted)
            case "rejected" if wire is self.leader():
                assert reply.rejected.generations
                for generation in reply.rejected.generations:
                    wish = (reply.rejected.request_id, generation)
                    self._answered(wish)
                    if wish in self.waiting:
                        self._end(wish, "rejected")

    def _welcomed(self, wire, term):
        wire.term = term
        if term < max(self.term, 1):
            return
        if term > self.term:
            self.term = term
            for each in self.wires.values():
                each.up.append(self.hello())
        self.unanswered.clear()
        for request_id, generations in self.wanted().items():
            self.ask(request_id, generations)

    def _granted(self, wire, granted):
        wish = (granted.request_id, granted.generation)
        obeyed = wire is self.leader()
        if obeyed:
            self._answered(wish)
        if not obeyed or wish not in self.waiting:
            wire.up.append(EdgeMessage(release={"lease_id": granted.lease_id}))
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
            self.say(lease_lost={"lease_id": lease.lease_id, "refused": True})
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
    """Schedulers, their peers and the wires between them."""

    schedulers_count = 1
    database_url = ""
    worker_type = SimWorker
    edge_type = SimEdge
    wire_type = Wire

    def __init__(self):
        super().__init__()
        self.now = 100.0
        self.numbers = itertools.count(1)
        self.outcomes = {}
        self.workers = []
        self.edges = []
        self.wires = []
        self.row = Row()
        self.polled_at = self.now
        self.schedulers = [self.new_scheduler() for _ in range(self.schedulers_count)]
        self.poll()

    # Schedulers

    @property
    def leader(self):
        """The decisions of the one that leads with the highest term."""
        return max(self.schedulers, key=lambda each: each.sessions.leader.term).sessions

    def new_scheduler(self):
        chance = Chance(
            new_id=lambda: f"l{next(self.numbers)}",
            new_key=lambda: b"key%d" % next(self.numbers),
            random=lambda: 0.5,
            wall_clock=lambda: 1_800_000_000.0 + self.now,
        )
        recorder = SimpleNamespace(
            granted=lambda _model, _waited_s: None,
            rejected=lambda _reason: None,
            used=lambda _model, _prompt, _cached: None,
            failing=lambda _model: None,
        )
        config = Config(queue_per_slot=1, database_url=self.database_url)
        sessions = Sessions(config, now=self.now, chance=chance, recorder=recorder)
        return SimScheduler(f"s{next(self.numbers)}", sessions)

    def restart_scheduler(self, data):
        number = data.draw(st.integers(0, len(self.schedulers) - 1))
        old, new = self.schedulers[number], self.new_scheduler()
        self.schedulers[number] = new
        for peer in (*self.workers, *self.edges):
            peer.wires.pop(old, None)
        self.wires = [wire for wire in self.wires if wire.scheduler is not old]

    def freeze_scheduler(self, data):
        data.draw(st.sampled_from(self.schedulers)).frozen = True

    def thaw_scheduler(self, data):
        if frozen := [each for each in self.schedulers if each.frozen]:
            thawed = data.draw(st.sampled_from(frozen))
            thawed.frozen, thawed.late = False, True

    def depose(self, data):
        """The leader freezes until another one leads, and goes on with what it had before."""
        self.row.is_there = True
        for each in self.schedulers:
            each.frozen = each.sessions is self.leader
        frozen = [each for each in self.schedulers if each.frozen]
        self.traffic(data)
        self.pass_time(3.0)
        self.traffic(data)
        for each in frozen:
            each.frozen, each.late = False, True

    def toggle_postgres(self, _data):
        self.row.is_there = not self.row.is_there

    def poll(self):
        if self.database_url:
            for scheduler in self.schedulers:
                scheduler.poll(self.row, self.now)

    def wait(self, data):
        self.pass_time(data.draw(st.sampled_from([0.1, 1.0, 3.0, 6.0, 11.0])))

    def pass_time(self, seconds):
        until = self.now + seconds
        while True:
            moving = [each.sessions for each in self.schedulers if not each.frozen]
            dues = {each: each.next_due() for each in moving}
            dues = {each: due for each, due in dues.items() if due is not None}
            polls_at = self.polled_at + POLL_S if self.database_url else until
            due = min([polls_at, *dues.values()])
            if due >= until:
                break
            self.now = max(self.now, due)
            for each, at in dues.items():
                if at <= self.now:
                    self.tick(each)
            if polls_at <= self.now:
                self.polled_at = self.now
                self.poll()
        self.now = until
        for each in self.schedulers:
            if not each.frozen:
                self.tick(each.sessions)
                each.late = False

    def tick(self, sessions):
        """What is due by now is done."""
        sessions.tick(self.now)

    # Sessions

    def connect(self, peer, scheduler):
        if scheduler in peer.wires:
            return
        wire = peer.wires[scheduler] = self.wire_type(peer, scheduler)
        self.wires.append(wire)
        wire.up.append(peer.hello())

    def connect_all(self, peer):
        for scheduler in self.schedulers:
            self.connect(peer, scheduler)

    def reconnect(self, data):
        away = [
            (peer, scheduler)
            for peer in (*self.workers, *self.edges)
            for scheduler in self.schedulers
            if scheduler not in peer.wires
        ]
        if away:
            self.connect(*data.draw(st.sampled_from(away)))

    def lives(self, wire):
        """The peer's end of a session still stands."""
        return wire.peer.wires.get(wire.scheduler) is wire

    def hang_up(self, wire):
        del wire.peer.wires[wire.scheduler]

    def break_wire(self, data):
        """The peer's end breaks; what is under way to the scheduler is lost or arrives yet."""
        if not (wires := [wire for wire in self.wires if self.lives(wire)]):
            return
        wire = data.draw(st.sampled_from(wires))
        self.hang_up(wire)
        wire.down.clear()
        if data.draw(st.booleans()):
            wire.up.clear()

    def notice(self, wire):
        """The scheduler sees that a session has ended."""
        self.wires.remove(wire)
        if self.lives(wire):
            self.hang_up(wire)
        self.peers_of(wire).left(wire, self.now)

    def peers_of(self, wire):
        """The decisions about peers of its kind."""
        of_edge = isinstance(wire.peer, SimEdge)
        return wire.sessions.of_edges if of_edge else wire.sessions.of_workers

    def broken(self):
        ended = [wire for wire in self.wires if wire.closed or not self.lives(wire)]
        return [wire for wire in ended if not wire.scheduler.frozen]

    def notice_break(self, data):
        if broken := self.broken():
            self.notice(data.draw(st.sampled_from(broken)))

    def stay_away(self, data):
        """A peer loses its session for longer than it takes to count as gone."""
        wires = [w for w in self.wires if self.lives(w) and not w.scheduler.frozen]
        if wires:
            self.notice(data.draw(st.sampled_from(wires)))
            self.pass_time(6.0)

    def deliver_up(self, wire):
        self.said(wire, wire.up.popleft())
        if isinstance(wire.peer, SimWorker):
            for worker in self.workers:
                same = worker.worker_id == wire.peer.worker_id
                worker.displaced |= same and worker is not wire.peer

    def said(self, wire, item):
        """The scheduler takes an item, or ends the session of who should not be there."""
        before = len(wire.down)
        try:
            self.peers_of(wire).said(wire, item, self.now)
        except FencedError:
            wire.close()
        if item.WhichOneof("item") == "acquire":
            answers = {each.WhichOneof("item") for each in list(wire.down)[before:]}
            assert not {"granted", "rejected"} <= answers, "a request was refused in part"

    def traffic(self, data):
        """Some of what is under way arrives, in any order between streams: nothing, or all."""
        for _ in range(data.draw(st.sampled_from([0, 1, 3, 10, 30]))):
            ways = [wire.up for wire in self.wires if wire.up and not wire.scheduler.frozen]
            ways += [wire.down for wire in self.wires if wire.down and self.lives(wire)]
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
            wire = next(each for each in self.wires if each.down is way)
            wire.peer.hear(wire, way.popleft())

    # Workers

    @initialize(slots=st.lists(st.integers(1, 3), min_size=1, max_size=2))
    def set_up(self, slots):
        for number, count in enumerate(slots):
            self.workers.append(self.worker_type(f"w{number}", f"w{number}-0", count))
            self.connect_all(self.workers[-1])
        for _ in range(2):
            self.edges.append(self.edge_type(f"e{next(self.numbers)}", self.outcomes))
            self.connect_all(self.edges[-1])
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

    def repeat_freed(self, data):
        """A worker tells again what has ended: it cannot know who has heard it."""
        worker = data.draw(st.sampled_from(self.workers))
        for lease_id in sorted(worker.used - set(worker.running)):
            worker.say(slot_freed={"lease_id": lease_id})

    def crash_worker(self, data):
        old = data.draw(st.sampled_from(self.workers))
        for edge in self.edges:
            self.lose(edge, old)
        new = self.worker_type(old.worker_id, f"{old.worker_id}-{next(self.numbers)}", old.slots)
        self.workers[self.workers.index(old)] = new
        old.wires.clear()
        self.connect_all(new)

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
        verdict = worker.start(lease)
        assert verdict != "full" or worker.displaced, "a slot was granted twice"
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
                    # As after a death: the next process of this worker may go on with it.
                    edge.again(lease, resume=True, excluded=[worker.instance_id])
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
        old.wires.clear()
        self.edges[self.edges.index(old)] = self.edge_type(f"e{next(self.numbers)}", self.outcomes)

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

    def on_time(self):
        return [each.sessions for each in self.schedulers if not (each.frozen or each.late)]

    @invariant()
    def no_slot_is_held_twice(self):
        for worker in self.workers:
            assert len(worker.running) <= worker.slots
        sessions, book = self.leader, self.leader.admission.leases
        for worker in self.workers:
            if worker.displaced or worker.term != sessions.leader.term:
                continue
            assert book.held(worker.instance_id) <= worker.slots
            known = sessions.fleet.instance(worker.instance_id)
            if known is not None and known.confirmed and known.link in worker.wires.values():
                unbooked = [each for each in worker.running if book.get(each) is None]
                assert not unbooked, "a running lease is not booked"

    @invariant()
    def who_stands_by_does_nothing(self):
        for sessions in (each.sessions for each in self.schedulers):
            if not sessions.leader.leads:
                assert not len(sessions.admission.queue)
                assert not len(sessions.admission.leases)

    @invariant()
    def nobody_waits_beside_a_free_slot(self):
        for sessions in self.on_time():
            admission = sessions.admission
            for waiting in admission.queue.line(MODEL):
                for worker in sessions.fleet.workers():
                    ids = {worker.worker_id, worker.instance_id}
                    out = ids & waiting.excluded or not worker.confirmed
                    barred = (
                        out or not worker.takes_requests or worker.breaker.opens_until is not None
                    )
                    assert barred or admission.leases.held(worker.instance_id) >= worker.slots

    @invariant()
    def nobody_waits_past_the_deadline(self):
        for sessions in self.on_time():
            line = sessions.admission.queue.line(MODEL)
            assert all(waiting.deadline > self.now for waiting in line)

    @invariant()
    def each_generation_waits_at_one_place(self):
        for sessions in (each.sessions for each in self.schedulers):
            line = sessions.admission.queue.line(MODEL)
            wishes = [(w.edge_id, w.request_id, each) for w in line for each in w.generations]
            assert all(waiting.generations for waiting in line)
            assert len(set(wishes)) == len(wishes) == line.slots
            assert line.requests == len({wish[:2] for wish in wishes})

    @invariant()
    def what_waits_or_runs_counts_as_concurrent(self):
        for sessions in (each.sessions for each in self.schedulers):
            admission = sessions.admission
            counted = {waiting.request_id for waiting in admission.queue.line(MODEL)}
            for worker in sessions.fleet.workers():
                if not worker.gone:
                    leases = admission.leases.of_instance(worker.instance_id)
                    counted |= {lease.request_id for lease in leases if lease.request_id}
            assert admission.limits.in_flight() == counted

    def settle_wires(self):
        """Deliver all that is under way, and let breaks be noticed."""
        while True:
            for wire in self.broken():
                self.notice(wire)
            busy = [wire for wire in self.wires if wire.up or wire.down]
            busy = [wire for wire in busy if not wire.scheduler.frozen]
            if not busy:
                return
            for wire in busy:
                while wire.up:
                    self.deliver_up(wire)
                while wire.down and self.lives(wire):
                    wire.peer.hear(wire, wire.down.popleft())

    def teardown(self):
        """Once all is quiet, every request has its outcome and every slot is free."""
        self.row.is_there = True
        for scheduler in self.schedulers:
            scheduler.frozen = False
        # Each round ends what runs; a request that has begun waits as many as it needs.
        for number in range(100):
            ended = None not in self.outcomes.values()
            if number >= 4 and ended and not len(self.leader.admission.leases):
                break
            for peer in (*self.workers, *self.edges):
                self.connect_all(peer)
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
        assert sum(each.sessions.leader.leads for each in self.schedulers) == 1
        admission = self.leader.admission
        assert not [each for each, outcome in self.outcomes.items() if outcome is None]
        assert not len(admission.queue)
        assert not len(admission.leases), "a slot was lost"
        for scheduler in self.schedulers:
            sessions = scheduler.sessions
            for worker in self.workers:
                known = sessions.fleet.instance(worker.instance_id)
                ended = "a session was torn down with its predecessor"
                assert known.link is worker.wires[scheduler], ended
                assert not known.gone
                assert worker.term == self.leader.leader.term
            for edge in self.edges:
                assert sessions.edges.get(edge.edge_id).link is edge.wires[scheduler]
        for worker in self.leader.fleet.workers():
            assert drift(worker, admission.leases, after_s=5.0) == 0


class Pair(World):
    """Two schedulers and the row that they contend for."""

    schedulers_count = 2
    database_url = "postgresql://"

    @rule(data=st.data(), event=st.sampled_from(CONTENTION))
    def contend(self, data, event):
        getattr(self, event)(data)
        self.traffic(data)
