"""What an output of TensorRT-LLM has that has not been told yet.

The library yields one object again and again, which grows in place. Its own differences are wrong
with several outputs and lists that shrink: where we stand is counted here.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gpu_worker.engine.protocol import EngineError, Finish, TokenLogprobs

# For what the library does not report: OpenAI's own value for "not among the likely ones".
UNKNOWN_LOGPROB = -9999.0

_FINISHES = {"stop": Finish.STOP, "length": Finish.LENGTH}
_REASONS = (None, "not_finished", "cancelled", *_FINISHES)


class Piece(msgspec.Struct, frozen=True):
    """What came since the last time."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs]  # one for each token, or none at all
    finish: Finish | None
    cancelled: bool = False


class Cursor:
    """Where one output has been told up to."""

    def __init__(self, stop_token_ids: Sequence[int], *, logprobs: int | None) -> None:
        """Begin at the first token.

        Args:
            stop_token_ids: what may end the output.
            logprobs: how many alternatives to report; None for no logprobs.
        """
        self._stops = stop_token_ids
        self._logprobs = logprobs
        self._last: int | None = None
        self.told = 0

    def take(self, output: Any) -> Piece:
        """Return what is new in a CompletionOutput.

        Raises:
            EngineError: it ended in a way that is no answer.
        """
        reason = output.finish_reason
        if reason not in _REASONS:
            raise EngineError(f"the engine ended this request early ({str(reason)[:40]})")
        # May be shorter than before: a stop token that was told is cut off again.
        new = list(output.token_ids[self.told :])
        finish = _FINISHES.get(reason) if reason else None
        if new:
            self._last = new[-1]
        if finish is Finish.STOP and (stop := self._missing_stop(output.stop_reason)) is not None:
            new.append(stop)
        logprobs = self._reported(output.logprobs or (), new)
        self.told += len(new)
        return Piece(new, logprobs, finish, cancelled=reason == "cancelled")

    def _missing_stop(self, stop_reason: Any) -> int | None:
        """Return the stop token that ended the output, unless it has been told."""
        if not self._stops or self._last in self._stops:
            return None
        if isinstance(stop_reason, int) and stop_reason in self._stops:
            return stop_reason
        return self._stops[0]  # the end token is given as no reason at all

    def _reported(self, entries: Sequence[Any], token_ids: Sequence[int]) -> list[TokenLogprobs]:
        if self._logprobs is None:
            return []
        known = entries[self.told : self.told + len(token_ids)]
        missing = [None] * (len(token_ids) - len(known))
        return [
            _logprob(entry, token_id, self._logprobs)
            for entry, token_id in zip([*known, *missing], token_ids, strict=True)
        ]


def _logprob(entry: Any, token_id: int, count: int) -> TokenLogprobs:
    """Read what the library reports of one token: a mapping, a number, or nothing."""
    if entry is None:
        return TokenLogprobs(UNKNOWN_LOGPROB, [])
    if not isinstance(entry, Mapping):
        return TokenLogprobs(_value(entry), [])
    values = {other: _value(reported) for other, reported in entry.items()}
    # The sampled token comes beside the likeliest ones, and is missing now and then.
    top = sorted(values.items(), key=lambda item: -item[1])[:count]
    return TokenLogprobs(values.get(token_id, UNKNOWN_LOGPROB), top)


def _value(reported: Any) -> float:
    value = float(getattr(reported, "logprob", reported))
    return value if math.isfinite(value) else UNKNOWN_LOGPROB
