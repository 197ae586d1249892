"""Edges and workers that keep their side of the rules, and the sessions between them and schedulers."""

from collections import Counter, deque
from types import SimpleNamespace

from fastrun.service import leases
from fastrun.v1.scheduler_pb2 import EdgeMessage, WorkerReport

MODEL = "tiny"


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
