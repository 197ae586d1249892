"""Who may run here: the worker's own cap, and which leases it takes."""

from collections.abc import Sequence
from typing import TypeVar

from fastrun.service import leases
from fastrun.service.errors import ServiceError
from fastrun.service.leases import LeaseError
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import Usage
from fastrun.v1.scheduler_pb2 import SlotFreed

T = TypeVar("T")

# A lease counts only in its own term and instance, so that what is forgotten here could at worst be
# presented again by an edge that kept it over as many later ones; the cap holds even then.
ENDED_REMEMBERED = 100_000
VOIDED_REMEMBERED = 10_000


class RefusedError(ServiceError):
    """A Start is not taken.

    ``freed`` is set when its lease was a good one: it can never be used again.
    """

    def __init__(
        self, reason: ErrorReason.ValueType, message: str, *, freed: SlotFreed | None = None
    ) -> None:
        super().__init__(reason, message)
        self.freed = freed


class Slots:
    """A fixed number of slots, each held by one lease from admission until the engine let go."""

    def __init__(self, capacity: int, *, instance_id: str, standalone: bool = False) -> None:
        """Begin with all slots free.

        Args:
            capacity: how many requests run at once.
            instance_id: of this process; leases for another one are refused.
            standalone: take requests without leases.
        """
        self.capacity = capacity
        self.term = 0
        self.instance_id = instance_id
        self._standalone = standalone
        self._key: bytes | None = None
        self._running: dict[str, bytes] = {}
        self._ended: dict[str, SlotFreed] = {}
        self._voided: dict[str, None] = {}
        self._unleased = 0
        self._closed = False

    @property
    def in_use(self) -> int:
        """How many slots are held."""
        return len(self._running)

    @property
    def running_ids(self) -> Sequence[str]:
        """Ids of the leases that hold a slot."""
        return list(self._running)

    @property
    def running_leases(self) -> Sequence[bytes]:
        """Their blobs."""
        return list(self._running.values())

    @property
    def voided_ids(self) -> Sequence[str]:
        """Ids of the leases of this term that were voided before they could run."""
        return list(self._voided)

    def lead(self, term: int, key: bytes) -> bool:
        """Obey a scheduler that says it leads; False if a higher term is known.

        What runs under a lease of an older term goes on; what has not started never will.

        Args:
            term: from its Welcome; 0: it stands by.
            key: of the leases of that term.
        """
        if term < max(self.term, 1):
            return False
        if term > self.term:
            self._voided.clear()
        self.term, self._key = term, key
        return True

    def close(self) -> None:
        """Admit nothing from now on."""
        self._closed = True

    def admit(self, blob: bytes) -> str:
        """Take a slot for a lease.

        Returns:
            The lease's id, by which the slot is freed.

        Raises:
            RefusedError: the lease is not good here and now, or no slot is free.
        """
        lease_id = self._unleased_id() if self._standalone else self._checked(blob)
        if self._closed:
            raise RefusedError(
                ErrorReason.ERROR_REASON_DRAINING,
                "this worker is draining: ask for another one",
                freed=self.void(lease_id),
            )
        if len(self._running) >= self.capacity:
            raise RefusedError(
                ErrorReason.ERROR_REASON_NO_SLOT,
                f"all {self.capacity} slots of this worker are busy: try again",
                freed=self.void(lease_id),
            )
        self._running[lease_id] = blob
        return lease_id

    def free(self, lease_id: str, usage: Usage | None) -> SlotFreed:
        """Give a slot back; to be called once the engine holds nothing of the request any more.

        Args:
            lease_id: as admitted.
            usage: of the request; None if it never reached the engine.
        """
        blob = self._running.pop(lease_id)
        freed = SlotFreed(lease_id=lease_id, usage=usage)
        if usage is not None and not self._standalone:
            claims = leases.read(blob)
            freed.request_id, freed.generation = claims.request_id, claims.generation
        _remember(self._ended, lease_id, freed, ENDED_REMEMBERED)
        return freed

    def void(self, lease_id: str) -> SlotFreed | None:
        """Make sure that a lease never starts.

        One that runs is left alone: it is aborted when its Attach ends, and freed in any case.

        Returns:
            What to answer; None while it runs, since free() will make the answer.
        """
        if lease_id in self._running:
            return None
        if lease_id in self._ended:
            return self._ended[lease_id]
        _remember(self._voided, lease_id, None, VOIDED_REMEMBERED)
        return SlotFreed(lease_id=lease_id)

    def _checked(self, blob: bytes) -> str:
        if self._key is None:
            raise _refused("this worker has no scheduler yet")
        try:
            claims = leases.verify(blob, self._key)
        except LeaseError as error:
            raise _refused(str(error)) from error
        if claims.instance_id != self.instance_id:
            raise _refused("the lease is for another instance of this worker")
        if claims.term != self.term:
            raise _refused("the lease is of another term")
        if claims.lease_id in self._running or claims.lease_id in self._ended:
            raise _refused("the lease was used before")
        if claims.lease_id in self._voided:
            raise _refused("the lease was voided")
        return claims.lease_id

    def _unleased_id(self) -> str:
        self._unleased += 1
        return f"unleased-{self._unleased}"


def _refused(message: str) -> RefusedError:
    return RefusedError(ErrorReason.ERROR_REASON_LEASE_REFUSED, message)


def _remember(memory: dict[str, T], key: str, value: T, limit: int) -> None:
    """Add to a memory that forgets its oldest entry beyond the limit."""
    memory[key] = value
    if len(memory) > limit:
        del memory[next(iter(memory))]
