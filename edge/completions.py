"""POST /v1/completions: raw texts to continue; the same story as edge/chat.py."""

from aiohttp import web

from edge import generate_request
from edge.authentication import Authenticator
from edge.exchange import Exchange
from edge.formats import CompletionFormat
from edge.request_rules import decode_completion
from edge.serving import Serving


class Completions:
    """Serves text completions."""

    def __init__(self, authenticator: Authenticator, serving: Serving) -> None:
        self._authenticator = authenticator
        self._serving = serving

    async def __call__(self, exchange: Exchange) -> web.StreamResponse:
        """Answer one request.

        Raises:
            Refusal: what the client is told instead.
        """
        caller = await self._authenticator.caller(exchange.request.headers)
        exchange.facts.update(account_id=caller.account_id, key_id=caller.key_id)
        completion = await self._serving.read(exchange, caller, decode_completion)
        # n generations of each prompt.
        batch = await self._serving.batch(
            exchange, completion, generate_request.of_completion, cache_salt=caller.cache_salt
        )
        job = self._serving.job(caller, batch, exchange)
        form = CompletionFormat(exchange.request_id, completion)
        reply = self._serving.reply(exchange, completion, form, batch.size)
        return await self._serving.run(job, reply)
