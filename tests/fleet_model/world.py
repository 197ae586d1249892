"""A world in which all that can happen happens at random."""

import itertools
from collections import deque

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from fleet_model.invariants import Invariants
from fleet_model.peers import SimEdge, SimWorker, Wire
from fleet_model.schedulers import Row, Schedulers
from scheduler.fleet import FencedError
from scheduler.view import drift

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


class World(Schedulers, Invariants, RuleBasedStateMachine):
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

    # All is quiet

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
