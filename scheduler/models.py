"""Which models were ever served, which of them can be now, and when edges are told."""

from collections.abc import Iterable

from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.scheduler_pb2 import EdgeReply, ModelList, ModelState
from fastrun.v1.worker_pb2 import ModelCard
from scheduler.admission import Admission
from scheduler.edges import Edge, Edges
from scheduler.fleet import Fleet
from scheduler.leader import Leadership


class Models:
    """The models of a fleet, as edges and operators see them."""

    def __init__(
        self, *, fleet: Fleet, edges: Edges, admission: Admission, leader: Leadership
    ) -> None:
        self._fleet = fleet
        self._edges = edges
        self._admission = admission
        self._leader = leader
        self._told = ModelList()

    def listed(self) -> ModelList:
        """Return all models that were ever served, and which of them can be now."""
        states = [
            ModelState(card=card, ready=self._fleet.ready(model))
            for model, card in sorted(self._fleet.cards.items())
        ]
        return ModelList(models=states, complete=self._admission.refusals.complete)

    def know(self, cards: Iterable[ModelCard]) -> None:
        """Learn which models were ever served; what workers say that are there goes before."""
        served = (worker.card for worker in self._fleet.workers() if not worker.gone)
        self._fleet.cards = {card.model: card for card in (*cards, *served)}
        self.changed()

    def check_forgettable(self, model: str) -> None:
        """Make sure that a model may be forgotten.

        Raises:
            ServiceError: it is unknown, or a worker that is not gone serves it; or we stand by.
        """
        if not self._leader.leads:
            raise ServiceError(
                ErrorReason.ERROR_REASON_UNAVAILABLE,
                "this scheduler stands by: ask the one that leads",
            )
        if model not in self._fleet.cards:
            raise ServiceError(
                ErrorReason.ERROR_REASON_NOT_FOUND, f"model '{model[:200]}' is not known"
            )
        if self._is_served(model):
            raise ServiceError(
                ErrorReason.ERROR_REASON_CONFLICT,
                f"a worker serves '{model[:200]}': stop it first, and wait until it is gone",
            )

    def forget(self, model: str) -> None:
        """Forget a model, unless a worker serves it by now."""
        if not self._is_served(model):
            self._fleet.cards.pop(model, None)
            self.changed()

    def changed(self) -> None:
        """Tell all edges, if there is news."""
        models = self.listed()
        if models == self._told or not self._leader.leads:
            return
        self._told = models
        for edge in self._edges.connected():
            edge.send(EdgeReply(models=models))

    def begin_term(self) -> None:
        """A new term has begun, or ours has ended: each edge is told with its Welcome."""
        self._told = self.listed()

    def tell(self, edge: Edge) -> None:
        """Tell one edge."""
        edge.send(EdgeReply(models=self.listed()))

    def _is_served(self, model: str) -> bool:
        return any(worker.model == model and not worker.gone for worker in self._fleet.workers())
