"""Concurrent streamed chats against an OpenAI-compatible server, and what they measured."""

import asyncio
import time
from collections.abc import Sequence

import aiohttp
import msgspec
import orjson


class Target(msgspec.Struct, frozen=True):
    """Which server, and as whom."""

    base_url: str  # ends in /v1
    api_key: str
    model: str


class Stream(msgspec.Struct, frozen=True):
    """One streamed answer; times in seconds."""

    first_token_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Load(msgspec.Struct, frozen=True):
    """All streams of one level of concurrency."""

    concurrency: int
    wall_s: float
    streams: list[Stream]

    @property
    def tokens_per_second(self) -> float:
        """Completion tokens of all streams by the wall clock."""
        return sum(stream.completion_tokens for stream in self.streams) / self.wall_s

    def first_token_ms(self, quantile: float) -> float:
        """Return a quantile (0..1) of the time to the first token, in milliseconds."""
        times = sorted(stream.first_token_s for stream in self.streams)
        return 1000 * times[min(len(times) - 1, int(quantile * len(times)))]


class BenchError(Exception):
    """The server refused or broke a stream; the message is its own."""


async def measure(
    target: Target, concurrency: int, *, max_tokens: int, prompts: Sequence[str]
) -> Load:
    """Run one stream for each of ``concurrency`` prompts at once.

    Raises:
        BenchError: a stream was refused or ended early.
    """
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"authorization": f"Bearer {target.api_key}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        began = time.perf_counter()
        streams = await asyncio.gather(
            *(
                _stream(session, target, prompts[number % len(prompts)], max_tokens, number)
                for number in range(concurrency)
            )
        )
        return Load(concurrency, time.perf_counter() - began, list(streams))


async def _stream(
    session: aiohttp.ClientSession, target: Target, prompt: str, max_tokens: int, seed: int
) -> Stream:
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0.8,
        "seed": seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = time.perf_counter()
    first: float | None = None
    usage: dict[str, object] | None = None
    async with session.post(f"{target.base_url}/chat/completions", json=body) as response:
        if response.status != 200:  # anything else is a refusal with one JSON body
            raise BenchError(f"HTTP {response.status}: {(await response.text())[:300]}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = orjson.loads(line[6:])
            if "error" in chunk:
                raise BenchError(str(chunk["error"].get("message")))
            if first is None and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                first = time.perf_counter() - began
            usage = chunk.get("usage") or usage
    if usage is None:
        raise BenchError("a stream ended without its usage")
    total = time.perf_counter() - began
    details = usage.get("prompt_tokens_details")
    return Stream(
        first_token_s=total if first is None else first,
        total_s=total,
        prompt_tokens=_count(usage, "prompt_tokens"),
        cached_tokens=_count(details if isinstance(details, dict) else {}, "cached_tokens"),
        completion_tokens=_count(usage, "completion_tokens"),
    )


def _count(usage: dict[str, object], name: str) -> int:
    value = usage.get(name, 0)
    return value if isinstance(value, int) else 0
