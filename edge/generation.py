"""Runs the generations of a request: each gets a slot, starts on that worker, is tried again.

What a worker has begun and lost goes on at another one, with the tokens that were received. Where
that cannot be it begins anew, unless its client may have seen a part. None waits for another one;
when one fails for good the others are aborted, and the request has failed.
"""

import asyncio
import time
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec
import structlog

from edge import rate_limits
from edge.attempt import Attempt, Output
from edge.caller import Caller
from edge.errors import BROKEN_OFF, TOO_LONG, Refusal
from edge.exchange import Exchange
from edge.generate_request import Batch
from edge.metering import Meter
from edge.metrics import Metrics
from edge.progress import Progress
from edge.retries import AttemptError, Retries
from edge.scheduler_link import SchedulerLink
from edge.sse import FINISH_REASONS
from edge.turns import Grant, Turn, Wish
from edge.usage_lines import Status
from edge.worker_link import Workers
from fastrun.service.errors import ServiceError, reason_name
from fastrun.service.tracing import Tracer
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import Finished

log = structlog.get_logger()

# What no other worker would do better; all else only says that this one could not go on.
_LASTING = frozenset({ErrorReason.ERROR_REASON_INVALID_REQUEST, ErrorReason.ERROR_REASON_INTERNAL})


@dataclass(frozen=True, slots=True)
class Times:
    """How long a generation may take, in seconds; edge.config says what each is."""

    queue_s: float
    first_delta_s: float
    silence_s: float
    resume_s: float
    whole_s: float
    early_headers_s: float


class Job(msgspec.Struct, frozen=True):
    """The generations of one request, to be run."""

    caller: Caller
    batch: Batch
    exchange: Exchange
    """Told what its log line and its headers will say."""
    meter: Meter
    """Told what its usage record will say."""
    lost: set[str] = msgspec.field(default_factory=set)
    """Ids of the instances that died with one of them."""

    def note_counts(self) -> None:
        """Note for the log what was used, as far as is known once it ended, failed, or was left."""
        if counts := self.meter.counts:
            self.exchange.facts.update(
                prompt_tokens=counts.prompt,
                cached_tokens=counts.cached,
                completion_tokens=counts.completion,
            )


class Generations:
    """Runs generations on the fleet."""

    def __init__(
        self,
        scheduler: SchedulerLink,
        workers: Workers,
        times: Times,
        metrics: Metrics,
        tracer: Tracer,
    ) -> None:
        self._scheduler = scheduler
        self._workers = workers
        self._times = times
        self._metrics = metrics
        self._tracer = tracer

    async def run(self, job: Job, output: Output) -> list[Finished]:
        """Run all to their ends. Cancelling this call gives up their place or aborts them at once.

        Returns:
            How each ended, by index.

        Raises:
            ServiceError: no worker ran one to its end.
            Refusal: it took too long, or one broke off when its client had seen a part.
        """
        turn = self._ask(job, tuple(range(job.batch.size)), self._retries(job))
        status, finish = Status.FAILED, ""
        try:
            async with asyncio.timeout(self._times.whole_s):
                if job.batch.size == 1:
                    ended = [await self._run_one(job, 0, turn, output)]
                else:
                    ended = await self._run_all(job, turn, output)
            status, finish = Status.COMPLETED, FINISH_REASONS[ended[0].reason]
        except TimeoutError:
            raise Refusal(502, TOO_LONG, reason="too_long") from None
        except asyncio.CancelledError:
            status = Status.CANCELLED
            raise
        finally:
            self._scheduler.give_up(turn)
            job.meter.end(job.exchange.ending(status, finish))
        return ended

    async def _run_all(self, job: Job, turn: Turn, output: Output) -> list[Finished]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._run_one(job, index, turn, output))
                    for index in range(job.batch.size)
                ]
        except BaseExceptionGroup as failed:  # the first is why all others were ended
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _run_one(self, job: Job, index: int, turn: Turn, output: Output) -> Finished:
        progress = Progress()
        try:
            return await self._carry_on(job, index, turn, progress, output)
        except ServiceError as error:
            if progress.has_begun and not output.restart(index):
                raise _broken_off(error) from None
            raise

    async def _carry_on(
        self, job: Job, index: int, turn: Turn, progress: Progress, output: Output
    ) -> Finished:
        """Try until a worker brings it to its end, or it is known that none will."""
        retries = self._retries(job)
        grant = await self._slot(job, index, turn, retries)
        while True:
            started_at = time.monotonic()
            try:
                finished = await self._attempt(job, index, grant, progress, output)
            except AttemptError as failure:
                held_s = time.monotonic() - started_at
                pause_s = retries.after_attempt(failure, grant.worker_id, grant.instance_id, held_s)
                if progress.has_begun and not progress.can_resume:
                    if not output.restart(index):
                        raise failure.error from None
                    progress.restart()
                self._tell(job, grant, failure, progress)
            else:
                output.on_finished(index, finished)
                return finished
            await asyncio.sleep(pause_s)
            grant = await self._next_slot(job, index, retries, progress)

    def _tell(self, job: Job, grant: Grant, failure: AttemptError, progress: Progress) -> None:
        """Say why a generation is tried again, or goes on elsewhere."""
        reason = reason_name(failure.error.detail.reason)
        if progress.can_resume and (failure.ran or failure.died):
            job.exchange.note_resumed()
            self._metrics.resumed(reason)
            log.info(
                "generation_resumed",
                worker_id=grant.worker_id,
                reason=reason,
                tokens=len(progress.token_ids),
            )
        else:
            job.exchange.note_retried()
            self._metrics.retried(reason)
            log.info("generation_retried", worker_id=grant.worker_id, reason=reason)

    async def _next_slot(self, job: Job, index: int, retries: Retries, progress: Progress) -> Grant:
        """Get a slot for a generation that had one before."""
        while True:
            again = self._ask(job, (index,), retries, resumed_tokens=len(progress.token_ids))
            try:
                return await self._slot(job, index, again, retries)
            except ServiceError as error:
                pause_s = retries.after_rejection(error)
            finally:
                self._scheduler.give_up(again)
            await asyncio.sleep(pause_s)

    def _retries(self, job: Job) -> Retries:
        return Retries(
            queue_timeout_s=self._times.queue_s,
            resume_timeout_s=self._times.resume_s,
            lost=job.lost,
        )

    def _ask(
        self,
        job: Job,
        generations: tuple[int, ...],
        retries: Retries,
        *,
        resumed_tokens: int = 0,
    ) -> Turn:
        return self._scheduler.ask(
            Wish(
                request_id=job.batch.common.request_id,
                caller=job.caller,
                model=job.batch.common.model,
                queue_timeout_s=retries.timeout_s,
                waited_s=retries.waited_s,
                excluded_worker_ids=retries.excluded,
                front=retries.front,
                generations=generations,
                choices=job.batch.choices,
                token_estimate=job.batch.token_estimate,
                prefix=job.batch.prefix,
                resumed_tokens=resumed_tokens,
                resume=retries.resumes,
                traceparent=job.exchange.span.traceparent,
            )
        )

    async def _slot(self, job: Job, index: int, turn: Turn, retries: Retries) -> Grant:
        try:
            await turn.come(index)
        finally:
            retries.waited_s = turn.waited_s(time.monotonic())
            if not retries.resumes:
                job.exchange.facts["queued_ms"] = round(retries.waited_s * 1000, 1)
            if turn.rate_limit is not None:
                job.exchange.rate_limit = rate_limits.headers(turn.rate_limit)
        self._metrics.queued(job.exchange.model, retries.waited_s)
        return turn.take(index)

    async def _attempt(
        self, job: Job, index: int, grant: Grant, progress: Progress, output: Output
    ) -> Finished:
        job.exchange.facts["worker_id"] = grant.worker_id
        with ExitStack() as undone:
            # Be it a fault of ours: no Start was written, so the slot is free.
            undone.callback(self._scheduler.release, grant)
            request = job.batch.request(index, grant.lease, resume_token_ids=progress.token_ids)
            span = self._tracer.begin(job.exchange.span, time.monotonic())
            request.traceparent = span.traceparent
            tally = job.meter.attempt(index, grant.worker_id)
            undone.callback(tally.lost, was_sent=False)
            attempt = Attempt(
                index,
                output,
                tally,
                progress,
                early_headers_s=self._times.early_headers_s,
                first_delta_s=self._times.first_delta_s,
                silence_s=self._times.silence_s,
            )
            undone.callback(attempt.close)
            call = self._workers.start(grant, request, attempt, gathers=not output.is_read_along)
            undone.pop_all()
        failure = ""
        try:
            return await attempt.ended
        except AttemptError as error:
            failure = reason_name(error.error.detail.reason)
            if error.is_fault:
                self._scheduler.failed(grant)
            raise
        finally:
            attempt.close()
            call.abort()  # nothing is sent when it has ended by itself
            facts = {"worker_id": grant.worker_id, "generation": index, "failure": failure}
            self._tracer.end(span, "attempt", time.monotonic(), facts, failed=bool(failure))


def _broken_off(error: ServiceError) -> Exception:
    """What the client is told of a failure in mid-stream: its own fault, or a bug, stays one."""
    if error.detail.reason in _LASTING:
        return error
    return Refusal(502, BROKEN_OFF, reason="broken_off")
