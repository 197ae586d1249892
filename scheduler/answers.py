"""What edges are told: which slot they have, how long they wait, or why they get none."""

from collections.abc import Mapping

from fastrun.service import leases as signed
from fastrun.service.errors import reason_name
from fastrun.service.tracing import Tracer
from fastrun.v1.error_pb2 import ErrorDetail, ErrorReason
from fastrun.v1.scheduler_pb2 import EdgeReply, LeaseClaims, Queued, Rejected
from scheduler.edges import Edges
from scheduler.fleet import Worker
from scheduler.leader import Leadership
from scheduler.leases import Lease
from scheduler.limits import Limits
from scheduler.meters import Reached
from scheduler.ports import Recorder
from scheduler.queue import Queue
from scheduler.refusals import Refusals
from scheduler.waiting import Waiting


class Answers:
    """Answers to Acquires; times are monotonic seconds."""

    def __init__(
        self,
        *,
        edges: Edges,
        leader: Leadership,
        queue: Queue,
        refusals: Refusals,
        limits: Limits,
        recorder: Recorder,
        tracer: Tracer,
    ) -> None:
        self._edges = edges
        self._leader = leader
        self._queue = queue
        self._refusals = refusals
        self._limits = limits
        self._recorder = recorder
        self._tracer = tracer

    def granted(self, waiting: Waiting, lease: Lease, worker: Worker, now: float) -> None:
        """Hand out a lease."""
        self._recorder.granted(waiting.model, now - waiting.asked_at)
        self._trace(waiting, now, {"generation": lease.generation, "worker_id": worker.worker_id})
        # Filled in where it stands: a message that is put into another one is copied.
        reply = EdgeReply()
        granted = reply.granted
        granted.request_id = lease.request_id
        granted.lease_id = lease.lease_id
        granted.lease = signed.sign(self._claims(lease), self._leader.lease_key)
        granted.worker_id = worker.worker_id
        granted.instance_id = worker.instance_id
        granted.address = worker.address
        granted.generation = lease.generation
        self._limits.tell(granted.rate_limit, waiting.account_id, waiting.key_id, now)
        self._send(waiting.edge_id, reply)

    def rejected(
        self, waiting: Waiting, refusal: Reached | ErrorReason.ValueType, now: float
    ) -> None:
        """Refuse all that waits at a place: for a limit, or for want of room in the fleet."""
        error = self._detail(waiting, refusal, now)
        self._recorder.rejected(error.reason)
        self._trace(waiting, now, {"refusal": reason_name(error.reason)})
        rejected = Rejected(
            request_id=waiting.request_id, error=error, generations=waiting.generations
        )
        self._limits.tell(rejected.rate_limit, waiting.account_id, waiting.key_id, now)
        self._send(waiting.edge_id, EdgeReply(rejected=rejected))

    def failed(self, edge_id: str, request_id: str) -> None:
        """Refuse all that still waits of a request, because of a fault of ours."""
        error = ErrorDetail(
            reason=ErrorReason.ERROR_REASON_INTERNAL,
            message="internal error of the scheduler, see its logs",
        )
        # Without generations it is about all that wait.
        rejected = Rejected(request_id=request_id, error=error)
        self._send(edge_id, EdgeReply(rejected=rejected))
        self._recorder.rejected(error.reason)

    def cancelled(self, waiting: Waiting, now: float) -> None:
        """Nobody wants an answer any more."""
        self._trace(waiting, now, {"refusal": "cancelled"})

    def queued(self, waiting: Waiting) -> None:
        """Tell how near a request is to its next slot, at whichever of its places that is."""
        places = self._queue.of_request(waiting.edge_id, waiting.request_id)
        position = min(self._queue.line(each.model).position(each) for each in places)
        queued = Queued(request_id=waiting.request_id, position=position)
        self._send(waiting.edge_id, EdgeReply(queued=queued))

    def _trace(self, waiting: Waiting, now: float, facts: Mapping[str, object]) -> None:
        """Tell how long it waited here, and for what."""
        if not waiting.traceparent:
            return
        span = self._tracer.begin(waiting.traceparent, waiting.asked_at)
        facts = {"request_id": waiting.request_id, "model": waiting.model, **facts}
        self._tracer.end(span, "queue", now, facts)

    def _claims(self, lease: Lease) -> LeaseClaims:
        return LeaseClaims(
            lease_id=lease.lease_id,
            request_id=lease.request_id,
            account_id=lease.account_id,
            instance_id=lease.instance_id,
            edge_id=lease.edge_id,
            term=self._leader.term,
            generation=lease.generation,
            key_id=lease.key_id,
            choices=lease.choices,
        )

    def _detail(
        self, waiting: Waiting, refusal: Reached | ErrorReason.ValueType, now: float
    ) -> ErrorDetail:
        if isinstance(refusal, Reached):
            return refusal.detail()
        return self._refusals.detail(refusal, waiting, now)

    def _send(self, edge_id: str, reply: EdgeReply) -> None:
        if edge := self._edges.get(edge_id):
            edge.send(reply)
