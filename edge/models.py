"""GET /v1/models and /v1/models/{id}: the models that can serve a request of this key now."""

from aiohttp import web
from msgspec import UNSET

from edge.authentication import Authenticator
from edge.errors import NO_SCHEDULER, Refusal, unknown_model
from edge.exchange import Exchange
from edge.openai_replies import Model, ModelList, encode
from edge.openai_schema import MOST_TOKENS, ChatCompletionRequest
from edge.scheduler_link import SchedulerLink
from fastrun.v1.worker_pb2 import ModelCard

OWNER = "fastrun"

# What a request may only say to a model with this feature.
_OF_FEATURE = {
    "tools": {"tools", "tool_choice", "parallel_tool_calls"},
    "structured_output": {"response_format"},
    "reasoning": {"reasoning_effort"},
    "logprobs": {"logprobs", "top_logprobs"},
}
_REQUIRED = {"model", "messages"}


class Models:
    """Serves the list and its items."""

    def __init__(self, authenticator: Authenticator, scheduler: SchedulerLink) -> None:
        self._authenticator = authenticator
        self._scheduler = scheduler

    async def every(self, exchange: Exchange) -> web.StreamResponse:
        """Answer with all models."""
        cards = await self._serving(exchange)
        return exchange.json(
            encode(ModelList(object="list", data=[_model(card) for card in cards]))
        )

    async def one(self, exchange: Exchange) -> web.StreamResponse:
        """Answer with one model; its id may hold slashes, as they are or percent-encoded."""
        model = exchange.request.path.partition("/models/")[2].strip("/")
        for card in await self._serving(exchange):
            if card.model == model:
                return exchange.json(encode(_model(card)))
        raise unknown_model(model)

    async def _serving(self, exchange: Exchange) -> list[ModelCard]:
        caller = await self._authenticator.caller(exchange.request.headers)
        if not self._scheduler.connected:
            raise Refusal(503, NO_SCHEDULER, reason="no_scheduler")
        cards = self._scheduler.catalogue.serving()
        return [card for card in cards if caller.may_use(card.model)]


def _model(card: ModelCard) -> Model:
    return Model(
        id=card.model,
        object="model",
        created=card.created,
        owned_by=OWNER,
        context_length=card.context_length,
        max_output_tokens=min(card.context_length, MOST_TOKENS),
        features=list(card.features),
        supported_parameters=_parameters(card),
        name=card.name or UNSET,
        hugging_face_id=card.hugging_face_id or UNSET,
        quantization=card.quantization or UNSET,
    )


def _parameters(card: ModelCard) -> list[str]:
    # A feature may say more after a colon, such as `reasoning: always`.
    features = {feature.partition(":")[0] for feature in card.features}
    lacking = [names for feature, names in _OF_FEATURE.items() if feature not in features]
    known = set(ChatCompletionRequest.__struct_fields__)
    return sorted(known.difference(_REQUIRED, *lacking))
