"""Requests to one worker, as a tool sends them: each answer with what it took."""

from __future__ import annotations  # grpc's classes are generic in their stubs only

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from secrets import token_hex

import grpc.aio

from fastrun.service.errors import ServiceError
from fastrun.v1.generation_pb2 import (
    ChatMessage,
    FinishReason,
    GenerateEvent,
    GenerateRequest,
    ResponseFormat,
    Role,
    Sampling,
)
from fastrun.v1.worker_pb2 import GetInfoRequest, GetInfoResponse
from fastrun.v1.worker_pb2_grpc import WorkerServiceStub

INFO_LIMIT_S = 10.0
# A long prompt on a slow machine.
ANSWER_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One whole answer; times in seconds, by the caller's clock."""

    text: str
    reason: FinishReason.ValueType
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    received_tokens: int
    """How many token ids came; as many as completion_tokens, unless something is wrong."""
    first_token_s: float
    total_s: float


class Calls:
    """Calls to one worker.

    Args:
        channel: to the worker.
        clock: monotonic seconds.
    """

    def __init__(
        self, channel: grpc.aio.Channel, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stub = WorkerServiceStub(channel)
        self._clock = clock

    async def info(self) -> GetInfoResponse:
        """Ask what the worker is.

        Raises:
            AioRpcError: it does not answer.
        """
        return await self._stub.GetInfo(GetInfoRequest(), timeout=INFO_LIMIT_S)

    async def answer(self, request: GenerateRequest) -> Answer:
        """Run a request to its end.

        Raises:
            ServiceError: the worker refused or failed it.
            AioRpcError: the worker is gone, or the answer took ANSWER_LIMIT_S.
        """
        began = self._clock()
        first_token_s: float | None = None
        pieces: list[str] = []
        received = cached = 0
        async with aclosing(self.events(request)) as events:
            async for event in events:
                kind = event.WhichOneof("event")
                if kind == "delta":
                    if first_token_s is None:
                        first_token_s = self._clock() - began
                    pieces.append(event.delta.content)
                    received += len(event.delta.token_ids)
                    cached += event.delta.cached_tokens
                elif kind == "finished":
                    total_s = self._clock() - began
                    return Answer(
                        text="".join(pieces),
                        reason=event.finished.reason,
                        prompt_tokens=event.finished.usage.prompt_tokens,
                        cached_tokens=cached,
                        completion_tokens=event.finished.usage.completion_tokens,
                        received_tokens=received,
                        first_token_s=total_s if first_token_s is None else first_token_s,
                        total_s=total_s,
                    )
        raise AssertionError("a worker ends each answer with Finished or Failed")

    async def events(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """Run a request; closing it before its end aborts it.

        Raises:
            ServiceError: the worker refused or failed it.
            AioRpcError: the worker is gone, or the answer took ANSWER_LIMIT_S.
        """
        call = self._stub.Generate(request, timeout=ANSWER_LIMIT_S)
        try:
            async for event in call:
                if event.WhichOneof("event") == "failed":
                    raise ServiceError.of(event.failed.error)
                yield event
        finally:
            call.cancel()


def ask(
    model: str, text: str, *, max_tokens: int, salt: str, json_schema: str = ""
) -> GenerateRequest:
    """Make a greedy request with one message.

    Args:
        model: as the worker names it.
        text: what the user says.
        max_tokens: of the answer.
        salt: prompts of equal salts may share what is cached.
        json_schema: that the answer is held to; empty: none.
    """
    request = GenerateRequest(
        request_id=f"smoke-{token_hex(8)}",
        model=model,
        messages=[ChatMessage(role=Role.ROLE_USER, content=text)],
        sampling=Sampling(max_tokens=max_tokens, temperature=0),
        cache_salt=salt,
    )
    if json_schema:
        request.response_format.CopyFrom(ResponseFormat(json_schema=json_schema))
    return request
