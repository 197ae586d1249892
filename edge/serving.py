"""What serving any request for text takes: reading, checking, running, telling."""

import asyncio
import random
import time
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

from aiohttp import web

from edge.caller import Caller
from edge.catalogue import Catalogue
from edge.config import Config
from edge.errors import invalid, unknown_model
from edge.exchange import OTHER_MODEL, Exchange
from edge.formats import Format
from edge.generate_request import Batch
from edge.generation import Generations, Job
from edge.large_bodies import LargeBodies
from edge.metering import Metering
from edge.metrics import Metrics
from edge.openai_schema import GenerationRequest
from edge.reply import CollectedReply, Reply, StreamedReply
from edge.request_body import read_body
from edge.running import Running
from edge.stream_writer import ClientStream, PushStream, ResponseStream
from edge.usage_lines import Open
from fastrun.v1.worker_pb2 import ModelCard

# Work on a larger body holds up the streams of others: it goes to a thread.
INLINE_BYTES = 64 << 10
STREAMS: dict[str, type[PushStream | ResponseStream]] = {
    "push": PushStream,
    "response": ResponseStream,
}

RequestT = TypeVar("RequestT", bound=GenerationRequest)
RequestT_co = TypeVar("RequestT_co", bound=GenerationRequest, covariant=True)
RequestT_contra = TypeVar("RequestT_contra", bound=GenerationRequest, contravariant=True)
ArgumentsT = ParamSpec("ArgumentsT")
ResultT = TypeVar("ResultT")


class Decoder(Protocol[RequestT_co]):
    """Turns a body into a request, or refuses it."""

    def __call__(self, body: bytes, *, depth_limit: int) -> RequestT_co:
        """Raises Refusal."""


class Builder(Protocol[RequestT_contra]):
    """Turns a request into what workers are asked."""

    def __call__(
        self, asked: RequestT_contra, /, *, request_id: str, cache_salt: str, seed: int
    ) -> Batch:
        """See edge.generate_request."""


class Serving:
    """What the endpoints that generate text have in common."""

    def __init__(
        self,
        config: Config,
        *,
        bodies: LargeBodies,
        catalogue: Catalogue,
        generations: Generations,
        metering: Metering,
        metrics: Metrics,
        running: Running,
        seeds: random.Random,
    ) -> None:
        self._config = config
        self._bodies = bodies
        self._catalogue = catalogue
        self._generations = generations
        self._metering = metering
        self._metrics = metrics
        self._running = running
        self._seeds = seeds

    async def read(self, exchange: Exchange, caller: Caller, decode: Decoder[RequestT]) -> RequestT:
        """Read the body and refuse all that can be refused without a worker.

        Raises:
            Refusal: what the client is told instead.
        """
        config = self._config
        held = self._bodies.body(caller.account_id)
        exchange.on_end = held.release
        body = await read_body(
            exchange.request,
            held,
            limit_bytes=config.body_limit_bytes,
            timeout_s=config.body_timeout_s,
        )
        exchange.body_bytes = len(body)
        asked = await _work(exchange, decode, body, depth_limit=config.json_depth_limit)
        exchange.facts["stream"] = bool(asked.stream)
        card = self._catalogue.card(asked.model)
        exchange.model = OTHER_MODEL
        if card:  # any other name is whatever a client wrote
            exchange.model = exchange.facts["model"] = asked.model
        if self._catalogue.surely_lacks(asked.model) or not caller.may_use(asked.model):
            raise unknown_model(asked.model)
        # A body is never shorter than the texts in it, so most need no closer look.
        if card and 0 < _longest_text_bytes(card) < len(body):
            await _work(exchange, _check_length, asked, card)
        return asked

    async def batch(
        self, exchange: Exchange, asked: RequestT, build: Builder[RequestT], *, cache_salt: str
    ) -> Batch:
        """Build what workers are asked; a client that sets no seed gets one."""
        return await _work(
            exchange,
            build,
            asked,
            request_id=exchange.request_id,
            cache_salt=cache_salt,
            seed=self._seeds.getrandbits(31),
        )

    def job(self, caller: Caller, batch: Batch, exchange: Exchange) -> Job:
        """Make what is to be run, metered.

        Raises:
            Refusal: what is used cannot be recorded.
        """
        request = Open(
            request_id=exchange.request_id,
            account_id=caller.account_id,
            key_id=caller.key_id,
            model=batch.common.model,
            started_at=time.time() - exchange.elapsed_s(),
            choices=batch.choices,
        )
        return Job(caller, batch, exchange, self._metering.meter(request))

    def reply(self, exchange: Exchange, asked: GenerationRequest, form: Format, size: int) -> Reply:
        """Make what answers the client: a stream or one document, with so many choices."""
        if not asked.stream:
            return CollectedReply(exchange, form, size)

        def make_stream(on_writable: Callable[[], None]) -> ClientStream:
            kind = STREAMS[self._config.stream_writer]
            return kind(exchange.request, lambda: exchange.headers, on_writable)

        limit = self._config.gathered_limit_bytes
        return StreamedReply(exchange, make_stream, form, size, gathered_limit_bytes=limit)

    async def run(self, job: Job, reply: Reply) -> web.StreamResponse:
        """Run the generations and tell the client how it went.

        A client that leaves cancels this call, and with it whatever it waits for or runs.
        """
        try:
            async with self._running.hold(job.caller, job.meter):
                ended = await self._generations.run(job, reply)
            usage = job.batch.usage([each.usage for each in ended])
            self._metrics.used(job.exchange.model, usage)
            return await reply.finish(usage)
        except Exception as error:  # noqa: BLE001 - told as a status or, in mid-stream, an event
            return await reply.fail(job.exchange.failed(error))
        finally:
            job.note_counts()
            reply.release()


async def _work(
    exchange: Exchange,
    work: Callable[ArgumentsT, ResultT],
    *args: ArgumentsT.args,
    **kwargs: ArgumentsT.kwargs,
) -> ResultT:
    """Do what takes the longer, the larger the body is."""
    if exchange.body_bytes <= INLINE_BYTES:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


def _longest_text_bytes(card: ModelCard) -> int:
    """Of what surely has more tokens than the context window; 0 when that is not known."""
    return card.context_length * card.longest_token_bytes


def _check_length(asked: GenerationRequest, card: ModelCard) -> None:
    if any(len(text.encode()) > _longest_text_bytes(card) for text in asked.texts()):
        raise invalid(f"the prompt is over the context window of {card.context_length} tokens")
