"""All sessions with edges and workers, and what there is between them: books, models, terms."""

from functools import partial

from fastrun.service.tracing import NO_TRACER, Tracer
from scheduler.admission import Admission
from scheduler.breaker import BreakerPolicy
from scheduler.config import Config
from scheduler.edge_sessions import EdgeSessions
from scheduler.edges import Edges
from scheduler.faults import do_all
from scheduler.fleet import Fleet
from scheduler.leader import Leadership
from scheduler.models import Models
from scheduler.ports import Chance, Recorder
from scheduler.terms import Terms
from scheduler.usage_log import UsageLog
from scheduler.worker_sessions import WorkerSessions


class Sessions:
    """One scheduler without clock and I/O; times are monotonic seconds."""

    def __init__(
        self,
        config: Config,
        *,
        now: float,
        chance: Chance,
        recorder: Recorder,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.fleet = fleet = Fleet(
            suspect_after_s=config.suspect_after_s,
            gone_after_s=config.gone_after_s,
            forget_after_s=config.forget_after_s,
            breaker=BreakerPolicy(failures=config.breaker_failures, open_s=config.breaker_open_s),
        )
        self.edges = edges = Edges(gone_after_s=config.gone_after_s)
        self.leader = leader = Leadership(chance.new_key, contested=bool(config.database_url))
        self.usage_log = UsageLog()
        self.admission = admission = Admission(
            config,
            fleet=fleet,
            edges=edges,
            leader=leader,
            usage_log=self.usage_log,
            chance=chance,
            recorder=recorder,
            tracer=tracer,
        )
        self.models = models = Models(fleet=fleet, edges=edges, admission=admission, leader=leader)
        self.terms = terms = Terms(
            fleet=fleet,
            edges=edges,
            admission=admission,
            models=models,
            leader=leader,
            warm_up_s=config.warm_up_s,
            now=now,
        )
        self.of_edges = EdgeSessions(edges=edges, admission=admission, terms=terms)
        self.of_workers = WorkerSessions(
            fleet=fleet,
            edges=edges,
            admission=admission,
            models=models,
            terms=terms,
            usage_log=self.usage_log,
        )

    def next_due(self) -> float | None:
        """Return when tick() has something to do next."""
        times = (
            self.admission.queue.next_deadline(),
            self.edges.next_due(),
            self.fleet.next_due(),
            self.terms.next_due(),
        )
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float) -> None:
        """Do what is due by now.

        Raises:
            ExceptionGroup: some of it failed, by faults of ours; all else has been done.
        """
        steps = (
            self.terms.tick,
            self.of_edges.expire,
            self.of_workers.expire,
            self.admission.reopen,
            self.admission.expire,
        )
        do_all(partial(step, now) for step in steps)

    def close(self) -> None:
        """End all sessions."""
        self.of_edges.close()
        self.of_workers.close()
