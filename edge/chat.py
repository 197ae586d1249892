"""POST /v1/chat/completions, from the key to the last event: the whole story on one page."""

from aiohttp import web

from edge import generate_request
from edge.authentication import Authenticator
from edge.exchange import Exchange
from edge.formats import ChatFormat
from edge.request_rules import decode_chat
from edge.serving import Serving


class ChatCompletions:
    """Serves chat completions."""

    def __init__(self, authenticator: Authenticator, serving: Serving) -> None:
        self._authenticator = authenticator
        self._serving = serving

    async def __call__(self, exchange: Exchange) -> web.StreamResponse:
        """Answer one request.

        Raises:
            Refusal: what the client is told instead.
        """
        # Whose key is it, and may it call?
        caller = await self._authenticator.caller(exchange.request.headers)
        exchange.facts.update(account_id=caller.account_id, key_id=caller.key_id)
        # Reads the body; refuses all that can be refused without a worker.
        chat = await self._serving.read(exchange, caller, decode_chat)
        # What workers are asked: n generations of the same conversation.
        batch = await self._serving.batch(
            exchange, chat, generate_request.of_chat, cache_salt=caller.cache_salt
        )
        # Promises a usage record, if a worker accepts it.
        job = self._serving.job(caller, batch, exchange)
        # What the client gets: events as they come, or one document at the end.
        form = ChatFormat(exchange.request_id, chat)
        reply = self._serving.reply(exchange, chat, form, batch.size)
        # Acquires slots, starts on their workers, retries before the first delta, tells the end.
        return await self._serving.run(job, reply)
