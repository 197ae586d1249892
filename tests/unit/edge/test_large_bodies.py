"""How much of clients' large requests is held."""

import pytest

from edge.errors import Refusal
from edge.large_bodies import SMALL_BYTES, LargeBodies

ROOM = 12 * SMALL_BYTES


def fill(bodies, account_id):
    """Let an account send as much as it can; return what it got, in small bodies."""
    body = bodies.body(account_id)
    try:
        for size in range(2, 100):
            body.grow_to(size * SMALL_BYTES)
    except Refusal:
        return body, size - 1
    raise AssertionError("it never was too much")


def test_an_account_leaves_room_for_others():
    """One alone gets half of the room; the next one gets half of the rest."""
    bodies = LargeBodies(ROOM)
    assert fill(bodies, "a")[1] == 6
    assert fill(bodies, "b")[1] == 3
    assert bodies.held_bytes == 9 * SMALL_BYTES


def test_what_is_small_is_never_refused():
    """A small body is not counted, however full it is."""
    bodies = LargeBodies(1)
    bodies.body("a").grow_to(SMALL_BYTES)
    assert bodies.held_bytes == 0
    with pytest.raises(Refusal, match="send this one again later") as caught:
        bodies.body("a").grow_to(SMALL_BYTES + 1)
    assert caught.value.status == 503


def test_what_is_answered_leaves_room():
    """A body that is let go of, once or twice, holds nothing, also one that was refused."""
    bodies = LargeBodies(ROOM)
    body, got = fill(bodies, "a")
    body.release()
    body.release()
    assert bodies.held_bytes == 0
    assert fill(bodies, "a")[1] == got
