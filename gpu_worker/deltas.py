"""What was shown of a generation, as the deltas that tell it."""

from collections.abc import Callable, Sequence
from hashlib import blake2b

from fastrun.v1.generation_pb2 import GenerateRequest, TokenLogprob, ToolCallDelta, TopLogprob
from gpu_worker.dialect.answer import Shown
from gpu_worker.dialect.tools import CallPiece
from gpu_worker.engine.protocol import StepOutput, TokenLogprobs
from gpu_worker.frames import Events

BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ID_LENGTH = 24


class Deltas:
    """Tells the events of one request what its tokens brought; counts its calls."""

    def __init__(
        self, request: GenerateRequest, token_bytes: Callable[[int], bytes], events: Events
    ) -> None:
        self._request_id = request.request_id
        self._generation = request.generation
        self._token_bytes = token_bytes
        self._events = events
        self._calls = 0
        self._has_told = False

    def add(self, shown: Shown, step: StepOutput) -> None:
        """Tell what the first tokens of a step brought."""
        if not (shown.token_count or shown.content or shown.reasoning or shown.calls):
            return
        cached_tokens = 0 if self._has_told else step.cached_tokens
        self._has_told = True
        token_ids = step.token_ids[: shown.token_count]
        self._events.delta(
            shown.content,
            token_ids,
            cached_tokens=cached_tokens,
            reasoning=shown.reasoning,
            calls=[self._call(piece) for piece in shown.calls] if shown.calls else (),
            logprobs=self._logprobs(token_ids, step.logprobs) if step.logprobs else (),
        )

    def skip(self, shown: Shown) -> None:
        """Take note of what another worker has told already."""
        self._calls += sum(bool(piece.name) for piece in shown.calls)

    def _call(self, piece: CallPiece) -> ToolCallDelta:
        if not piece.name:
            return ToolCallDelta(index=self._calls - 1, arguments=piece.arguments)
        self._calls += 1
        index = self._calls - 1
        return ToolCallDelta(
            index=index,
            id=call_id(self._request_id, self._generation, index),
            name=piece.name,
            arguments=piece.arguments,
        )

    def _logprobs(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> Sequence[TokenLogprob]:
        name = self._token_bytes
        return [
            TokenLogprob(
                token=name(token_id),
                logprob=known.chosen,
                top=[TopLogprob(token=name(one), logprob=value) for one, value in known.top],
            )
            for token_id, known in zip(token_ids, logprobs, strict=False)
        ]


def call_id(request_id: str, generation: int, index: int) -> str:
    """Return the id of a call: the same whenever the same call is told again."""
    digest = blake2b(f"{generation}/{index}/{request_id}".encode(), digest_size=ID_LENGTH).digest()
    return "call_" + "".join(BASE62[byte % len(BASE62)] for byte in digest)
