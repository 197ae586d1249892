"""Requests under way, and their end when their key is revoked or their account suspended."""

import asyncio
from types import TracebackType
from typing import Protocol

from edge.auth_cache import AuthCache
from edge.caller import Caller
from edge.errors import INVALID_KEY, Refusal


class Progress(Protocol):
    """How far a request is."""

    @property
    def has_started(self) -> bool:
        """Whether a worker was asked to begin."""


class Held:
    """A request that is served inside ``async with``."""

    def __init__(self, running: "Running", caller: Caller, progress: Progress) -> None:
        self.caller = caller
        self.progress = progress
        self._running = running
        self._scope = asyncio.timeout(None)
        self._is_ending = False

    def end(self) -> None:
        """End it."""
        if not self._is_ending:
            self._is_ending = True
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> None:
        """Begin.

        Raises:
            Refusal: 401; the caller may not call any more.
        """
        self._running.add(self)
        await self._scope.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End.

        Raises:
            Refusal: 401; it was ended.
        """
        self._running.remove(self)
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            raise closed() from None


class Running:
    """Ends the requests of whoever may not call any more.

    What no worker was asked to begin always ends. What has begun goes on, unless ``abort`` is set.
    """

    def __init__(self, cache: AuthCache, *, abort: bool) -> None:
        self._cache = cache
        self._abort = abort
        self._by_account: dict[str, set[Held]] = {}
        cache.subscribe(self._on_closed)

    def hold(self, caller: Caller, progress: Progress) -> Held:
        """Return what a request is served in.

        Args:
            caller: whose it is.
            progress: how far it is, asked when the caller may not call any more.
        """
        return Held(self, caller, progress)

    def add(self, held: Held) -> None:
        """Take note of a request that begins.

        Raises:
            Refusal: 401; the caller may not call any more, since the key was looked at.
        """
        if self._cache.is_open_to(held.caller) is False:
            raise closed()
        self._by_account.setdefault(held.caller.account_id, set()).add(held)

    def remove(self, held: Held) -> None:
        """Forget a request."""
        account_id = held.caller.account_id
        self._by_account[account_id].discard(held)
        if not self._by_account[account_id]:
            del self._by_account[account_id]

    def _on_closed(self, account_id: str, key_id: str) -> None:
        for held in self._by_account.get(account_id, ()):
            if key_id not in ("", held.caller.key_id) or self._cache.is_open_to(held.caller):
                continue
            if self._abort or not held.progress.has_started:
                held.end()


def closed() -> Refusal:
    """What the client is told whose key or account has been closed."""
    return Refusal(401, INVALID_KEY, reason="key_closed")
