"""Finds out who calls: reads the key, and asks the cache and behind it the auth service."""

from __future__ import annotations  # grpc's classes are generic in their stubs only

import re
import time
from collections.abc import Callable

import grpc
import grpc.aio
from multidict import MultiMapping

from edge.auth_cache import AuthCache
from edge.caller import Caller
from edge.errors import INVALID_KEY, KEYS_UNCHECKED, Refusal
from edge.strangers import Strangers
from fastrun.service import rpc
from fastrun.service.api_key import key_sha256, well_formed
from fastrun.service.errors import ServiceError
from fastrun.service.identity import Role
from fastrun.service.tls import Tls
from fastrun.v1 import auth_pb2_grpc
from fastrun.v1.auth_pb2 import VerifyKeyRequest, VerifyKeyResponse

# RFC 6750: the scheme in any case, then the key, exactly.
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)


class AuthLink:
    """Asks the auth service."""

    def __init__(self, address: str, tls: Tls | None) -> None:
        self._channel = rpc.FreshChannel(address, Role.AUTH, tls)

    async def verify(self, digest: bytes, timeout_s: float) -> VerifyKeyResponse:
        """Ask who a key is; a frozen service is not waited for longer than ``timeout_s``.

        Raises:
            ServiceError: NOT_FOUND when there is no such key.
        """
        stub: auth_pb2_grpc.AuthServiceAsyncStub = auth_pb2_grpc.AuthServiceStub(
            self._channel.get()
        )
        try:
            return await stub.VerifyKey(VerifyKeyRequest(key_sha256=digest), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise ServiceError.of_rpc(error) from None

    async def close(self) -> None:
        """End what is open to it."""
        await self._channel.close()


class Authenticator:
    """Turns the headers of a request into a caller."""

    def __init__(self, cache: AuthCache, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._cache = cache
        self._strangers = Strangers()
        self._wall_clock = wall_clock

    async def caller(self, headers: MultiMapping[str]) -> Caller:
        """Say who calls.

        Raises:
            Refusal: 400 or 401; or 503 when nobody can say whether the key is good.
        """
        sent = headers.getall("Authorization", [])
        if len(sent) > 1:  # proxies differ in which of them they look at
            raise Refusal(400, "send one Authorization header, not several")
        found = _BEARER.fullmatch("".join(sent).strip())
        if found is None or not well_formed(found[1]):
            raise Refusal(401, INVALID_KEY)
        digest = key_sha256(found[1])
        is_known = self._cache.knows(digest)
        if not is_known:
            await self._strangers.passed()
        try:
            entry = await self._cache.entry(digest)
        except ServiceError:
            if not is_known:  # they are told together, when nobody has answered
                await self._strangers.passed()
            raise Refusal(503, KEYS_UNCHECKED, reason="keys_unchecked") from None
        wall_s = self._wall_clock()
        if entry is None or not entry.may_call(wall_s):
            raise Refusal(401, INVALID_KEY)
        return entry.caller.at(wall_s, self._cache.age_s(entry))
