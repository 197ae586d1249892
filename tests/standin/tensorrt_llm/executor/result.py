"""What comes of a request: one object, which grows in place."""

import asyncio
import dataclasses
from contextlib import suppress


@dataclasses.dataclass(slots=True)
class Logprob:
    """Of one token."""

    logprob: float
    rank: int | None = None


@dataclasses.dataclass(slots=True)
class CompletionOutput:
    """One sequence, from its first token on."""

    index: int
    text: str = ""
    token_ids: list = dataclasses.field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: object = None
    _last_token_ids_len: int = 0

    @property
    def token_ids_diff(self):
        raise AssertionError("differences are wrong where lists shrink: keep a cursor")


class GenerationResult:
    """Yields itself at every step."""

    def __init__(self, request_id, executor, loop):
        self.request_id = request_id
        self.cached_tokens = 0
        self._executor = executor
        self._loop = loop
        self._output = CompletionOutput(0)
        self._queue = asyncio.Queue()
        self._done = False
        self._has_reader = False

    @property
    def outputs(self):
        return [self._output]

    @property
    def finished(self):
        return self._done

    def abort(self):
        """Ask the executor to stop; it forgets only those that had not ended."""
        assert asyncio.get_running_loop() is self._loop
        self._executor.abort(self.request_id, is_late=self._done)

    def __aiter__(self):
        assert not self._has_reader, "a result has one reader"
        self._has_reader = True
        return self

    async def __anext__(self):
        if self._done:
            raise StopAsyncIteration
        step = await self._queue.get()
        if isinstance(step, BaseException):
            raise step  # and `finished` stays False
        self._take(**step)
        return self

    def put(self, step):
        """Hand over a step, from the executor's thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._queue.put_nowait, step)

    def _take(self, *, token_ids, logprobs, finish, stop, cut, cached):
        output = self._output
        self.cached_tokens = cached
        output.token_ids.extend(token_ids)
        output.logprobs.extend(logprobs)
        if finish:
            self._done = True
            output.finish_reason, output.stop_reason = finish, stop
            if cut:
                output.token_ids = output.token_ids[:-cut]  # another list, and logprobs stay
