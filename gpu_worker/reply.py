"""From the tokens of one generation to its deltas, its usage, and why it ended.

This is the path of every token: the engine's step calls it, and it ends in the pending frame.
"""

from collections.abc import Callable, Sequence

from fastrun.v1.generation_pb2 import FinishReason, GenerateRequest, Usage
from gpu_worker.deltas import Deltas
from gpu_worker.dialect.answer import Answer, Shown
from gpu_worker.engine.protocol import Finish, StepOutput
from gpu_worker.frames import Events
from gpu_worker.prompt import Prompt

REASONS = {
    Finish.STOP: FinishReason.FINISH_REASON_STOP,
    Finish.LENGTH: FinishReason.FINISH_REASON_LENGTH,
}
NOTHING = Shown("", "", [], 0)


class Reply:
    """What one generation says, told as it comes."""

    def __init__(
        self,
        request: GenerateRequest,
        prompt: Prompt,
        events: Events,
        token_bytes: Callable[[int], bytes],
    ) -> None:
        """Begin before the first token.

        Args:
            request: as it came.
            prompt: made of it.
            events: told what the tokens bring.
            token_bytes: the bytes that a token id stands for.
        """
        self.prompt_tokens = len(prompt.token_ids)
        self.cached_tokens = 0
        self.completion_tokens = 0
        """Up to the one that ended the text, that one included."""
        self.reason: FinishReason.ValueType | None = None
        """Why it ended; None until it does."""
        self._replayed = 0
        self._answer = Answer(token_bytes, prompt.parser)
        self._deltas = Deltas(request, token_bytes, events)

    @property
    def usage(self) -> Usage:
        """What it has come to so far."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            reasoning_tokens=self._answer.reasoning_tokens,
        )

    def replay(self, token_ids: Sequence[int]) -> None:
        """Take what a lost worker generated as told; if it is the whole, the engine says so."""
        shown = self._answer.feed(token_ids)
        self._deltas.skip(shown)
        self.completion_tokens = self._replayed = shown.token_count
        if self._answer.ended:
            self._end(None)

    def take(self, step: StepOutput) -> None:
        """Tell what a step of the engine brought."""
        shown = self._answer.feed(step.token_ids)
        self.completion_tokens += shown.token_count
        self._deltas.add(shown, step)
        if step.finish is not None or self._answer.ended:
            left = self._end(step.finish)
            # Whoever told the last token told with it what was held back until the end.
            if self.completion_tokens > self._replayed:
                self._deltas.add(left, step)

    def _end(self, finish: Finish | None) -> Shown:
        """End as the text does, or else as the engine did, if either does; return what is left."""
        left = NOTHING
        if self._answer.ended:
            finish = Finish.STOP
        elif finish is not None:
            left = self._answer.flush(cut=finish is Finish.LENGTH)
        if finish is Finish.STOP and self._answer.called:
            self.reason = FinishReason.FINISH_REASON_TOOL_CALLS
        elif finish is not None:
            self.reason = REASONS[finish]
        return left
