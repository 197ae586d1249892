"""Who gets a slot: joins queue, placement and leases into answers for each request.

A request has one generation or several, and each one needs a slot of its own: granted one by one as
slots free, refused together. At arrival a request is refused as a whole or not at all.

Between two events nothing that waits could be placed: every event that frees or adds a slot ends
with fill(). So a newcomer that can be placed overtakes nobody who could be.

A fault of ours is one request's: that one is given up, and all others go on.
"""

from collections import deque
from functools import partial

import structlog

from fastrun.service.tracing import Tracer
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import Usage
from fastrun.v1.scheduler_pb2 import Acquire, Void, WorkerCommand
from scheduler.answers import Answers
from scheduler.config import Config
from scheduler.edges import Edge, Edges
from scheduler.faults import do_all
from scheduler.fleet import Fleet, Worker
from scheduler.leader import Leadership
from scheduler.leases import Lease, LeaseBook, LeaseState
from scheduler.limits import Limits
from scheduler.meters import Reached
from scheduler.placement import Placement
from scheduler.ports import Chance, Recorder
from scheduler.prefix_index import Prompt
from scheduler.queue import Queue
from scheduler.refusals import Refusals
from scheduler.usage_log import UsageLog
from scheduler.waiting import Waiting

log = structlog.get_logger()


class Admission:
    """Grants, queues and refuses; times are monotonic seconds and come with every event."""

    def __init__(
        self,
        config: Config,
        *,
        fleet: Fleet,
        edges: Edges,
        leader: Leadership,
        usage_log: UsageLog,
        chance: Chance,
        recorder: Recorder,
        tracer: Tracer,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._edges = edges
        self._leader = leader
        self._usage_log = usage_log
        self._chance = chance
        self._new_id = chance.new_id
        self._recorder = recorder
        self._tracer = tracer
        self.begin()

    def begin(self) -> None:
        """Begin anew: nobody waits, no slot is held, and nothing has been used."""
        fleet, random = self._fleet, self._chance.random
        self.placement = Placement(fleet, entries=self._config.prefix_index_entries, random=random)
        self.leases = LeaseBook(self.placement)
        self.queue = Queue()
        self.limits = Limits(self._chance.wall_clock)
        self.refusals = Refusals(
            fleet, self.queue, per_slot=self._config.queue_per_slot, random=random
        )
        self._answers = Answers(
            edges=self._edges,
            leader=self._leader,
            queue=self.queue,
            refusals=self.refusals,
            limits=self.limits,
            recorder=self._recorder,
            tracer=self._tracer,
        )

    # What edges ask

    def acquire(self, edge: Edge, acquire: Acquire, now: float) -> None:
        """Answer a request for slots with Granted for each, or Queued or Rejected for the rest.

        A generation that waits already keeps its place. One that was granted a lease before has
        lost it, or the edge would not ask: that lease is voided, and its slot comes back by the
        worker. All that do not wait yet get a place together.
        """
        request_id = acquire.request_id
        places = self.queue.of_request(edge.edge_id, request_id)
        present = {each for waiting in places for each in waiting.generations}
        asked = dict.fromkeys(acquire.generations or (0,))
        generations = deque([each for each in asked if each not in present])
        if not generations:
            self._answers.queued(places[0])
            return
        for lease in self.leases.of_request(request_id):
            if lease.edge_id == edge.edge_id and lease.generation in asked:
                self.void(lease)
        waiting = self._waiting(edge, acquire, generations, now, begun=bool(places))
        refusal = self.limits.why_refused(acquire, now) or self._why_not(
            waiting, now, waits_already=bool(places)
        )
        if refusal is not None:
            self._reject(waiting, refusal, now)
            return
        self.limits.let_in(acquire, now)
        self._admit(waiting, now)

    def cancel(self, edge: Edge, request_id: str, now: float) -> None:
        """End the wait of a request without an answer; what was granted, its edge releases."""
        for waiting in self.queue.of_request(edge.edge_id, request_id):
            self.queue.remove(waiting)
            self._left(waiting, now, over=True)
            self._answers.cancelled(waiting, now)

    def release(self, edge: Edge, lease_id: str, now: float) -> None:
        """Take back a lease whose Start was never written; of a started one, doubt the edge."""
        lease = self._lease_of(edge, lease_id)
        if lease is None:
            return
        if self.leases.release(lease):
            self._left(lease, now, over=True)
            self._refill(lease.instance_id, now)
        else:
            self.void(lease)

    def lost(self, edge: Edge, lease_id: str, now: float, *, refused: bool = False) -> None:
        """Void a lease whose Start was written and that its edge has lost.

        Args:
            edge: whose.
            lease_id: of which.
            now: monotonic seconds.
            refused: by its worker; else the Attach broke, and the worker has failed it.
        """
        if lease := self._lease_of(edge, lease_id):
            self.void(lease, started=True)
            if not refused:
                self.failed(lease.instance_id, lease_id, now)

    def failed(self, instance_id: str, lease_id: str, now: float) -> None:
        """Note that a worker has failed a request by a fault of its own."""
        worker = self._fleet.instance(instance_id)
        if worker is not None and self._fleet.failed(worker, lease_id, now):
            self._recorder.failing(worker.model)
            # If all of a model have failed by now, those that wait may use them all again.
            self.fill(worker.model, now)

    def withdraw(self, edge_id: str, now: float) -> None:
        """Forget what waits for an edge whose session has ended: it asks again when it is back."""
        for waiting in self.queue.of_edge(edge_id):
            self.queue.remove(waiting)
            self._left(waiting, now)

    def give_up(self, edge_id: str, request_id: str, now: float) -> None:
        """Refuse a request that a fault of ours keeps from being served, and leave nothing of it.

        What it was granted and was not seen to run is in doubt: its edge may never have been told.
        """
        self._answers.failed(edge_id, request_id)
        places = self.queue.of_request(edge_id, request_id)
        for waiting in places:
            self.queue.remove(waiting)
        leases = self.leases.of_request(request_id)
        for lease in leases:
            if lease.edge_id == edge_id and lease.state is LeaseState.GRANTED:
                self.void(lease)
        served = any(waiting.resume for waiting in places)
        last = not any(map(self._counts, leases))
        self.limits.left(request_id, now, over=not served, last=last)

    # What workers say

    def freed(self, worker: Worker, lease_id: str, usage: Usage | None, now: float) -> None:
        """Take back a lease that does not run and never can, and give its slot to who waits.

        Args:
            worker: who says so.
            lease_id: of which.
            usage: of the generation; None when it never ran.
            now: monotonic seconds.
        """
        lease = self.leases.get(lease_id)
        if lease is None or lease.instance_id != worker.instance_id:
            return
        try:
            self._learn(worker, lease, usage, now)
        except Exception:
            # It is freed all the same: its worker does not say so again.
            log.exception("usage_not_taken", request_id=lease.request_id, lease_id=lease_id)
        self.leases.free(worker.instance_id, lease_id)
        self._left(lease, now)
        self.fill(worker.model, now)

    def void(self, lease: Lease, *, started: bool = False) -> None:
        """Doubt a lease: its worker is asked to see to it, now or when it is back."""
        self.leases.void(lease, started=started)
        if worker := self._fleet.instance(lease.instance_id):
            worker.send(WorkerCommand(void=Void(lease_id=lease.lease_id)))

    def hold(self, instance_id: str, now: float) -> None:
        """Count what a worker process runs that has come, or come back."""
        for lease in self.leases.of_instance(instance_id):
            try:
                self.limits.hold(lease, now)
            except Exception:
                # It runs, and holds its slot, whatever it counts for.
                log.exception("limits_failed", request_id=lease.request_id)

    def worker_gone(self, worker: Worker, now: float) -> None:
        """Let the leases of a worker that is gone hold its slots, and nobody wait for it."""
        for lease in self.leases.of_instance(worker.instance_id):
            self._left(lease, now)
        self.review(worker.model, now)
        self.fill(worker.model, now)

    def end_instance(self, instance_id: str, now: float) -> int:
        """End all leases of a worker process that is no more; returns how many there were."""
        self.placement.end_instance(instance_id)
        ended = self.leases.end_instance(instance_id)
        for lease in ended:
            self._left(lease, now)
        return len(ended)

    # What follows

    def fill(self, model: str, now: float) -> None:
        """Give free slots of a model to those who wait; never raises, since it comes last."""
        try:
            while (
                self.queue.line(model)
                and self._fleet.roster(model).has_free_slot(now)
                and self._serve_next(model, now)
            ):
                pass
        except Exception:
            log.exception("fill_failed", model=model)

    def reopen(self, now: float) -> None:
        """Let those who wait try workers that have failed, when their time has come."""
        for model in self._fleet.reopened(now):
            self.fill(model, now)

    def review(self, model: str, now: float) -> None:
        """Refuse what waits in vain, when a worker of a model has gone or takes nothing more.

        A worker that is gone has been waited for; a request that waits for it any longer would
        only learn later what a newcomer learns at once.
        """
        for waiting in tuple(self.queue.line(model)):
            try:
                if self.queue.has(waiting) and (reason := self.refusals.why_hopeless(waiting)):
                    self.queue.remove(waiting)
                    self._reject(waiting, reason, now)
            except Exception:
                log.exception("review_failed", request_id=waiting.request_id)
                self.give_up(waiting.edge_id, waiting.request_id, now)

    def settle(self, now: float) -> None:
        """End the first seconds after the start: what is missing now is missing."""
        self.refusals.complete = True
        do_all(partial(self.review, model, now) for model in self.queue.models())

    def expire(self, now: float) -> None:
        """Refuse what has waited as long as it may."""
        for waiting in self.queue.expired(now):
            self._reject(waiting, None, now)

    def _why_not(
        self, waiting: Waiting, now: float, *, waits_already: bool
    ) -> ErrorReason.ValueType | None:
        """Return why a newcomer finds neither slots for all it asks for nor a place to wait."""
        wanted = len(waiting.generations)
        roster = self._fleet.roster(waiting.model)
        free = roster.free_slots(self._fleet.barred(waiting.excluded), now)
        if free >= wanted:
            return None
        return self.refusals.why_not_wait(waiting, now, admitted=free > 0 or waits_already)

    def _admit(self, waiting: Waiting, now: float) -> None:
        """Give a newcomer what is free, and let it wait for the rest."""
        wanted = len(waiting.generations)
        while waiting.generations and (worker := self._choose(waiting, now)):
            self.queue.charge(waiting)
            self._grant(waiting, waiting.generations.popleft(), worker, now)
        if not waiting.generations:
            return
        if len(waiting.generations) < wanted and not waiting.resume:
            self.queue.add_begun(waiting, now)
        else:
            self._make_way(waiting, now)
            self.queue.add(waiting)
        self._answers.queued(waiting)

    def _make_way(self, waiting: Waiting, now: float) -> None:
        """Refuse who has to leave a full queue, with all that waits of the same request."""
        if loser := self.refusals.who_makes_way(waiting):
            for place in self.queue.of_request(loser.edge_id, loser.request_id):
                self.queue.remove(place)
                self._reject(place, ErrorReason.ERROR_REASON_QUEUE_FULL, now)

    def _serve_next(self, model: str, now: float) -> bool:
        """Give whoever is first a slot, of those who may be where one is free, or whom it suits.

        Returns:
            False if nobody may.
        """
        line = self.queue.line(model)
        for head in line.heads():
            waiting = head
            try:
                if worker := self._choose(head, now):
                    waiting = line.suited(head, partial(self.placement.loss, worker))
                    self._grant(waiting, self.queue.take(waiting, now), worker, now)
                    return True
            except Exception:
                log.exception("grant_failed", request_id=waiting.request_id)
                self.give_up(waiting.edge_id, waiting.request_id, now)
                return True
        return False

    def _learn(self, worker: Worker, lease: Lease, usage: Usage | None, now: float) -> None:
        """Take note of what a lease was for, before it ends."""
        if lease.request_id:
            self._usage_log.add(lease.request_id, lease.generation, worker.worker_id, usage, now)
        if usage is not None:
            self.limits.use(lease, usage, now)
            self._recorder.used(worker.model, usage.prompt_tokens, usage.cached_tokens)
        self.placement.ran(lease, usage, now)
        self.refusals.freed(worker.model, now)

    def _waiting(
        self, edge: Edge, acquire: Acquire, generations: deque[int], now: float, *, begun: bool
    ) -> Waiting:
        arrived_at = now - acquire.waited_ms / 1000
        return Waiting(
            edge_id=edge.edge_id,
            request_id=acquire.request_id,
            generations=generations,
            account_id=acquire.account_id,
            model=acquire.model,
            excluded=frozenset(acquire.excluded_worker_ids),
            front=acquire.front,
            arrived_at=arrived_at,
            deadline=arrived_at + acquire.queue_timeout_ms / 1000,
            number=self.queue.next_number(),
            asked_at=now,
            key_id=acquire.key_id,
            choices=acquire.choices,
            prompt=Prompt.of(acquire),
            tokens=max(1, acquire.token_estimate // max(1, len(set(acquire.generations)))),
            resume=acquire.resume,
            begun=begun,
            traceparent=acquire.traceparent,
        )

    def _choose(self, waiting: Waiting, now: float) -> Worker | None:
        excluded = self._fleet.barred(waiting.excluded)
        return self.placement.choose(waiting.model, waiting.prompt, excluded, now)

    def _grant(self, waiting: Waiting, generation: int, worker: Worker, now: float) -> None:
        lease = Lease(
            lease_id=self._new_id(),
            instance_id=worker.instance_id,
            held_since=now,
            request_id=waiting.request_id,
            generation=generation,
            account_id=waiting.account_id,
            key_id=waiting.key_id,
            choices=waiting.choices,
            edge_id=waiting.edge_id,
        )
        try:
            self.placement.granted(worker, lease.lease_id, waiting.prompt, now)
            self.leases.grant(lease, slots=worker.slots)
        except Exception:
            self.placement.not_granted(worker, lease.lease_id)
            raise
        self._answers.granted(waiting, lease, worker, now)

    def _reject(
        self, waiting: Waiting, refusal: Reached | ErrorReason.ValueType | None, now: float
    ) -> None:
        """Refuse what waits no longer; None: since it has waited as long as it may."""
        try:
            self._left(waiting, now, over=True)
            if refusal is None:
                refusal = self.refusals.why_expired(waiting)
            self._answers.rejected(waiting, refusal, now)
        except Exception:
            log.exception("refusal_failed", request_id=waiting.request_id)
            self._answers.failed(waiting.edge_id, waiting.request_id)

    def _left(self, part: Waiting | Lease, now: float, *, over: bool = False) -> None:
        """Tell the limits that a part of a request waits no longer, or holds no slot any more.

        Args:
            part: what it was.
            now: monotonic seconds.
            over: nothing of it runs, and its edge does not ask for it again.
        """
        last = not (
            self.queue.of_request(part.edge_id, part.request_id)
            or any(map(self._counts, self.leases.of_request(part.request_id)))
        )
        # What ran before has been served in part, also if no worker goes on with it.
        over = over and not (isinstance(part, Waiting) and part.resume)
        try:
            self.limits.left(part.request_id, now, over=over, last=last)
        except Exception:
            # Its slot, or its place, is free all the same, and somebody may wait for it.
            log.exception("limits_failed", request_id=part.request_id)

    def _counts(self, lease: Lease) -> bool:
        """Tell whether a lease holds more than the slot of a worker that is gone."""
        worker = self._fleet.instance(lease.instance_id)
        return worker is not None and not worker.gone

    def _lease_of(self, edge: Edge, lease_id: str) -> Lease | None:
        lease = self.leases.get(lease_id)
        return lease if lease is not None and lease.edge_id == edge.edge_id else None

    def _refill(self, instance_id: str, now: float) -> None:
        if worker := self._fleet.instance(instance_id):
            self.fill(worker.model, now)
