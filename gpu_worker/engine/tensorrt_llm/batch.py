"""The requests that TensorRT-LLM has, and those that wait for a slot of it."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import structlog

from gpu_worker.engine.protocol import EngineDeadError, EngineError, EngineStats, UnsupportedError
from gpu_worker.engine.tensorrt_llm import faults
from gpu_worker.engine.tensorrt_llm.iterations import Iterations
from gpu_worker.engine.tensorrt_llm.library import Library
from gpu_worker.engine.tensorrt_llm.request import Request
from gpu_worker.engine.tensorrt_llm.sampling import keywords
from gpu_worker.engine.tensorrt_llm.watch import Progress, fatal_error

log = structlog.get_logger(__name__)

# Requests that the engine may hold beyond the slots: those that it has been told to abort and has
# not confirmed. A full engine has been seen to hang.
SPARE = 8


class Batch:
    """Gives the engine as many requests as there are slots, and reads what comes of each."""

    def __init__(
        self,
        llm: Any,
        library: Library,
        *,
        slots: int,
        progress: Progress,
        abort_limit_s: float,
        on_death: Callable[[str], None],
    ) -> None:
        """Begin with nothing.

        Args:
            llm: a ``tensorrt_llm.LLM``, made for ``slots`` + SPARE requests at once.
            library: what it was made by.
            slots: how many requests it is given at once.
            progress: told what happens.
            abort_limit_s: after it, the slot of an aborted request is free though the engine has
                not confirmed.
            on_death: told, with the reason, what only a dead engine does; calls ``fail_all``.
        """
        self._llm = llm
        self._library = library
        self._slots = slots
        self._progress = progress
        self._abort_limit_s = abort_limit_s
        self._on_death = on_death
        self._death: str | None = None
        self._running: set[Request] = set()
        self._waiting: deque[Request] = deque()
        self._abandoned: set[Request] = set()
        self._iterations = Iterations()
        self._statistics: asyncio.Task[None] | None = None
        self.forget_counts()

    def forget_counts(self) -> None:
        """Count from here on."""
        self._prompt_tokens = self._cached_tokens = self._completion_tokens = 0

    def add(self, request: Request) -> None:
        """Run a request when a slot is free; what becomes of it goes to its stream."""
        self._waiting.append(request)
        self._admit()

    async def release(self, request: Request) -> None:
        """Return when the engine holds nothing of a request, or has not said so for too long."""
        if request in self._waiting:
            self._waiting.remove(request)
        # What has arrived is read first: it may be the end.
        await asyncio.sleep(0)
        if request.reader is None or request.reader.done():
            return
        self._abort(request)
        await asyncio.wait([request.reader], timeout=self._abort_limit_s)
        if not request.reader.done() and self._death is None:
            self._abandon(request)

    def abort_all(self) -> None:
        """Tell the engine to stop all that runs."""
        for request in tuple(self._running):
            self._abort(request)

    def fail_all(self, reason: str) -> None:
        """Fail what runs and waits, and whatever comes: the engine is no more."""
        self._death = reason
        for request in (*self._running, *self._waiting):
            request.stream.fail(EngineDeadError(reason))
        self._waiting.clear()
        readers = [request.reader for request in (*self._running, *self._abandoned)]
        for task in (*readers, self._statistics):
            if task is not None:
                task.cancel()

    def stats(self) -> EngineStats:
        """Read the counters; those of the cache are a step or two old."""
        begun = (*self._waiting, *self._running)
        in_flight = self._running or self._abandoned
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_blocks_used=self._iterations.kv_blocks_used if in_flight else 0,
            kv_blocks_total=self._iterations.kv_blocks_total,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            completion_tokens=self._completion_tokens,
            preemptions=0,  # the library does not tell of any
            prefill_tokens=sum(request.prompt_tokens for request in begun if not request.told),
            context_tokens=sum(
                request.prompt_tokens + request.told for request in self._running if request.told
            ),
        )

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._slots and self._death is None:
            request = self._waiting.popleft()
            self._progress.began()  # before: the call itself may never return
            try:
                request.result = self._submit(request)
            except Exception as error:  # noqa: BLE001 - sorted into those of the request and others
                self._progress.ended()
                self._fail(request, error, submitting=True)
                continue
            self._running.add(request)
            request.reader = asyncio.create_task(self._read(request), name="generation")

    def _submit(self, request: Request) -> Any:
        guide = None
        if request.guide is not None:
            guide = self._library.guided_decoding_params(grammar=request.guide)
        chosen = keywords(
            request.sampling,
            self._library.features,
            prompt_tokens=request.prompt_tokens - request.resumed,
            resumed=request.resumed,
            guide=guide,
        )
        # By keyword alone: new parameters have come in between. A new SamplingParams each time: the
        # library writes to it.
        return self._llm.generate_async(
            inputs={"prompt_token_ids": request.token_ids},
            sampling_params=self._library.sampling_params(**chosen),
            streaming=True,
            cache_salt=request.cache_salt or None,
        )

    async def _read(self, request: Request) -> None:
        """Read a result to its end, whoever waits for it or has left."""
        try:
            async for _ in request.result:
                self._progress.moved()
                self._read_statistics()
                self._count(request, is_first=_taken(request))
            if not request.ended:
                raise EngineError("the engine ended this request without a reason")
        except EngineError as error:
            request.stream.fail(error)
            self._abort(request)  # it has not ended it: we have
        except asyncio.CancelledError:
            if self._death is None:  # it was not for us
                self._on_death("the engine's library cancelled the reader of a request")
            raise
        except Exception as error:  # noqa: BLE001 - sorted into those of the request and others
            self._fail(request, error, submitting=False)
        finally:
            self._let_go(request)

    def _count(self, request: Request, *, is_first: bool) -> None:
        self._completion_tokens += request.new_tokens
        if is_first:
            self._prompt_tokens += request.prompt_tokens
            self._cached_tokens += request.stream.cached_tokens

    def _fail(self, request: Request, error: Exception, *, submitting: bool) -> None:
        fault = faults.sort(error, submitting=submitting, request_error=self._library.request_error)
        if fatal_error(self._llm) is not None and not isinstance(fault, EngineDeadError):
            fault = EngineDeadError("the engine's executor has failed")
        request.stream.fail(fault)
        if isinstance(fault, EngineDeadError):
            self._on_death(str(fault))
        elif isinstance(fault, UnsupportedError):
            # What is let through to the engine should have been checked before.
            log.warning("engine_refused_request", kind=type(error).__name__)

    def _abort(self, request: Request) -> None:
        """Abort once, and only what has not ended: the library never forgets the others."""
        try:
            request.abort()
        except Exception as error:  # noqa: BLE001 - an engine that cannot abort is none
            self._on_death(f"the engine cannot abort: {type(error).__name__}")

    def _abandon(self, request: Request) -> None:
        self._running.discard(request)
        self._abandoned.add(request)
        log.warning("engine_holds_aborted_request", count=len(self._abandoned))
        if len(self._abandoned) > SPARE:
            self._on_death(f"the engine has not ended {len(self._abandoned)} aborted requests")
        self._admit()

    def _let_go(self, request: Request) -> None:
        """Note that the engine holds nothing of a request any more."""
        self._running.discard(request)
        self._abandoned.discard(request)
        self._progress.ended()
        self._admit()

    def _read_statistics(self) -> None:
        """Begin to read statistics, which there are none of before a first token."""
        if self._statistics is None:
            reading = self._iterations.read(self._llm, on_progress=self._progress.moved)
            self._statistics = asyncio.create_task(reading, name="engine-statistics")


def _taken(request: Request) -> bool:
    """Take what a step brought. An output of a form that we do not know is no dead engine."""
    try:
        return request.take()
    except EngineError:
        raise
    except Exception as error:
        log.exception("engine_output_unreadable")
        raise EngineError("the engine's output cannot be read") from error
