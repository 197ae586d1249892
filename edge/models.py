"""GET /v1/models and /v1/models/{id}: the models that can serve a request right now."""

from typing import Any

import orjson
from aiohttp import web

from edge.authentication import Authenticator
from edge.errors import NO_SCHEDULER, Refusal, unknown_model
from edge.exchange import Exchange
from edge.scheduler_link import SchedulerLink
from fastrun.v1.worker_pb2 import ModelCard

OWNER = "fastrun"


class Models:
    """Serves the list and its items."""

    def __init__(self, authenticator: Authenticator, scheduler: SchedulerLink) -> None:
        self._authenticator = authenticator
        self._scheduler = scheduler

    async def every(self, exchange: Exchange) -> web.StreamResponse:
        """Answer with all models."""
        cards = await self._serving(exchange)
        return exchange.json(
            orjson.dumps({"object": "list", "data": [_model(card) for card in cards]})
        )

    async def one(self, exchange: Exchange) -> web.StreamResponse:
        """Answer with one model; its id may hold slashes."""
        model = exchange.request.path.partition("/models/")[2]
        for card in await self._serving(exchange):
            if card.model == model:
                return exchange.json(orjson.dumps(_model(card)))
        raise unknown_model(model)

    async def _serving(self, exchange: Exchange) -> list[ModelCard]:
        await self._authenticator.caller(exchange.request.headers)
        if not self._scheduler.connected:
            raise Refusal(503, NO_SCHEDULER)
        return self._scheduler.catalogue.serving()


def _model(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.model,
        "object": "model",
        "created": card.created,
        "owned_by": OWNER,
        "context_length": card.context_length,
    }
