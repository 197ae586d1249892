"""From steps of an engine to what is told of them, however the engine hands its tokens over."""

from gpu_worker.deltas import call_id


def test_ids_of_calls_derive_from_what_is_called():
    """The same call told again has the same id; any other has another."""
    known = call_id("request", 0, 0)
    assert known == call_id("request", 0, 0)
    assert len({known, call_id("request", 1, 0), call_id("request", 0, 1), call_id("r", 0, 0)}) == 4
    assert known.removeprefix("call_").isalnum()
    assert len(known) == len("call_") + 24
