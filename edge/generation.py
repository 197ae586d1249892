"""Runs one generation: gets a slot, starts it on that worker, and tries again where it may."""

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol

import structlog

from edge.errors import BROKEN_OFF, TOO_LONG, Refusal
from edge.metrics import Metrics
from edge.retries import AttemptError, Retries
from edge.scheduler_link import Grant, SchedulerLink, Wish
from edge.sse import FINISH_REASONS
from edge.worker_link import Workers
from fastrun.service.errors import ServiceError
from fastrun.v1.error_pb2 import ErrorDetail, ErrorReason
from fastrun.v1.generation_pb2 import Accepted, Delta, Finished, GenerateRequest

log = structlog.get_logger()


class Output(Protocol):
    """Where what is generated goes."""

    def begin(self) -> None:
        """Show the client that its request is being worked on. Idempotent."""

    def on_delta(self, delta: Delta) -> None:
        """More was generated."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long a generation may take, in seconds; edge.config says what each is."""

    queue_s: float
    first_delta_s: float
    silence_s: float
    whole_s: float
    early_headers_s: float


@dataclass(slots=True)
class Job:
    """One generation to run, and what became of it."""

    account_id: str
    request: GenerateRequest
    """All but the lease."""
    facts: dict[str, object]
    """What the log line of the request will say."""


class Generations:
    """Runs generations on the fleet."""

    def __init__(
        self, scheduler: SchedulerLink, workers: Workers, times: Times, metrics: Metrics
    ) -> None:
        self._scheduler = scheduler
        self._workers = workers
        self._times = times
        self._metrics = metrics

    async def run(self, job: Job, output: Output) -> Finished:
        """Run one to its end. Cancelling this call gives up its place, or aborts it, at once.

        Raises:
            ServiceError: no worker ran it to its end.
            Refusal: it took too long, or broke off after its first delta.
        """
        try:
            async with asyncio.timeout(self._times.whole_s):
                return await self._try_workers(job, output)
        except TimeoutError:
            raise Refusal(502, TOO_LONG) from None

    async def _try_workers(self, job: Job, output: Output) -> Finished:
        retries = Retries(queue_timeout_s=self._times.queue_s)
        while True:
            grant = await self._acquire(job, retries)
            started_at = time.monotonic()
            try:
                return await self._attempt(job, grant, output)
            except AttemptError as failure:
                held_s = time.monotonic() - started_at
                pause_s = retries.after_attempt(failure, grant.worker_id, held_s)
                reason = ErrorReason.Name(failure.error.detail.reason)
                self._metrics.retried(reason)
                log.info("generation_retried", worker_id=grant.worker_id, reason=reason)
            await asyncio.sleep(pause_s)

    async def _acquire(self, job: Job, retries: Retries) -> Grant:
        asked_at = time.monotonic()
        wish = Wish(
            request_id=job.request.request_id,
            account_id=job.account_id,
            model=job.request.model,
            queue_timeout_s=retries.queue_timeout_s,
            waited_s=retries.waited_s,
            excluded_worker_ids=retries.excluded,
            front=retries.front,
        )
        try:
            grant = await self._scheduler.acquire(wish)
        except ServiceError as error:
            raise retries.after_rejection(error) from None
        finally:
            retries.waited_s += time.monotonic() - asked_at
            job.facts["queued_ms"] = round(retries.waited_s * 1000, 1)
        self._metrics.queued(retries.waited_s)
        return grant

    async def _attempt(self, job: Job, grant: Grant, output: Output) -> Finished:
        job.facts["worker_id"] = grant.worker_id
        job.request.lease = grant.lease
        attempt = _Attempt(output, self._times.early_headers_s)
        call = self._workers.start(grant, job.request, attempt)
        try:
            return await self._watch(attempt)
        except AttemptError:
            if attempt.has_delta:
                raise Refusal(502, BROKEN_OFF) from None
            raise
        finally:
            attempt.close()
            call.abort()  # nothing is sent when it has ended by itself

    async def _watch(self, attempt: "_Attempt") -> Finished:
        """Wait for the end; too long a silence is one."""
        while True:
            limit_s = self._times.silence_s if attempt.has_delta else self._times.first_delta_s
            left_s = attempt.moved_at + limit_s - time.monotonic()
            if left_s <= 0:
                raise AttemptError(
                    ServiceError(ErrorReason.ERROR_REASON_ENGINE_FAILED, "the worker was silent")
                )
            # The first delta changes the limit, so look again by then.
            wake_s = min(left_s, self._times.silence_s)
            ended, _ = await asyncio.wait({attempt.ended}, timeout=wake_s)
            if ended:
                return attempt.ended.result()


class _Attempt:
    """One try on one worker; the sink of its events."""

    def __init__(self, output: Output, early_headers_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._output = output
        self._early = loop.call_later(early_headers_s, output.begin)
        self.ended: asyncio.Future[Finished] = loop.create_future()
        self.has_delta = False
        self.moved_at = time.monotonic()

    def on_accepted(self, accepted: Accepted) -> None:
        """Nothing is owed to the client yet: what was accepted may still fail."""

    def on_delta(self, delta: Delta) -> None:
        """Pass on, unless nobody wants it any more."""
        if not self.ended.done():
            self.has_delta = True
            self.moved_at = time.monotonic()
            self._output.on_delta(delta)

    def on_finished(self, finished: Finished) -> None:
        """End well, or be told that the worker gave up."""
        if finished.reason not in FINISH_REASONS:
            error = ServiceError(ErrorReason.ERROR_REASON_ENGINE_FAILED, "the worker gave up")
            self._fail(AttemptError(error))
        elif not self.ended.done():
            self.ended.set_result(finished)

    def on_failed(self, error: ErrorDetail) -> None:
        """End with the worker's reason."""
        self._fail(AttemptError(ServiceError.of(error)))

    def on_lost(self, *, was_sent: bool) -> None:
        """End with the worker, or the way to it, gone."""
        error = ServiceError(ErrorReason.ERROR_REASON_ENGINE_FAILED, "the worker was lost")
        self._fail(AttemptError(error, died=was_sent))

    def close(self) -> None:
        """Take nothing more."""
        self._early.cancel()
        self.ended.cancel()

    def _fail(self, error: AttemptError) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # seen, also when nobody waits for it any more
