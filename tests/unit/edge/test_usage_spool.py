"""The usage spool: whatever dies, and wherever a line is cut, each request is recorded once."""

import asyncio
import errno
import os
import tempfile
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
import structlog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edge import usage_spool
from edge.metrics import Metrics
from edge.usage_delivery import PATIENCE_S, TOLD_AT, UsageDelivery
from edge.usage_lines import Closed, Counts, Ending, Open, Started, Status, Void
from edge.usage_link import Found
from edge.usage_records import closed
from edge.usage_spool import Spool, SpoolError
from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import Usage
from fastrun.v1.scheduler_pb2 import GenerationUsage

OWNERS = count(1)
LIMIT = 1 << 20
DONE = Ending(status=Status.COMPLETED, finish="stop", duration_ms=1)


def opened(request_id, **fields):
    known = {"account_id": "a", "key_id": "k", "model": "m", "started_at": 1.0}
    return Open(request_id=request_id, **{**known, "generations": (0,), **fields})


def record_of(request, tokens=1):
    return closed(request, DONE, worker_id="w", counts=Counts(prompt=tokens, completion=tokens))


def spool_in(folder, limit_bytes=LIMIT, segment_bytes=400):
    spool = Spool(
        folder, f"{next(OWNERS):016x}", limit_bytes=limit_bytes, segment_bytes=segment_bytes
    )
    spool.repair()
    return spool


def kill(spool):
    """What a kill -9 does: its files are closed, and nothing else happens."""
    for descriptor in (spool._descriptor, *spool._unsynced):
        if descriptor >= 0:
            os.close(descriptor)
    spool._lock.release()
    if spool._orphan is not None:
        spool._orphan.release()


def cut(spool, by):
    """Take the end of the last line away, as if its write had not come to its end."""
    if spool._segments:
        path = spool._segments[-1].path
        data = path.read_bytes()
        last = len(data) - (data.rstrip(b"\n").rfind(b"\n") + 1)
        os.truncate(path, len(data) - min(by, last))
        return by > 0
    return False


class World:
    """The auth service and the schedulers, and what really happened."""

    def __init__(self):
        self.now = 0.0
        self.recorded = {}
        self.calls = 0
        self.refuses = set()
        self.breaks = None
        """`before` or `after` it has recorded."""
        self.ran = {}
        """Tokens by request; None: it never ran."""
        self.forgets = False
        self.running = set()

    async def record(self, records):
        self.calls += 1
        down = ServiceError(ErrorReason.ERROR_REASON_UNAVAILABLE, "down")
        if self.breaks == "before":
            raise down
        if any(each.request_id in self.refuses for each in records):
            raise ServiceError(ErrorReason.ERROR_REASON_INVALID_REQUEST, "no such thing")
        for each in records:
            self.recorded.setdefault(each.request_id, each)
        if self.breaks == "after":
            raise down

    async def find(self, request_ids):
        known = [] if self.forgets else [each for each in request_ids if each in self.ran]
        generations = [
            GenerationUsage(
                request_id=each,
                worker_id="w",
                usage=Usage(prompt_tokens=tokens, completion_tokens=tokens) if tokens else None,
            )
            for each in known
            for tokens in [self.ran[each]]
        ]
        return Found(generations, frozenset(self.running & set(request_ids)), is_complete=True)

    def delivery(self, spool):
        metrics = Metrics(spool_limit_bytes=1 << 20)
        return UsageDelivery(spool, self, metrics, interval_s=1, clock=lambda: self.now)


class AnyHistory(RuleBasedStateMachine):
    """Edges that share a folder, and die."""

    def __init__(self):
        super().__init__()
        self.world = World()
        self.edges = []
        self.running = {}
        """Edge by request."""
        self.last = {}
        """By edge: the request of its last line, None if that ended one; no line that is synced."""
        self.never = set()
        """Their beginning was torn, so they were never started."""
        self.ids = count(1)

    @initialize()
    def prepare(self):
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())

    def edge(self, data):
        if not self.edges:
            spool = spool_in(self.folder)
            self.edges.append((spool, self.world.delivery(spool)))
        return data.draw(st.sampled_from(self.edges))

    @rule(data=st.data(), tokens=st.none() | st.integers(1, 9))
    def begin(self, data, tokens):
        spool, _ = edge = self.edge(data)
        request_id = f"r{next(self.ids)}"
        spool.begin(opened(request_id))
        self.world.ran[request_id] = tokens
        self.running[request_id] = edge
        self.last[spool] = request_id

    @precondition(lambda self: self.running)
    @rule(data=st.data(), is_sure=st.booleans())
    def end(self, data, is_sure):
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        spool, _ = self.running.pop(request_id)
        self.last[spool] = None
        request, tokens = spool.opened(request_id), self.world.ran[request_id]
        if not is_sure:
            ending = Ending(status=Status.CANCELLED)
            spool.ask(
                opened(request_id, generations=request.generations, ending=ending),
            )
        elif tokens is None:
            spool.end(Void(request_id=request_id))
        else:
            spool.end(record_of(request, tokens))

    @precondition(lambda self: self.edges)
    @rule(data=st.data(), breaks=st.sampled_from([None, None, "before", "after"]))
    def deliver(self, data, breaks):
        _, delivery = self.edge(data)
        self.world.breaks = breaks
        self.round(delivery)
        self.world.breaks = None

    @precondition(lambda self: self.edges)
    @rule(data=st.data(), by=st.integers(0, 60))
    def crash(self, data, by):
        spool, _ = edge = self.edge(data)
        self.edges.remove(edge)
        kill(spool)
        if spool in self.last and cut(spool, by):
            self.never.add(self.last[spool])
        self.last.pop(spool, None)
        self.running = {each: where for each, where in self.running.items() if where is not edge}

    @precondition(lambda self: self.edges)
    @rule(data=st.data())
    def stop(self, data):
        spool, _ = edge = self.edge(data)
        self.edges.remove(edge)
        spool.close()
        self.running = {each: where for each, where in self.running.items() if where is not edge}

    def round(self, delivery):
        self.last.pop(delivery._spool, None)
        try:
            self.loop.run_until_complete(delivery._round())
        except ServiceError:
            assert self.world.breaks

    @invariant()
    def nothing_is_recorded_that_did_not_run(self):
        assert all(self.world.ran[each] is not None for each in self.world.recorded)

    def teardown(self):
        try:
            self.check_the_end()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    def check_the_end(self):
        for spool, _ in self.edges:
            kill(spool)
        spool = spool_in(self.folder)
        delivery = self.world.delivery(spool)
        for _ in range(3):  # adopt; deliver what the schedulers said; delete
            self.round(delivery)
        spool.close()
        ran = {each for each, tokens in self.world.ran.items() if tokens is not None}
        assert ran - self.never == set(self.world.recorded) - self.never
        for request_id, record in self.world.recorded.items():
            assert record.completion_tokens == self.world.ran[request_id]
        assert not list(self.folder.iterdir())
        self.folder.rmdir()


AnyHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyHistory = AnyHistory.TestCase


class SmallDisk:
    """Stands for os: files in a folder take no more than so many bytes, if that is set."""

    def __init__(self, folder):
        self.folder = folder
        self.size = None

    def __getattr__(self, name):
        return getattr(os, name)

    @property
    def used(self):
        return sum(path.stat().st_size for path in self.folder.iterdir())

    def write(self, descriptor, data):
        room = len(data) if self.size is None else min(self.size - self.used, len(data))
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, data[:room])


class AnyHistoryOnASmallDisk(AnyHistory):
    """The same where there is no room now and then, wherever in a line that begins."""

    @initialize()
    def prepare(self):
        super().prepare()
        self.disk = usage_spool.os = SmallDisk(self.folder)

    @rule(room=st.integers(0, 400))
    def fill(self, room):
        self.disk.size = self.disk.used + room

    @rule()
    def clear(self):
        self.disk.size = None

    @precondition(lambda self: self.edges)
    @rule(data=st.data())
    def repair(self, data):
        self.edge(data)[0].repair()

    @rule(data=st.data(), tokens=st.none() | st.integers(1, 9))
    def begin(self, data, tokens):
        with suppress(SpoolError):
            super().begin(data, tokens)

    @precondition(lambda self: self.edges)
    @rule(data=st.data())
    def crash(self, data):
        super().crash(data, 0)

    def round(self, delivery):
        with suppress(OSError):
            super().round(delivery)

    def teardown(self):
        self.disk.size = None
        usage_spool.os = os
        super().teardown()


AnyHistoryOnASmallDisk.TestCase.settings = AnyHistory.TestCase.settings
TestAnyHistoryOnASmallDisk = AnyHistoryOnASmallDisk.TestCase


async def test_a_small_disk_is_emptied_as_well(tmp_path, monkeypatch):
    """A disk that one short file fills has room again once all is delivered."""
    world, spool = World(), spool_in(tmp_path, segment_bytes=LIMIT)
    disk = SmallDisk(tmp_path)
    monkeypatch.setattr(usage_spool, "os", disk)
    spool.begin(opened("runs"))
    spool.begin(opened("ends"))
    disk.size = disk.used + 30
    with pytest.raises(SpoolError):
        spool.begin(opened("none"))
    spool.end(record_of(spool.opened("ends")))
    spool.end(record_of(spool.opened("runs")))
    for _ in range(2):
        await world.delivery(spool)._round()
        spool.repair()
    assert spool.problem is None
    assert set(world.recorded) == {"runs", "ends"}
    spool.close()
    assert not list(tmp_path.iterdir())


async def test_a_beginning_stays_while_its_end_cannot_be_written(tmp_path, monkeypatch):
    """An edge that is killed while an end waits for room leaves its beginning to be asked about."""
    world, spool = World(), spool_in(tmp_path)
    world.ran = {"r": 7}
    spool.begin(opened("r"))
    for number in range(5):
        spool.begin(opened(f"before{number}"))
        spool.end(record_of(spool.opened(f"before{number}")))
    monkeypatch.setattr(os, "write", no_room)
    spool.end(record_of(spool.opened("r"), tokens=7))
    spool.next_batch(500)
    await spool.confirm()
    kill(spool)
    monkeypatch.undo()

    heir = spool_in(tmp_path)
    await world.delivery(heir)._round()
    await world.delivery(heir)._round()
    heir.close()
    assert world.recorded["r"].completion_tokens == 7


async def test_what_is_open_outlives_the_segment_in_which_it_began(tmp_path):
    """A long request does not keep the files of all those that came after it."""
    world, spool = World(), spool_in(tmp_path)
    delivery = world.delivery(spool)
    world.ran = {"long": 7}
    spool.begin(opened("long"))
    for number in range(50):
        spool.begin(opened(f"r{number}"))
        spool.end(record_of(spool.opened(f"r{number}")))
        await delivery._round()
    assert len(list(tmp_path.glob("*.log"))) <= 2
    kill(spool)

    heir = spool_in(tmp_path)
    await world.delivery(heir)._round()
    await world.delivery(heir)._round()
    heir.close()
    assert world.recorded["long"].completion_tokens == 7
    assert len(world.recorded) == 51
    assert not list(tmp_path.iterdir())


async def test_a_living_set_is_nobody_elses(tmp_path):
    """What a living edge has open is not asked for by others."""
    world, mine, other = World(), spool_in(tmp_path), spool_in(tmp_path)
    mine.begin(opened("r1"))
    await world.delivery(other)._round()
    assert not other.to_ask()
    assert mine.opened("r1")


async def test_what_nobody_knows_is_lost_when_all_had_time_to_hear_of_it(tmp_path):
    """A record without counts comes after a while, and not before."""
    world, dead = World(), spool_in(tmp_path)
    dead.begin(opened("r1"))
    kill(dead)
    spool = spool_in(tmp_path)
    delivery = world.delivery(spool)
    await delivery._round()
    await delivery._round()
    assert not world.recorded
    world.now += PATIENCE_S
    await delivery._round()
    await delivery._round()
    assert not world.recorded["r1"].HasField("prompt_tokens")


async def test_what_still_runs_is_asked_about_until_it_ended(tmp_path):
    """A request that holds a lease is not lost, however long it takes."""
    world, dead = World(), spool_in(tmp_path)
    world.running = {"r1"}
    dead.begin(opened("r1"))
    kill(dead)
    spool = spool_in(tmp_path)
    delivery = world.delivery(spool)
    for _ in range(3):
        await delivery._round()
        world.now += PATIENCE_S
    assert not world.recorded
    world.running = set()
    world.ran = {"r1": 5}
    await delivery._round()
    await delivery._round()
    assert world.recorded["r1"].completion_tokens == 5


async def test_a_record_that_is_refused_holds_up_no_other(tmp_path):
    """The one that the auth service will never take is given up, all others arrive."""
    world, spool = World(), spool_in(tmp_path)
    world.refuses = {"r3"}
    for number in range(8):
        spool.begin(opened(f"r{number}"))
        spool.end(record_of(spool.opened(f"r{number}")))
    await world.delivery(spool)._round()
    assert {f"r{number}" for number in range(8)} - {"r3"} == set(world.recorded)
    assert spool.next_batch(10) == []


async def test_a_full_spool_begins_nothing_and_ends_everything(tmp_path):
    """Over its limit it promises nothing more, until its records are delivered."""
    world, spool = World(), spool_in(tmp_path, limit_bytes=1000)
    for number in count():
        if spool.problem:
            break
        spool.begin(opened(f"r{number}"))
    with pytest.raises(SpoolError, match="wait for the auth service"):
        spool.begin(opened("late"))
    for request_id in [f"r{each}" for each in range(number)]:
        spool.end(record_of(spool.opened(request_id)))
    await world.delivery(spool)._round()
    assert len(world.recorded) == number
    assert spool.problem is None
    spool.begin(opened("late"))


async def test_a_disk_without_room_loses_nothing(tmp_path, monkeypatch):
    """Ends that cannot be written are delivered from memory, and lines that were cut are passed."""
    world, spool = World(), spool_in(tmp_path)
    write = os.write
    spool.begin(opened("r1"))
    spool.begin(opened("r2"))
    monkeypatch.setattr(os, "write", lambda where, data: write(where, data[: len(data) // 2]))
    spool.end(record_of(spool.opened("r1"), tokens=6))
    monkeypatch.setattr(os, "write", no_room)
    spool.end(Void(request_id="r2"))
    with pytest.raises(SpoolError, match="cannot be recorded"):
        spool.begin(opened("r3"))
    spool.repair()
    assert spool.problem
    await world.delivery(spool)._round()
    assert world.recorded["r1"].completion_tokens == 6

    monkeypatch.setattr(os, "write", write)
    spool.repair()
    assert spool.problem is None
    spool.begin(opened("r4"))
    spool.end(record_of(spool.opened("r4")))
    kill(spool)
    heir = spool_in(tmp_path)
    await world.delivery(heir)._round()
    heir.close()
    assert set(world.recorded) == {"r1", "r4"}
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_had_is_a_problem_until_it_can(tmp_path):
    """Nothing is begun without a folder, and all is well once there is one."""
    (tmp_path / "file").write_text("")
    spool = Spool(tmp_path / "file" / "spool", "aa", limit_bytes=LIMIT)
    spool.repair()
    assert "Not a directory" in spool.problem
    with pytest.raises(SpoolError):
        spool.begin(opened("r1"))
    (tmp_path / "file").unlink()
    spool.repair()
    assert spool.problem is None
    spool.close()


async def test_where_no_file_can_be_opened_more_nothing_ends(tmp_path, monkeypatch):
    """What cannot be flushed for lack of files is a problem, and is flushed once there are some."""
    flushed, fsync = [], os.fsync
    spool = spool_in(tmp_path)
    spool.begin(opened("r1"))
    monkeypatch.setattr(os, "dup", no_files)
    await spool.sync()
    assert os.strerror(errno.EMFILE) in (spool.problem or "")
    monkeypatch.undo()
    monkeypatch.setattr(os, "fsync", lambda where: flushed.append(os.fstat(where)) or fsync(where))
    spool.repair()
    await spool.sync()
    assert spool.problem is None
    assert os.fstat(spool._descriptor) in flushed
    spool.close()


async def test_a_fault_keeps_nobody_from_the_next_round(tmp_path):
    """The spool is looked after again and again, also where that has failed by a fault of ours."""
    spool, faults, synced = spool_in(tmp_path), [KeyError("r1")], asyncio.Event()

    async def sync():
        if faults:
            raise faults.pop()
        synced.set()

    spool.sync = sync
    metrics = Metrics(spool_limit_bytes=LIMIT)
    delivery = UsageDelivery(spool, World(), metrics, interval_s=0)
    delivery.start()
    await synced.wait()
    await delivery.stop()


async def test_spoiled_lines_are_passed_over_and_counted(tmp_path):
    """A disk that lies costs the lines that it spoiled, and no other."""
    world, dead = World(), spool_in(tmp_path, segment_bytes=LIMIT)
    for number in range(3):
        dead.begin(opened(f"r{number}"))
        dead.end(record_of(dead.opened(f"r{number}")))
    path = dead._segments[0].path
    kill(dead)
    lines = path.read_bytes().split(b"\n")
    spoiled = [
        each[:20] + b"\0" + each[21:] if b'closed","request_id":"r1' in each else each
        for each in lines
    ]
    path.write_bytes(b"\n".join(spoiled))
    world.ran = {"r1": 8}
    spool = spool_in(tmp_path)
    orphan = spool.adopt()
    assert len(orphan.next_batch(10)) == 2
    assert orphan.corrupt == 1
    for _ in range(2):
        await world.delivery(spool)._round()
    assert world.recorded["r1"].completion_tokens == 8


async def test_further_starts_are_known_to_the_heir(tmp_path):
    """Whoever adopts knows which generations were started."""
    dead = spool_in(tmp_path)
    dead.begin(opened("r1", choices=3))
    dead.started(Started(request_id="r1", generation=2))
    kill(dead)
    spool = spool_in(tmp_path)
    await World().delivery(spool)._round()
    (request,) = spool.to_ask()
    assert request.generations == (0, 2)
    assert request.ending.status == Status.PARTIAL


def test_what_cannot_be_told_as_a_line_stays_open(tmp_path, monkeypatch):
    """A fault of ours in writing an end does not make a request forgotten."""
    spool = spool_in(tmp_path)
    spool.begin(opened("r1"))
    monkeypatch.setattr("edge.usage_spool.encode", None)
    with pytest.raises(TypeError):
        spool.end(record_of(opened("r1")))
    assert spool.opened("r1") == opened("r1")


@pytest.mark.parametrize("failures", [TOLD_AT - 1, TOLD_AT + 3])
async def test_an_outage_is_told_of_once_it_lasts(tmp_path, monkeypatch, failures):
    """A restart of the auth service is no news, and what lasts longer is told of once."""
    monkeypatch.setattr("edge.usage_delivery.backoff_s", lambda _: 0)
    world = World()
    spool = spool_in(tmp_path)
    spool.begin(opened("r1"))
    spool.end(record_of(opened("r1")))
    world.breaks = "before"
    with structlog.testing.capture_logs() as logged:
        delivering = asyncio.create_task(world.delivery(spool)._deliver())
        while world.calls < failures:
            await asyncio.sleep(0)
        world.breaks = None
        while not world.recorded:
            await asyncio.sleep(0)
        delivering.cancel()
    told = [line["event"] for line in logged]
    assert told == (["usage_delivery_failed"] if failures > TOLD_AT else [])


def test_files_are_for_their_owner_only(tmp_path):
    """Neither folder nor files can be read by others."""
    folder = tmp_path / "spool"
    spool = spool_in(folder)
    spool.begin(opened("r1"))
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    assert isinstance(record_of(opened("r1")), Closed)


def no_room(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_files(*_):
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
