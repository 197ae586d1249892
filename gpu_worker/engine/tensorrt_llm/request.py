"""One generation on its way through TensorRT-LLM."""

import asyncio
from collections.abc import Sequence
from typing import Any

from gpu_worker.engine.protocol import EngineError, SamplingParams, Take
from gpu_worker.engine.tensorrt_llm.cursor import Cursor
from gpu_worker.engine.token_stream import TokenStream


class Request:
    """What the engine is given, what came of it, and who reads that."""

    def __init__(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        take: Take,
        *,
        cache_salt: str,
        guide: str | None,
        resumed: int,
    ) -> None:
        self.token_ids = list(token_ids)
        self.sampling = sampling
        self.cache_salt = cache_salt
        self.guide = guide
        self.resumed = resumed
        self.stream = TokenStream(take)
        # Set when the engine has it.
        self.result: Any = None
        self.reader: asyncio.Task[None] | None = None
        self.ended = False
        self.new_tokens = 0  # of the last step
        self._aborted = False
        self._cursor = Cursor(sampling.stop_token_ids, logprobs=sampling.logprobs)

    @property
    def prompt_tokens(self) -> int:
        """How many tokens the engine was given, resumed ones included."""
        return len(self.token_ids)

    @property
    def told(self) -> int:
        """How many tokens have come."""
        return self._cursor.told

    def take(self) -> bool:
        """Take what a step brought; True if it was the first token's.

        Raises:
            EngineError: it ended in a way that is no answer.
        """
        is_first = not self._cursor.told
        piece = self._cursor.take(self.result.outputs[0])
        self.new_tokens = len(piece.token_ids)
        if is_first and piece.token_ids:
            self.stream.cached_tokens = int(getattr(self.result, "cached_tokens", 0) or 0)
        if piece.token_ids or piece.finish is not None:
            logprobs = None if self.sampling.logprobs is None else piece.logprobs
            self.stream.add(piece.token_ids, piece.finish, logprobs)
        self.ended = piece.finish is not None or piece.cancelled
        if piece.cancelled and not self._aborted:
            raise EngineError("the engine cancelled this request")
        return is_first and bool(piece.token_ids)

    def abort(self) -> None:
        """Tell the engine to stop, unless it has or was told to."""
        if self._aborted or self.ended or self.result is None or self.result.finished:
            return
        self._aborted = True
        self.result.abort()
