"""POST /v1/chat/completions, from the key to the last event: the whole story on one page."""

import asyncio
import functools
import random
from collections.abc import Callable

from aiohttp import web

from edge import generate_request
from edge.authentication import Authenticator
from edge.catalogue import Catalogue
from edge.config import Config
from edge.errors import invalid, unknown_model
from edge.exchange import Exchange
from edge.generation import Generations, Job
from edge.metrics import Metrics
from edge.openai_schema import ChatCompletionRequest, decode_chat
from edge.reply import CollectedReply, Reply, StreamedReply
from edge.request_body import read_body
from edge.sse import ChatEvents, Identity
from edge.stream_writer import ClientStream, PushStream, ResponseStream

# Parsing more than this holds up the streams of others: it goes to a thread.
INLINE_BYTES = 256 << 10
MODEL_NAME_LENGTH = 200
STREAMS: dict[str, type[PushStream | ResponseStream]] = {
    "push": PushStream,
    "response": ResponseStream,
}


class ChatCompletions:
    """Serves chat completions."""

    def __init__(
        self,
        config: Config,
        *,
        authenticator: Authenticator,
        catalogue: Catalogue,
        generations: Generations,
        metrics: Metrics,
        seeds: random.Random,
    ) -> None:
        self._config = config
        self._authenticator = authenticator
        self._catalogue = catalogue
        self._generations = generations
        self._metrics = metrics
        self._seeds = seeds

    async def __call__(self, exchange: Exchange) -> web.StreamResponse:
        """Answer one request.

        Raises:
            Refusal: what the client is told instead.
        """
        caller = await self._authenticator.caller(exchange.request.headers)
        exchange.facts.update(account_id=caller.account_id, key_id=caller.key_id)
        chat = await self._validate(exchange)
        request = generate_request.of_chat(
            chat,
            request_id=exchange.request_id,
            cache_salt=caller.cache_salt,
            seed=self._seeds.getrandbits(31),
        )
        reply = self._reply(exchange, chat)
        try:
            # Acquires a slot, starts on its worker, retries before the first delta; a client that
            # leaves cancels this call, and with it whatever it waits for or runs.
            job = Job(caller.account_id, request, exchange.facts)
            finished = await self._generations.run(job, reply)
            self._metrics.used(finished.usage)
            exchange.facts.update(
                prompt_tokens=finished.usage.prompt_tokens,
                cached_tokens=finished.usage.cached_tokens,
                completion_tokens=finished.usage.completion_tokens,
            )
            return await reply.finish(finished)
        except Exception as error:  # noqa: BLE001 - told as a status or, in mid-stream, an event
            return await reply.fail(exchange.failed(error))
        finally:
            reply.release()

    async def _validate(self, exchange: Exchange) -> ChatCompletionRequest:
        """Read the body and refuse all that can be refused without a worker."""
        config = self._config
        body = await read_body(
            exchange.request,
            limit_bytes=config.body_limit_bytes,
            timeout_s=config.body_timeout_s,
        )
        decode = functools.partial(decode_chat, body, depth_limit=config.json_depth_limit)
        chat = decode() if len(body) <= INLINE_BYTES else await asyncio.to_thread(decode)
        exchange.facts.update(model=chat.model[:MODEL_NAME_LENGTH], stream=bool(chat.stream))
        if self._catalogue.surely_lacks(chat.model):
            raise unknown_model(chat.model)
        card = self._catalogue.card(chat.model)
        # A body is never shorter than the texts in it, so most need no closer look.
        longest = card.context_length * card.longest_token_bytes if card else 0
        if card and 0 < longest < len(body) and longest < chat.text_bytes():
            raise invalid(f"the prompt is over the context window of {card.context_length} tokens")
        return chat

    def _reply(self, exchange: Exchange, chat: ChatCompletionRequest) -> Reply:
        identity = Identity.now(exchange.request_id, chat.model)
        if not chat.stream:
            return CollectedReply(exchange, identity)

        def make_stream(on_writable: Callable[[], None]) -> ClientStream:
            kind = STREAMS[self._config.stream_writer]
            return kind(exchange.request, exchange.headers, on_writable)

        return StreamedReply(
            exchange,
            make_stream,
            ChatEvents(identity, include_usage=chat.include_usage),
            gathered_limit_bytes=self._config.gathered_limit_bytes,
        )
