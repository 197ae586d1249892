"""What an engine makes for one generation, handed over as it comes."""

import asyncio

from gpu_worker.engine.grammar import GrammarError
from gpu_worker.engine.protocol import (
    EngineError,
    Finish,
    StepOutput,
    Take,
    TokenLogprobs,
    UnsupportedError,
)


class TokenStream:
    """Hands tokens over until it is over; belongs to the event loop that it is made in."""

    def __init__(self, take: Take) -> None:
        """Begin.

        Args:
            take: gets each output; what it raises fails this stream alone.
        """
        self.cached_tokens = 0
        self._take = take
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(
        self,
        token_ids: list[int],
        finish: Finish | None = None,
        logprobs: list[TokenLogprobs] | None = None,
    ) -> None:
        """Hand tokens over; they are dropped once the stream is over, as it is after a finish."""
        if self._over.done():
            return
        try:
            has_enough = self._take(StepOutput(token_ids, logprobs, finish, self.cached_tokens))
        except Exception as error:  # noqa: BLE001 - and it does not stop the step of all others
            self._over.set_exception(error)
            return
        if has_enough or finish is not None:
            self._over.set_result(None)

    def fail(self, error: EngineError | GrammarError | UnsupportedError) -> None:
        """End with an error, unless it is over."""
        if not self._over.done():
            self._over.set_exception(error)

    async def over(self) -> None:
        """Return when nothing is handed over any more; who is cancelled here ends the stream.

        Raises:
            EngineError: the stream failed.
            GrammarError: its grammar cannot be followed any further.
            UnsupportedError: the engine refused it.
        """
        await self._over
