"""Watches what changes about keys: one stream from the auth service, opened again when it ends."""

from __future__ import annotations  # grpc's classes are generic in their stubs only

import asyncio
import time
from collections.abc import Callable

import grpc.aio
import structlog

from edge.auth_cache import AuthCache, GapError
from fastrun.service import rpc
from fastrun.service.identity import Role
from fastrun.service.streams import CLOSED, backoff_s
from fastrun.service.tls import Tls
from fastrun.v1 import auth_pb2_grpc
from fastrun.v1.auth_pb2 import WatchKeysRequest, WatchKeysResponse

log = structlog.get_logger()

CONFIRMED_S = 1.5
"""The watch can be counted on for so long after each confirmation."""
# Low, so that keys are asked about again soon after the auth service is back.
RETRY_S = 0.5


class KeyWatch:
    """Tells the cache what changes, and whether it can count on being told."""

    def __init__(
        self,
        address: str,
        tls: Tls | None,
        cache: AuthCache,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; keep() connects.

        Args:
            address: host:port of the auth service.
            tls: each stream begins with the certificate that is current then.
            cache: whom to tell.
            clock: monotonic seconds.
        """
        self._address = address
        self._tls = tls
        self._cache = cache
        self._clock = clock

    async def keep(self) -> None:
        """Watch until cancelled."""
        attempt = 0
        while True:
            was_current = False
            try:
                channel = rpc.channel(self._address, Role.AUTH, self._tls)
                try:
                    reason = await self._watch(channel)
                finally:
                    was_current = self._cache.is_watched
                    self._cache.on_broken()
                    await channel.close()
            except Exception:
                log.exception("key_watch_failed")
                reason = "an item could not be taken"
            attempt = 1 if was_current else attempt + 1
            if reason == CLOSED:
                log.info("key_watch_closed")
            elif attempt == 1:
                log.warning("key_watch_ended", reason=reason)
            await asyncio.sleep(backoff_s(attempt, cap_s=RETRY_S))

    async def _watch(self, channel: grpc.aio.Channel) -> str:
        """Read one stream to its end; returns why it ended."""
        stub: auth_pb2_grpc.AuthServiceAsyncStub = auth_pb2_grpc.AuthServiceStub(channel)
        call = stub.WatchKeys(WatchKeysRequest(after_sequence=self._cache.sequence))
        silent_at = self._clock() + CONFIRMED_S
        try:
            while True:
                async with asyncio.timeout(silent_at - self._clock()):
                    message = await call.read()
                # What lay unread while this process itself stood still says nothing about now.
                if self._clock() > silent_at:
                    return f"no confirmation for {CONFIRMED_S} s"
                if not isinstance(message, WatchKeysResponse):
                    return CLOSED
                if self._take(message):
                    silent_at = self._clock() + CONFIRMED_S
        except TimeoutError:
            return f"no confirmation for {CONFIRMED_S} s"
        except GapError as gap:
            return str(gap)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        finally:
            call.cancel()

    def _take(self, message: WatchKeysResponse) -> bool:
        """Tell the cache; returns whether this was a confirmation."""
        kind = message.WhichOneof("item")
        if kind == "confirmed":
            if not self._cache.is_watched:
                log.info("keys_watched", sequence=message.confirmed.sequence)
            self._cache.on_confirmed(message.confirmed.sequence)
        elif kind == "events":
            self._cache.on_events(message.events.events)
        elif kind == "reset":
            self._cache.on_reset(message.reset.sequence)
        return kind == "confirmed"
