"""One id says in the logs of every service which request it is."""

import asyncio
from contextlib import AsyncExitStack

import structlog
from small_stack import LIMIT_S, Stack


async def test_a_request_has_one_id_everywhere(database, tmp_path):
    """Edge, auth service, scheduler and worker log the id that the edge gave to the request."""
    stack = Stack(database, tmp_path / "spool")
    add_id = structlog.contextvars.merge_contextvars
    async with AsyncExitStack() as exits:
        await stack.start(exits)
        with structlog.testing.capture_logs(processors=[add_id]) as lines:
            assert (await stack.ask("say [[tokens=2]]")).status_code == 200
            # Both the edge and the worker have told their last after the answer.
            async with asyncio.timeout(LIMIT_S):
                while len(done := [each for each in lines if _ends(each)]) < 2:
                    await asyncio.sleep(0.01)
    of_edge = next(each for each in done if "status" in each)
    found = [each["event"] for each in lines if each.get("request_id") == of_edge["request_id"]]
    assert {"key_verified", "slot_asked", "request_started"} <= set(found)
    assert found.count("request_finished") == 2


def _ends(line):
    return line["event"] == "request_finished"
