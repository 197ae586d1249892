"""What must hold in a world at any time."""

from hypothesis.stateful import invariant

from fleet_model.peers import MODEL


class Invariants:
    """Looked at after every step."""

    def on_time(self):
        return [each.sessions for each in self.schedulers if not (each.frozen or each.late)]

    @invariant()
    def no_slot_is_held_twice(self):
        for worker in self.workers:
            assert len(worker.running) <= worker.slots
        sessions, book = self.leader, self.leader.admission.leases
        for worker in self.workers:
            if worker.displaced or worker.term != sessions.leader.term:
                continue
            assert book.held(worker.instance_id) <= worker.slots
            known = sessions.fleet.instance(worker.instance_id)
            if known is not None and known.confirmed and known.link in worker.wires.values():
                unbooked = [each for each in worker.running if book.get(each) is None]
                assert not unbooked, "a running lease is not booked"

    @invariant()
    def who_stands_by_does_nothing(self):
        for sessions in (each.sessions for each in self.schedulers):
            if not sessions.leader.leads:
                assert not len(sessions.admission.queue)
                assert not len(sessions.admission.leases)

    @invariant()
    def nobody_waits_beside_a_free_slot(self):
        for sessions in self.on_time():
            admission = sessions.admission
            for waiting in admission.queue.line(MODEL):
                for worker in sessions.fleet.workers():
                    ids = {worker.worker_id, worker.instance_id}
                    out = ids & waiting.excluded or not worker.confirmed
                    barred = (
                        out or not worker.takes_requests or worker.breaker.opens_until is not None
                    )
                    assert barred or admission.leases.held(worker.instance_id) >= worker.slots

    @invariant()
    def nobody_waits_past_the_deadline(self):
        for sessions in self.on_time():
            line = sessions.admission.queue.line(MODEL)
            assert all(waiting.deadline > self.now for waiting in line)

    @invariant()
    def each_generation_waits_at_one_place(self):
        for sessions in (each.sessions for each in self.schedulers):
            line = sessions.admission.queue.line(MODEL)
            wishes = [(w.edge_id, w.request_id, each) for w in line for each in w.generations]
            assert all(waiting.generations for waiting in line)
            assert len(set(wishes)) == len(wishes) == line.slots
            assert line.requests == len({wish[:2] for wish in wishes})

    @invariant()
    def what_waits_or_runs_counts_as_concurrent(self):
        for sessions in (each.sessions for each in self.schedulers):
            admission = sessions.admission
            counted = {waiting.request_id for waiting in admission.queue.line(MODEL)}
            for worker in sessions.fleet.workers():
                if not worker.gone:
                    leases = admission.leases.of_instance(worker.instance_id)
                    counted |= {lease.request_id for lease in leases if lease.request_id}
            assert admission.limits.in_flight() == counted
