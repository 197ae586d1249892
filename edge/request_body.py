"""Reads the body of a request: JSON bytes, within size and time, or a refusal."""

import asyncio
import re
from typing import TypeVar

from aiohttp import HttpVersion11, web

from edge.errors import Refusal, invalid
from edge.large_bodies import Body

_JSON_TYPE = re.compile(r"\s*application/(?:[\w.-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

BodyT = TypeVar("BodyT", bytes, bytearray)


async def read_body(
    request: web.BaseRequest, held: Body, *, limit_bytes: int, timeout_s: float
) -> bytes:
    """Read it all, and hold what has come.

    Raises:
        Refusal: not JSON by its type, compressed, too large, too slow, or there is no room for it.
    """
    _check_type(request)
    length = request.content_length
    if length is not None and length > limit_bytes:
        raise _too_large(limit_bytes)
    await _say_continue(request)
    try:
        if request.content.is_eof():  # as most bodies come: with their head
            return _within(request.content.read_nowait(), held, limit_bytes)
        async with asyncio.timeout(timeout_s):
            return await _read(request, held, limit_bytes)
    except TimeoutError:
        raise Refusal(408, f"the body did not come within {timeout_s:g} s") from None
    except web.RequestPayloadError:
        raise invalid("the body is not valid HTTP/1.1") from None


async def _read(request: web.BaseRequest, held: Body, limit_bytes: int) -> bytes:
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        _within(body, held, limit_bytes)
    return bytes(body)


def _within(body: BodyT, held: Body, limit_bytes: int) -> BodyT:
    if len(body) > limit_bytes:
        raise _too_large(limit_bytes)
    held.grow_to(len(body))
    return body


def _check_type(request: web.BaseRequest) -> None:
    kind = request.headers.get("Content-Type")
    if kind is not None and not _JSON_TYPE.fullmatch(kind):
        raise Refusal(415, "send the body as application/json")
    coding = request.headers.get("Content-Encoding", "identity")
    if coding.strip().lower() not in ("", "identity"):
        raise Refusal(415, "send the body uncompressed, without Content-Encoding")


async def _say_continue(request: web.BaseRequest) -> None:
    expected = request.headers.get("Expect")
    if expected is None or request.version < HttpVersion11:  # which has no 100 Continue
        return
    if expected.strip().lower() != "100-continue":
        raise Refusal(417, "of Expect only 100-continue is known")
    await request.writer.write(_CONTINUE)


def _too_large(limit_bytes: int) -> Refusal:
    return Refusal(413, f"the body may have at most {limit_bytes} bytes")
