"""Which leases hold which slots: a state machine without clock or I/O.

A lease is granted, then running once its worker lists it, and voiding when in doubt. It ends by

- release() by its edge, if its Start was never written;
- free(), which is the worker's word that it does not run and never can;
- end_instance(), when the worker process it was granted on is known to be no more.

and by nothing else: above all not because time has passed. The last is also done when a worker has
been gone for an hour and is forgotten: its process may live, but a gone worker is granted nothing,
and when it comes back its Hello brings along all that it still runs.
"""

import enum
from collections import OrderedDict
from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from typing import Protocol

import msgspec

from fastrun.v1.scheduler_pb2 import LeaseClaims

FREED_REMEMBERED = 100_000


class LeaseState(enum.Enum):
    """Where a lease is in its life."""

    GRANTED = "granted"
    RUNNING = "running"
    VOIDING = "voiding"


class NoSlotError(Exception):
    """Every slot of the instance is held."""


class Lease(msgspec.Struct, eq=False, kw_only=True):
    """One held slot."""

    lease_id: str
    instance_id: str
    held_since: float
    """Monotonic seconds."""
    request_id: str = ""
    generation: int = 0
    """Of the request."""
    account_id: str = ""
    key_id: str = ""
    choices: int = 0
    """So many generations of the request in a row have the same prompt."""
    edge_id: str = ""
    state: LeaseState = LeaseState.GRANTED
    started: bool = False
    """The worker or the edge has said that its Start was written."""

    @classmethod
    def running(cls, claims: LeaseClaims, now: float) -> "Lease":
        """Read what a worker runs."""
        return cls(
            lease_id=claims.lease_id,
            instance_id=claims.instance_id,
            held_since=now,
            request_id=claims.request_id,
            generation=claims.generation,
            account_id=claims.account_id,
            key_id=claims.key_id,
            choices=claims.choices,
            edge_id=claims.edge_id,
            state=LeaseState.RUNNING,
            started=True,
        )


class _Index:
    """Leases by an id that they have in common; empty groups take no memory."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Lease]] = {}

    def at(self, key: str) -> dict[str, Lease]:
        return self._groups.get(key, {})

    def add(self, key: str, lease: Lease) -> None:
        group = self._groups.get(key)
        if group is None:
            self._groups[key] = {lease.lease_id: lease}
        else:
            group[lease.lease_id] = lease

    def remove(self, key: str, lease: Lease) -> None:
        group = self._groups[key]
        del group[lease.lease_id]
        if not group:
            del self._groups[key]


class Watcher(Protocol):
    """Wants to know of each slot that is held or free again."""

    def lease_held(self, lease: Lease) -> None:
        """A slot is held."""

    def lease_ended(self, lease: Lease) -> None:
        """A slot is free again."""


class LeaseBook:
    """All leases held, counted exactly."""

    def __init__(self, watcher: Watcher | None = None) -> None:
        self._watcher = watcher
        self._leases: dict[str, Lease] = {}
        self._by_instance = _Index()
        self._by_edge = _Index()
        self._by_request = _Index()
        # What a worker has freed never runs again: a listing that says so is out of date.
        self._freed: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._leases)

    def get(self, lease_id: str) -> Lease | None:
        """Return a lease that is held."""
        return self._leases.get(lease_id)

    def held(self, instance_id: str) -> int:
        """Return how many slots of an instance are held."""
        return len(self._by_instance.at(instance_id))

    def of_instance(self, instance_id: str) -> list[Lease]:
        """Return the leases that hold slots of an instance."""
        return list(self._by_instance.at(instance_id).values())

    def of_edge(self, edge_id: str) -> list[Lease]:
        """Return the leases granted to an edge."""
        return list(self._by_edge.at(edge_id).values())

    def of_request(self, request_id: str) -> list[Lease]:
        """Return the leases of all generations of a request."""
        return list(self._by_request.at(request_id).values())

    def grant(self, lease: Lease, *, slots: int) -> None:
        """Hold one more of an instance's slots.

        Raises:
            NoSlotError: all are held.
        """
        if self.held(lease.instance_id) >= slots:
            raise NoSlotError(lease.instance_id)
        self._add(lease)

    def restore(self, claims: LeaseClaims, *, now: float) -> Lease | None:
        """Book a lease that its worker says is running.

        Returns:
            The lease, or None if the worker has freed it before.
        """
        if claims.lease_id in self._freed:
            return None
        lease = self._leases.get(claims.lease_id)
        if lease is None:
            lease = Lease.running(claims, now)
            self._add(lease)
        else:
            self._run(lease)
        return lease

    def strays(self, instance_id: str, listed: Iterable[str]) -> list[str]:
        """Return the ids among those listed that run without being booked."""
        booked = self._by_instance.at(instance_id)
        return [each for each in listed if each not in booked and each not in self._freed]

    def missing(self, instance_id: str, listed: AbstractSet[str]) -> list[Lease]:
        """Return the leases that ran, or are in doubt, and are not among those listed."""
        booked = self._by_instance.at(instance_id)
        missing = [booked[lease_id] for lease_id in booked.keys() - listed]
        return [lease for lease in missing if lease.state is not LeaseState.GRANTED]

    def run(self, instance_id: str, listed: Collection[str]) -> None:
        """Note that an instance lists these leases as running."""
        booked = self._by_instance.at(instance_id)
        for lease_id in listed:
            if lease := booked.get(lease_id):
                self._run(lease)

    def void(self, lease: Lease, *, started: bool = False) -> None:
        """Note that a lease is in doubt; its slot stays held until the worker frees it."""
        lease.state = LeaseState.VOIDING
        lease.started |= started

    def release(self, lease: Lease) -> bool:
        """End a lease whose edge says that its Start was never written.

        Returns:
            False if that cannot be: the lease has been seen running and stays held.
        """
        if lease.started:
            return False
        self._remove(lease)
        return True

    def free(self, instance_id: str, lease_id: str) -> Lease | None:
        """End a lease of which its worker says that it does not run and never can.

        Returns:
            The lease, or None if it was not held there.
        """
        lease = self._leases.get(lease_id)
        if lease is None or lease.instance_id != instance_id:
            return None
        self._remove(lease)
        self._freed[lease_id] = None
        if len(self._freed) > FREED_REMEMBERED:
            self._freed.popitem(last=False)
        return lease

    def end_instance(self, instance_id: str) -> list[Lease]:
        """End all leases of a worker process that is no more, and return them."""
        ended = self.of_instance(instance_id)
        for lease in ended:
            self._remove(lease)
        return ended

    def _run(self, lease: Lease) -> None:
        lease.started = True
        if lease.state is LeaseState.GRANTED:
            lease.state = LeaseState.RUNNING

    def _add(self, lease: Lease) -> None:
        self._leases[lease.lease_id] = lease
        self._by_instance.add(lease.instance_id, lease)
        self._by_edge.add(lease.edge_id, lease)
        self._by_request.add(lease.request_id, lease)
        if self._watcher is not None:
            self._watcher.lease_held(lease)

    def _remove(self, lease: Lease) -> None:
        del self._leases[lease.lease_id]
        self._by_instance.remove(lease.instance_id, lease)
        self._by_edge.remove(lease.edge_id, lease)
        self._by_request.remove(lease.request_id, lease)
        if self._watcher is not None:
            self._watcher.lease_ended(lease)
