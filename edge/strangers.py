"""Lets strangers through one at a time, so that a flood of them holds up nobody who is known."""

import asyncio
from collections import deque

PER_TURN = 1
"""Each costs some tenths of a millisecond, from its request to its refusal."""


class Strangers:
    """A gate that opens in each turn of the event loop, for one or a few."""

    def __init__(self, *, per_turn: int = PER_TURN) -> None:
        self._per_turn = per_turn
        self._passed = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_turning = False

    async def passed(self) -> None:
        """Return when it is the caller's turn: at once, unless many come at the same moment."""
        loop = asyncio.get_running_loop()
        if not self._is_turning:
            self._is_turning = True
            loop.call_soon(self._turn)
        if self._passed < self._per_turn and not self._waiting:
            self._passed += 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _turn(self) -> None:
        """Begin the next turn; what came in from others has been looked at in between."""
        self._passed = 0
        while self._waiting and self._passed < self._per_turn:
            turn = self._waiting.popleft()
            if not turn.done():  # whoever left has none
                turn.set_result(None)
                self._passed += 1
        if self._passed:
            asyncio.get_running_loop().call_soon(self._turn)
        else:
            self._is_turning = False
