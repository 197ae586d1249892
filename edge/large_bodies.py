"""How much of clients' large requests an edge holds at once, so that they cannot take its memory.

A small one always has room: what is counted, and refused, is only what is large.
"""

from edge.errors import Refusal

SMALL_BYTES = 64 << 10
"""A body up to here is not counted; the number of connections bounds them."""
NO_ROOM = "too many large requests are being served right now, send this one again later"


class LargeBodies:
    """The bodies of all requests, from their first byte to the end of their answers."""

    def __init__(self, limit_bytes: int) -> None:
        """Begin with none.

        Args:
            limit_bytes: of all large ones together.
        """
        self._free = limit_bytes
        self._held: dict[str, int] = {}

    @property
    def held_bytes(self) -> int:
        """Of all accounts."""
        return sum(self._held.values())

    def body(self, account_id: str) -> "Body":
        """Return one of an account, of which nothing has come yet."""
        return Body(self, account_id)

    def take(self, account_id: str, count: int) -> None:
        """Hold so many bytes more.

        No account gets more than is left for all the others together: so one that sends as much as
        it can leaves half of the room, and two leave a third.

        Raises:
            Refusal: 503; there is no room.
        """
        held = self._held.get(account_id, 0) + count
        free = self._free - count
        if held > free:
            raise Refusal(503, NO_ROOM, reason="no_room_for_body")
        self._held[account_id], self._free = held, free

    def give_back(self, account_id: str, count: int) -> None:
        """Let go of bytes that were taken."""
        self._free += count
        self._held[account_id] -= count
        if not self._held[account_id]:
            del self._held[account_id]


class Body:
    """What is held of one request."""

    __slots__ = ("_account_id", "_bodies", "_bytes")

    def __init__(self, bodies: LargeBodies, account_id: str) -> None:
        self._bodies = bodies
        self._account_id = account_id
        self._bytes = 0

    def grow_to(self, size: int) -> None:
        """Hold so many bytes, of which it had fewer.

        Raises:
            Refusal: 503; there is no room.
        """
        if size > SMALL_BYTES:
            self._bodies.take(self._account_id, size - self._bytes)
            self._bytes = size

    def release(self) -> None:
        """Let go of all. Idempotent."""
        if self._bytes:
            self._bodies.give_back(self._account_id, self._bytes)
            self._bytes = 0
