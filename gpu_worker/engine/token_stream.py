"""What an engine has made for one generation and nobody has taken yet."""

import asyncio

from gpu_worker.engine.grammar import GrammarError
from gpu_worker.engine.protocol import (
    EngineError,
    Finish,
    StepOutput,
    TokenLogprobs,
    UnsupportedError,
)


class TokenStream:
    """Gathers tokens until they are asked for; belongs to one event loop."""

    def __init__(self, *, with_logprobs: bool) -> None:
        self.cached_tokens = 0
        self._with_logprobs = with_logprobs
        self._moved = asyncio.Event()
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._finish: Finish | None = None
        self._error: EngineError | GrammarError | UnsupportedError | None = None

    def add(self, token_id: int, logprobs: TokenLogprobs | None, finish: Finish | None) -> None:
        """Add a token; nothing follows one that finishes."""
        self._token_ids.append(token_id)
        if logprobs is not None:
            self._logprobs.append(logprobs)
        self._finish = finish
        self._moved.set()

    def end(self, finish: Finish) -> None:
        """End without a further token."""
        self._finish = finish
        self._moved.set()

    def fail(self, error: EngineError | GrammarError | UnsupportedError) -> None:
        """End with an error; tokens that wait are dropped."""
        self._error = error
        self._moved.set()

    async def next(self) -> StepOutput:
        """Wait until there is something and take all of it.

        Raises:
            EngineError: the stream failed.
            GrammarError: its grammar cannot be followed any further.
            UnsupportedError: the engine refused it.
        """
        await self._moved.wait()
        self._moved.clear()
        if self._error is not None:
            raise self._error
        output = StepOutput(
            token_ids=self._token_ids,
            logprobs=self._logprobs if self._with_logprobs else None,
            finish=self._finish,
            cached_tokens=self.cached_tokens,
        )
        self._token_ids, self._logprobs = [], []
        return output
