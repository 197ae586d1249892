"""What `fastrun worker smoke` looks at, one function for each of its lines."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from fastrun.cli.worker_calls import Answer, Calls, ask
from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import FinishReason, GenerateRequest
from fastrun.v1.worker_pb2 import GetInfoResponse

TOKENS = 64
GUIDED_TOKENS = 2048  # a model that thinks first is given room for it
FREED_LIMIT_S = 10.0
POLL_S = 0.01
# Long enough for any window of today to be cut into several steps, and read within the minute.
MOST_PROMPT_TOKENS = 32_768
SAMPLE_WORDS = 400
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
CITIES = ("Oslo", "Rome")
CITY = json.dumps(
    {
        "type": "object",
        "properties": {"city": {"enum": CITIES}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
)


class CheckError(Exception):
    """A check failed; the message says what was seen."""


class SkippedError(Exception):
    """A check does not apply; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The worker that is looked at."""

    calls: Calls
    info: GetInfoResponse
    salt: str
    """Of all its prompts: nothing that was cached before counts."""
    prompt_tokens: int | None = None
    """Of the long prompt; None: most of the window."""
    clock: Callable[[], float] = field(default=time.monotonic)

    def ask(self, text: str, max_tokens: int, **fields: Any) -> GenerateRequest:
        """Make a request to it."""
        return ask(self.info.model.model, text, max_tokens=max_tokens, salt=self.salt, **fields)

    @property
    def window(self) -> int:
        """Prompt and completion together, in tokens."""
        return self.info.model.context_length


async def one_answer(subject: Subject) -> str:
    """One short answer."""
    answer = _whole(await subject.calls.answer(subject.ask(_story(0), TOKENS)))
    return f"{answer.completion_tokens} tokens in {_ms(answer.total_s)}"


async def throughput(subject: Subject) -> str:
    """One stream alone, then one for each slot at once."""
    alone = _whole(await subject.calls.answer(subject.ask(_story(0), TOKENS)))
    began = subject.clock()
    requests = [subject.ask(_story(1 + slot), TOKENS) for slot in range(subject.info.slots)]
    together = await asyncio.gather(*map(subject.calls.answer, requests))
    elapsed = subject.clock() - began
    tokens = sum(_whole(answer).completion_tokens for answer in together)
    waits = sorted(answer.first_token_s for answer in together)
    return (
        f"1 stream {alone.completion_tokens / alone.total_s:.1f} tokens/s, first after "
        f"{_ms(alone.first_token_s)}; {len(together)} streams {tokens / elapsed:.1f} tokens/s, "
        f"first after {_ms(waits[len(waits) // 2])} (median), {_ms(waits[-1])} (last)"
    )


async def abort(subject: Subject) -> str:
    """All slots are taken, one more is refused, all hang up, and all slots are free again."""
    streams = [_Stream(subject, f"Count from {n + 1} to 9999.") for n in range(subject.info.slots)]
    try:
        for stream in streams:
            await stream.begun.wait()
        refused = await _is_refused(subject)
    finally:
        hung_up = subject.clock()
        for stream in streams:
            await stream.close()
    for stream in streams:
        stream.check()
    seconds = await _freed(subject, hung_up)
    _whole(await subject.calls.answer(subject.ask(_story(0), TOKENS)))
    beyond = "one more was refused" if refused else "some had ended before one more was asked for"
    return (
        f"{len(streams)} streams at once, {beyond}; "
        f"all slots free {_ms(seconds)} after they hung up"
    )


async def guided(subject: Subject) -> str:
    """An answer is held to a JSON Schema."""
    if "structured_output" not in subject.info.model.features:
        raise SkippedError("this model and engine have no structured output")
    most = min(GUIDED_TOKENS, subject.window // 2)
    request = subject.ask("Where shall I go, and for how many days?", most, json_schema=CITY)
    answer = _whole(await subject.calls.answer(request))
    if answer.reason == FinishReason.FINISH_REASON_LENGTH:
        raise CheckError(f"no end within {most} tokens")
    if not _fits(answer.text):
        raise CheckError("the answer does not fit its schema")
    return f"{answer.completion_tokens} tokens in {_ms(answer.total_s)}, and they fit the schema"


async def long_prompt(subject: Subject) -> str:
    """A long prompt is read while another stream goes on; once more, it is cached."""
    wanted = subject.prompt_tokens or min(MOST_PROMPT_TOKENS, int(subject.window * 0.85))
    sampled = min(SAMPLE_WORDS, subject.window // 8)
    sample = await subject.calls.answer(subject.ask(_numbers(sampled, "a"), 1))
    text = _numbers(max(1, wanted * sampled // sample.prompt_tokens), "b")
    beside = _Stream(subject, "Count from 1 to 9999.") if subject.info.slots > 1 else None
    try:
        if beside is not None:
            await beside.begun.wait()
        long = _whole(await subject.calls.answer(subject.ask(text, 2)))
    finally:
        if beside is not None:
            await beside.close()
    if long.prompt_tokens < wanted // 2:
        raise CheckError(f"the prompt was to have {wanted} tokens and had {long.prompt_tokens}")
    again = _whole(await subject.calls.answer(subject.ask(text, 2)))
    waited = ""
    if beside is not None:
        beside.check()
        waited = f", another stream waited {_ms(beside.longest_gap_s)} at most"
    return (
        f"{long.prompt_tokens} tokens, first token after {long.first_token_s:.2f} s{waited}; "
        f"once more {again.first_token_s:.2f} s, {again.cached_tokens} of them cached"
    )


async def too_long(subject: Subject) -> str:
    """A prompt beyond the window is refused, and harms nobody."""
    text = _numbers(subject.window * 2, "c")
    try:
        await subject.calls.answer(subject.ask(text, 1))
    except ServiceError as error:
        if error.detail.reason != ErrorReason.ERROR_REASON_INVALID_REQUEST:
            raise
    else:
        raise CheckError(f"about twice the window of {subject.window} tokens was taken")
    _whole(await subject.calls.answer(subject.ask(_story(0), TOKENS)))
    return "refused, and the next request was answered"


Check = Callable[[Subject], Awaitable[str]]
CHECKS: tuple[tuple[str, Check], ...] = (
    ("throughput", throughput),
    ("abort", abort),
    ("guided output", guided),
    ("long prompt", long_prompt),
    ("too long a prompt", too_long),
)


class _Stream:
    """An answer that is read until it is hung up on; runs from the beginning."""

    def __init__(self, subject: Subject, text: str) -> None:
        self.begun = asyncio.Event()
        """Set with the first piece, and when it ends."""
        self.longest_gap_s = 0.0
        """Between two pieces."""
        self._subject = subject
        self._task = asyncio.create_task(self._read(subject.ask(text, subject.window // 2)))

    async def close(self) -> None:
        """Hang up."""
        self._task.cancel()
        await asyncio.wait({self._task})

    def check(self) -> None:
        """Raise what it failed with, if it did."""
        if not self._task.cancelled():
            self._task.result()

    async def _read(self, request: GenerateRequest) -> None:
        last: float | None = None
        try:
            async with aclosing(self._subject.calls.events(request)) as events:
                async for event in events:
                    if event.WhichOneof("event") == "delta":
                        now = self._subject.clock()
                        self.longest_gap_s = max(self.longest_gap_s, now - (last or now))
                        last = now
                        self.begun.set()
        finally:
            self.begun.set()


async def _is_refused(subject: Subject) -> bool:
    """Ask for one slot more than there are; False: it was given, as another had ended."""
    try:
        await subject.calls.answer(subject.ask(_story(0), 1))
    except ServiceError as error:
        if error.detail.reason != ErrorReason.ERROR_REASON_NO_SLOT:
            raise
        return True
    return False


async def _freed(subject: Subject, since: float) -> float:
    """Wait until no slot is held; return the seconds since then."""
    while held := (await subject.calls.info()).slots_in_use:
        if subject.clock() - since > FREED_LIMIT_S:
            raise CheckError(f"{held} slots are still held {FREED_LIMIT_S:.0f} s after the hang-up")
        await asyncio.sleep(POLL_S)
    return subject.clock() - since


def _whole(answer: Answer) -> Answer:
    if not answer.completion_tokens:
        raise CheckError("an answer without a token")
    if answer.received_tokens != answer.completion_tokens:
        raise CheckError(
            f"{answer.completion_tokens} tokens were counted and {answer.received_tokens} came"
        )
    return answer


def _fits(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and value.keys() == {"city", "days"}
        and value["city"] in CITIES
        and type(value["days"]) is int
    )


def _story(number: int) -> str:
    return f"Tell me a long story about {number + 1} ships."


def _numbers(words: int, begin: str) -> str:
    """Make a text of about so many words, which shares no beginning with others."""
    whole, rest = divmod(words, len(WORDS))
    return " ".join([f"Text {begin}:", *(WORDS * whole), *WORDS[:rest]])


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
