"""Schedulers, the row in Postgres that they contend for, and the time that passes for all."""

from types import SimpleNamespace

from hypothesis import strategies as st

from scheduler.config import Config
from scheduler.placement import Placement
from scheduler.ports import Chance
from scheduler.sessions import Sessions

LEADS_S, POLL_S = 1.5, 0.5


class Row:
    """The row of the leader, as Postgres judges it."""

    def __init__(self):
        self.holder, self.term, self.expires_at = None, 0, 0.0
        self.is_there = True

    def hold(self, holder, least, now):
        """Return whether the holder has it now, and its term."""
        if holder != self.holder and now < self.expires_at:
            return False, self.term
        if holder != self.holder or self.term < least:
            self.term = max(self.term + 1, least)
        self.holder, self.expires_at = holder, now + LEADS_S
        return True, self.term


class SimScheduler:
    """One scheduler process: its decisions, and whether it moves."""

    def __init__(self, holder, sessions):
        self.holder = holder
        self.sessions = sessions
        self.frozen = False
        self.late = False
        """It has been frozen, and has not looked at the clock since."""

    def poll(self, row, now):
        leader = self.sessions.leader
        if self.frozen or not row.is_there:
            return
        ours, term = row.hold(self.holder, leader.least, now)
        if ours:
            self.sessions.terms.took_row(term, now)
        else:
            self.sessions.terms.refused_row(term, now)


class CheckedPlacement(Placement):
    """The scheduler's, and it may choose no worker that can take nothing."""

    def choose(self, model, prompt, excluded, now):
        worker = super().choose(model, prompt, excluded, now)
        if worker is not None:
            assert worker.card.model == model
            assert worker.confirmed, "a worker was chosen whose leases are not known"
            assert worker.takes_requests
            assert not {worker.worker_id, worker.instance_id} & excluded
            assert worker.held < worker.slots
        return worker


class Schedulers:
    """What happens to the schedulers of a world, and to its clock."""

    @property
    def leader(self):
        """The decisions of the one that leads with the highest term."""
        return max(self.schedulers, key=lambda each: each.sessions.leader.term).sessions

    def new_scheduler(self):
        chance = Chance(
            new_id=lambda: f"l{next(self.numbers)}",
            new_key=lambda: b"key%d" % next(self.numbers),
            random=lambda: 0.5,
            wall_clock=lambda: 1_800_000_000.0 + self.now,
        )
        recorder = SimpleNamespace(
            granted=lambda _model, _waited_s: None,
            rejected=lambda _reason: None,
            used=lambda _model, _prompt, _cached: None,
            failing=lambda _model: None,
        )
        config = Config(queue_per_slot=1, database_url=self.database_url)
        sessions = Sessions(config, now=self.now, chance=chance, recorder=recorder)
        return SimScheduler(f"s{next(self.numbers)}", sessions)

    def restart_scheduler(self, data):
        number = data.draw(st.integers(0, len(self.schedulers) - 1))
        old, new = self.schedulers[number], self.new_scheduler()
        self.schedulers[number] = new
        for peer in (*self.workers, *self.edges):
            peer.wires.pop(old, None)
        self.wires = [wire for wire in self.wires if wire.scheduler is not old]

    def freeze_scheduler(self, data):
        data.draw(st.sampled_from(self.schedulers)).frozen = True

    def thaw_scheduler(self, data):
        if frozen := [each for each in self.schedulers if each.frozen]:
            thawed = data.draw(st.sampled_from(frozen))
            thawed.frozen, thawed.late = False, True

    def depose(self, data):
        """The leader freezes until another one leads, and goes on with what it had before."""
        self.row.is_there = True
        for each in self.schedulers:
            each.frozen = each.sessions is self.leader
        frozen = [each for each in self.schedulers if each.frozen]
        self.traffic(data)
        self.pass_time(3.0)
        self.traffic(data)
        for each in frozen:
            each.frozen, each.late = False, True

    def toggle_postgres(self, _data):
        self.row.is_there = not self.row.is_there

    def poll(self):
        if self.database_url:
            for scheduler in self.schedulers:
                scheduler.poll(self.row, self.now)

    def wait(self, data):
        self.pass_time(data.draw(st.sampled_from([0.1, 1.0, 3.0, 6.0, 11.0])))

    def pass_time(self, seconds):
        until = self.now + seconds
        while True:
            moving = [each.sessions for each in self.schedulers if not each.frozen]
            dues = {each: each.next_due() for each in moving}
            dues = {each: due for each, due in dues.items() if due is not None}
            polls_at = self.polled_at + POLL_S if self.database_url else until
            due = min([polls_at, *dues.values()])
            if due >= until:
                break
            self.now = max(self.now, due)
            for each, at in dues.items():
                if at <= self.now:
                    self.tick(each)
            if polls_at <= self.now:
                self.polled_at = self.now
                self.poll()
        self.now = until
        for each in self.schedulers:
            if not each.frozen:
                self.tick(each.sessions)
                each.late = False

    def tick(self, sessions):
        """What is due by now is done."""
        sessions.tick(self.now)
