"""Requests under way, and their end when their key is revoked or their account suspended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from edge.auth_cache import AuthCache
from edge.caller import Caller
from edge.errors import INVALID_KEY, Refusal


class Progress(Protocol):
    """How far a request is."""

    @property
    def has_started(self) -> bool:
        """Whether a worker was asked to begin."""


@dataclass(slots=True, eq=False)
class _Held:
    caller: Caller
    progress: Progress
    scope: asyncio.Timeout
    is_ending: bool = False

    def end(self) -> None:
        if not self.is_ending:
            self.is_ending = True
            self.scope.reschedule(asyncio.get_running_loop().time())


class Running:
    """Ends the requests of whoever may not call any more.

    What no worker was asked to begin always ends. What has begun goes on, unless ``abort`` is set.
    """

    def __init__(self, cache: AuthCache, *, abort: bool) -> None:
        self._cache = cache
        self._abort = abort
        self._by_account: dict[str, set[_Held]] = {}
        cache.subscribe(self._on_closed)

    @asynccontextmanager
    async def hold(self, caller: Caller, progress: Progress) -> AsyncIterator[None]:
        """Serve a request inside.

        Args:
            caller: whose it is.
            progress: how far it is, asked when the caller may not call any more.

        Raises:
            Refusal: 401; the caller may not call any more.
        """
        if self._cache.is_open_to(caller) is False:  # since the key was looked at
            raise _closed()
        try:
            async with asyncio.timeout(None) as scope:
                held = _Held(caller, progress, scope)
                self._by_account.setdefault(caller.account_id, set()).add(held)
                try:
                    yield
                finally:
                    self._forget(held)
        except TimeoutError:
            if scope.expired():
                raise _closed() from None
            raise

    def _on_closed(self, account_id: str, key_id: str) -> None:
        for held in self._by_account.get(account_id, ()):
            if key_id not in ("", held.caller.key_id) or self._cache.is_open_to(held.caller):
                continue
            if self._abort or not held.progress.has_started:
                held.end()

    def _forget(self, held: _Held) -> None:
        account_id = held.caller.account_id
        self._by_account[account_id].discard(held)
        if not self._by_account[account_id]:
            del self._by_account[account_id]


def _closed() -> Refusal:
    return Refusal(401, INVALID_KEY, reason="key_closed")
