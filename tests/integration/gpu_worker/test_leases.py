"""Leases, slots and sessions with schedulers, over real gRPC."""

import asyncio

from fastrun.service import leases
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import FinishReason
from fastrun.v1.scheduler_pb2 import LeaseClaims, Welcome
from gpu_worker.slots import Slots
from gpu_worker.vitals import Vitals

LIMIT_S = 10


async def refused(edge, request):
    """Start a request that must fail; return its reason."""
    events = await edge.end(edge.start(request))
    assert [kind for kind, _ in events] == ["failed"]
    return events[0][1].error.reason


async def test_a_bad_lease_is_refused(stack):
    """Forged, foreign, old, missing and used leases are refused, and nothing is freed for them."""
    scheduler, edge = stack.scheduler, stack.edge()
    used = scheduler.lease("used")
    request = stack.ask("[[tokens=1]]")
    request.lease = used
    await edge.end(edge.start(request))
    forged = leases.sign(LeaseClaims.FromString(used[:-32]), b"x" * 32)
    bad = [
        used,
        forged,
        b"",
        b"no lease at all, but long enough for one",
        scheduler.lease(instance_id="another"),
        scheduler.lease(term=scheduler.term - 1),
        scheduler.lease(term=scheduler.term + 1),
    ]
    for lease in bad:
        request.lease = lease
        assert await refused(edge, request) == ErrorReason.ERROR_REASON_LEASE_REFUSED
    await edge.end(edge.start(stack.ask("[[tokens=1]]")))
    await scheduler.until(lambda s: len(s.freed) == 2)
    assert scheduler.freed_ids()[0] == "used"


async def test_the_cap_holds_whatever_is_granted(slow_stack):
    """Beyond its slots a worker refuses good leases, gives them back, and runs none of them."""
    scheduler, edge = slow_stack.scheduler, slow_stack.edge()
    running = [edge.start(slow_stack.ask()) for _ in range(4)]
    request = slow_stack.ask()
    request.lease = scheduler.lease("too-many")
    assert await refused(edge, request) == ErrorReason.ERROR_REASON_NO_SLOT
    await scheduler.until(lambda s: s.freed_ids() == ["too-many"])
    edge.abort(running[0])
    await edge.end(running[0])
    await scheduler.until(lambda s: len(s.freed) == 2)
    assert await refused(edge, request) == ErrorReason.ERROR_REASON_LEASE_REFUSED
    assert (await edge.end(edge.start(slow_stack.ask("[[tokens=1]]"))))[-1][0] == "finished"


async def test_a_voided_lease_never_starts(stack):
    """Void of a lease nobody used is answered at once, and a late Start is refused."""
    scheduler, edge = stack.scheduler, stack.edge()
    request = stack.ask()
    request.lease = scheduler.lease("late")
    scheduler.void("late")
    scheduler.void("late")
    await scheduler.until(lambda s: s.freed_ids() == ["late", "late"])
    assert await refused(edge, request) == ErrorReason.ERROR_REASON_LEASE_REFUSED


async def test_a_fault_in_a_command_ends_no_session(stack, monkeypatch):
    """What the scheduler says next is heeded, and the worker lives."""
    scheduler = stack.scheduler
    failed = asyncio.Event()

    def odd(slots, lease_id):
        failed.set()
        raise RuntimeError(lease_id)

    with monkeypatch.context() as patch:
        patch.setattr(Slots, "void", odd)
        scheduler.void("odd")
        await asyncio.wait_for(failed.wait(), LIMIT_S)
    scheduler.void("next")
    await scheduler.until(lambda s: s.freed_ids() == ["next"])
    assert len(scheduler.hellos) == 1


async def test_a_fault_in_a_welcome_is_tried_again(stack, monkeypatch):
    """The session ends, since nothing counts without it; the worker comes back with another one."""
    scheduler = stack.scheduler
    failed = asyncio.Event()

    def odd(slots, term, key):
        failed.set()
        raise RuntimeError(term)

    with monkeypatch.context() as patch:
        patch.setattr(Slots, "lead", odd)
        scheduler.break_session()
        await asyncio.wait_for(failed.wait(), LIMIT_S)
    scheduled = len(scheduler.hellos)
    await scheduler.until(lambda s: len(s.hellos) > scheduled)
    scheduler.void("late")
    await scheduler.until(lambda s: s.freed_ids() == ["late"])


async def test_void_leaves_a_request_whose_attach_lives(slow_stack):
    """A voided request runs on while its edge listens; the answer comes when it has ended."""
    scheduler, edge = slow_stack.scheduler, slow_stack.edge()
    request = slow_stack.ask("[[tokens=30]]")
    request.lease = scheduler.lease("doubtful")
    stream_id = edge.start(request)
    await edge.first_delta(stream_id)
    scheduler.void("doubtful")
    scheduler.void("never seen")
    await scheduler.until(lambda s: "never seen" in s.freed_ids())
    assert "doubtful" not in scheduler.freed_ids()
    assert (await edge.end(stream_id))[-1][1].reason == FinishReason.FINISH_REASON_STOP
    await scheduler.until(lambda s: "doubtful" in s.freed_ids())


async def test_void_of_an_ended_lease_repeats_its_usage(stack):
    """A scheduler that missed a SlotFreed gets the same again by asking."""
    scheduler, edge = stack.scheduler, stack.edge()
    request = stack.ask("[[tokens=3]]")
    request.lease = scheduler.lease("missed")
    await edge.end(edge.start(request))
    await scheduler.until(lambda s: s.freed)
    scheduler.void("missed")
    await scheduler.until(lambda s: len(s.freed) == 2)
    assert scheduler.freed[0] == scheduler.freed[1]


async def test_a_new_session_learns_of_what_runs_and_what_ended(slow_stack):
    """After a break the request runs on, Hello lists it, and what ended meanwhile is told again."""
    scheduler, edge = slow_stack.scheduler, slow_stack.edge()
    staying, ending = slow_stack.ask(), slow_stack.ask("[[tokens=20]]")
    staying.lease, ending.lease = scheduler.lease("staying"), scheduler.lease("ending")
    staying_id, ending_id = edge.start(staying), edge.start(ending)
    await edge.first_delta(staying_id)
    scheduler.void("dead")
    await scheduler.until(lambda s: "dead" in s.freed_ids())
    await scheduler.stop()
    await edge.end(ending_id)
    # The same scheduler comes back at its address, with empty books.
    scheduler.freed.clear()
    await scheduler.start(scheduler.port)
    await scheduler.until(lambda s: len(s.hellos) == 2 and "ending" in s.freed_ids())
    hello = scheduler.hellos[-1]
    assert [leases.read(blob).lease_id for blob in hello.running_leases] == ["staying"]
    assert list(hello.voided_lease_ids) == ["dead"]
    assert hello.term == scheduler.term
    assert hello.instance_id == scheduler.hellos[0].instance_id
    freed = {freed.lease_id: freed for freed in scheduler.freed}
    assert freed["ending"].usage.completion_tokens == 21
    before = len(edge.events[staying_id])
    edge.moved[staying_id].clear()
    await edge.first_delta(staying_id)
    assert len(edge.events[staying_id]) > before


async def test_the_highest_term_is_obeyed(slow_stack):
    """A new term ends unstarted leases of the old one; what runs goes on; an older term is ignored."""
    scheduler, edge = slow_stack.scheduler, slow_stack.edge()
    old = slow_stack.ask()
    running = edge.start(slow_stack.ask("[[tokens=30]]"))
    await edge.first_delta(running)
    scheduler.term, scheduler.key = 9, b"n" * 32
    scheduler.command(welcome=Welcome(term=9, lease_key=scheduler.key))
    scheduler.void("sync")
    await scheduler.until(lambda s: "sync" in s.freed_ids())
    assert await refused(edge, old) == ErrorReason.ERROR_REASON_LEASE_REFUSED
    new = slow_stack.ask("[[tokens=1]]")
    scheduler.command(welcome=Welcome(term=8, lease_key=b"o" * 32))
    scheduler.void("from a fenced one")
    scheduler.command(welcome=Welcome(term=9, lease_key=scheduler.key))
    scheduler.void("sync again")
    await scheduler.until(lambda s: "sync again" in s.freed_ids())
    assert "from a fenced one" not in scheduler.freed_ids()
    assert (await edge.end(edge.start(new)))[-1][0] == "finished"
    assert (await edge.end(running))[-1][0] == "finished"


async def test_each_term_begins_with_a_hello_to_all(run_stack):
    """It lists what runs for the one that leads, and tells others that they do not."""
    async with (
        run_stack() as first,
        run_stack(also=[first.scheduler], worker_id="both", scripted_tokens_per_s=100.0) as both,
    ):
        schedulers = (both.scheduler, first.scheduler)
        edge, request = both.edge(), both.ask()
        request.lease = both.scheduler.lease("running")
        await edge.first_delta(edge.start(request))
        both.scheduler.command(welcome=Welcome(term=20, lease_key=b"n" * 32))
        for scheduler in schedulers:
            await scheduler.until(lambda s: s.hellos_again and s.hellos_again[-1].term == 20)
            (blob,) = scheduler.hellos_again[-1].running_leases
            assert leases.read(blob).lease_id == "running"
            scheduler.hellos_again.clear()
        # Neither one that stands by, nor an older term, nor the same again is news.
        first.scheduler.command(welcome=Welcome(term=0))
        first.scheduler.void("no")
        both.scheduler.command(welcome=Welcome(term=20, lease_key=b"n" * 32))
        both.scheduler.void("sync")
        await both.scheduler.until(lambda s: "sync" in s.freed_ids())
        assert both.scheduler.hellos_again == []
        assert first.scheduler.hellos_again == []
        assert "no" not in first.scheduler.freed_ids()


async def test_heartbeats_list_what_runs(slow_stack):
    """Each heartbeat holds the leases that hold a slot, and the worker's state."""
    scheduler, edge = slow_stack.scheduler, slow_stack.edge()
    request = slow_stack.ask()
    request.lease = scheduler.lease("beating")
    stream_id = edge.start(request)
    await scheduler.until(lambda s: list(s.heartbeats[-1].running_lease_ids) == ["beating"])
    edge.abort(stream_id)
    await scheduler.until(lambda s: not s.heartbeats[-1].running_lease_ids)


async def test_a_heartbeat_that_cannot_be_made_ends_no_session(slow_stack, monkeypatch):
    """What runs is told of in all sessions, old and new, and the worker lives."""
    scheduler, edge = slow_stack.scheduler, slow_stack.edge()
    request = slow_stack.ask()
    request.lease = scheduler.lease("running")
    stream_id = edge.start(request)
    await edge.first_delta(stream_id)
    failed = asyncio.Event()

    def odd(vitals, **_figures):
        failed.set()
        raise RuntimeError(vitals)

    with monkeypatch.context() as patch:
        patch.setattr(Vitals, "heartbeat", odd)
        await asyncio.wait_for(failed.wait(), LIMIT_S)
        scheduler.break_session()
        await scheduler.until(lambda s: len(s.hellos) == 2)
        assert len(scheduler.hellos[1].running_leases) == 1
        edge.abort(stream_id)
        await scheduler.until(lambda s: s.freed_ids() == ["running"])
    beats = len(scheduler.heartbeats)
    await scheduler.until(lambda s: len(s.heartbeats) > beats)
    assert slow_stack.left.empty()


async def test_a_fault_in_a_start_is_that_request_s(slow_stack, monkeypatch):
    """Its edge is told so, what else runs on the stream goes on, and the slot is asked for."""
    scheduler, edge = slow_stack.scheduler, slow_stack.edge()
    running = edge.start(slow_stack.ask())
    await edge.first_delta(running)

    def odd(*_args):
        raise RuntimeError

    request = slow_stack.ask()
    request.lease = scheduler.lease("odd")
    with monkeypatch.context() as patch:
        patch.setattr(Slots, "admit", odd)
        assert await refused(edge, request) == ErrorReason.ERROR_REASON_INTERNAL
    scheduler.void("odd")
    await scheduler.until(lambda s: s.freed_ids() == ["odd"])
    edge.abort(running)
    assert (await edge.end(running))[-1][0] == "finished"


async def test_every_scheduler_hears_the_same(run_stack):
    """A worker keeps a session with each scheduler; both hear of leases that end."""
    async with run_stack() as first, run_stack(also=[first.scheduler], worker_id="both") as both:
        await first.scheduler.until(lambda s: s.hellos[-1].worker_id == "both")
        first.scheduler.freed.clear()
        edge = both.edge()
        request = both.ask("[[tokens=2]]")
        request.lease = both.scheduler.lease("shared")
        await edge.end(edge.start(request))
        await both.scheduler.until(lambda s: s.freed_ids() == ["shared"])
        await first.scheduler.until(lambda s: s.freed_ids() == ["shared"])


async def test_a_lost_attach_frees_its_slot_for_the_scheduler(slow_stack):
    """LeaseLost in practice: the Attach breaks, Void comes, and SlotFreed answers with usage."""
    scheduler, edge = slow_stack.scheduler, slow_stack.edge()
    request = slow_stack.ask()
    request.lease = scheduler.lease("lost")
    await edge.first_delta(edge.start(request))
    edge.close()
    scheduler.void("lost")
    await scheduler.until(lambda s: "lost" in s.freed_ids())
    assert scheduler.freed[0].usage.completion_tokens > 0
    await asyncio.wait([edge.task])
