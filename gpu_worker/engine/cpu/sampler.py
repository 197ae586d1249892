"""Chooses tokens from logits: penalties, temperature, cut-offs, seeded draws, logprobs.

Rows are worked on one by one on purpose: a row of a large vocabulary just fits into a core's cache,
a matrix of them does not. Only the common greedy case takes all rows at once.
"""

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gpu_worker.engine.protocol import SamplingParams, TokenLogprobs

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

# Below this, dividing by the temperature would leave the range of float32.
GREEDY_BELOW = 1e-5
# The same for a repetition penalty, where so strong a reward is as good as any stronger.
LEAST_REPETITION_PENALTY = 1e-5
# Stands for the logarithm of a probability that is 0 in float32.
LOGPROB_FLOOR = -9999.0
# The logarithm of a weight that is nothing beside the likeliest token's, which is 1: no random
# number of 53 bits finds it, and no sum shows it. At low temperatures most of a vocabulary is
# lighter, and is taken for so heavy: what is hardly a number any more (denormal) takes ten times as
# long, and leaving it out takes longer than all else.
NEGLIGIBLE = -50.0
# Sums over this many weights are compared before single weights are.
DRAW_STRIDE = 256


class Restriction(Protocol):
    """Which tokens may come next."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing can come next."""

    def allowed(self) -> Indices:
        """Return the ids that may come next, ascending, at least one, or raise GrammarError."""

    def advance(self, token_id: int) -> None:
        """Note what came."""


class RowSampler:
    """How one generation chooses its tokens, and what has to be remembered for it."""

    __slots__ = ("_penalties", "_restriction", "draws", "greedy", "logprobs", "sampling")

    def __init__(
        self, sampling: SamplingParams, prompt: Indices, restriction: Restriction | None = None
    ) -> None:
        self.sampling = sampling
        self.draws = 0
        self.logprobs = sampling.logprobs
        self.greedy = (
            sampling.temperature < GREEDY_BELOW or sampling.top_p <= 0 or sampling.top_k == 1
        )
        self._penalties = Penalties(sampling, prompt) if has_penalties(sampling) else None
        self._restriction = restriction

    @property
    def is_argmax(self) -> bool:
        """Whether the likeliest token is all that is asked for."""
        return (
            self.greedy
            and self._penalties is None
            and self._restriction is None
            and self.logprobs is None
        )

    @property
    def is_complete(self) -> bool:
        """Whether no token can follow."""
        return self._restriction is not None and self._restriction.is_complete

    def observe(self, token_id: int) -> None:
        """Note that token_id was added to the completion."""
        self.draws += 1
        if self._penalties is not None:
            self._penalties.observe(token_id)
        if self._restriction is not None:
            self._restriction.advance(token_id)

    def choose(self, logits: Floats) -> int:
        """Choose from one row of logits, which stays as it is.

        Raises:
            GrammarError: no token may follow, or that cannot be found out.
        """
        if self._penalties is not None:
            logits = self._penalties.apply(logits)
        if self._restriction is None:
            return self._pick(logits)
        # What is not allowed is left out rather than given no weight, which rounding could find.
        allowed = self._restriction.allowed()
        return int(allowed[self._pick(logits[allowed])])

    def _pick(self, logits: Floats) -> int:
        if self.greedy:
            return int(logits.argmax())
        return draw(logits, self.sampling, uniform(self.sampling.seed, self.draws))


class Penalties:
    """The tokens that occurred, in arrays that grow by doubling."""

    __slots__ = ("_counts", "_index", "_sampling", "_tokens")

    def __init__(self, sampling: SamplingParams, prompt: Indices) -> None:
        self._sampling = sampling
        seen = np.unique(prompt)
        self._index = {token: at for at, token in enumerate(seen.tolist())}
        self._tokens = np.resize(seen, len(seen) + 64)
        self._counts = np.zeros(len(self._tokens), np.float32)

    def observe(self, token_id: int) -> None:
        """Count a token of the completion."""
        at = self._index.setdefault(token_id, len(self._index))
        if at == len(self._tokens):
            self._tokens = np.resize(self._tokens, 2 * at)
            self._counts = np.concatenate([self._counts, np.zeros(at, np.float32)])
        self._tokens[at] = token_id
        self._counts[at] += 1

    def apply(self, logits: Floats) -> Floats:
        """Return penalized logits; repetition counts the prompt too, the others do not."""
        sampling, size = self._sampling, len(self._index)
        tokens, counts = self._tokens[:size], self._counts[:size]
        values = logits[tokens]
        if sampling.repetition_penalty not in (0, 1):
            factor = np.float32(max(sampling.repetition_penalty, LEAST_REPETITION_PENALTY))
            values = np.where(values > 0, values / factor, values * factor)
        values -= np.float32(sampling.frequency_penalty) * counts
        values -= np.float32(sampling.presence_penalty) * (counts > 0)
        logits = logits.copy()
        logits[tokens] = values
        return logits


def has_penalties(sampling: SamplingParams) -> bool:
    """Whether any penalty changes anything."""
    return bool(
        sampling.frequency_penalty
        or sampling.presence_penalty
        or sampling.repetition_penalty not in (0, 1)
    )


class Sampled(NamedTuple):
    """The token chosen for a row, and what was reported of it."""

    token_id: int
    logprobs: TokenLogprobs | None = None


def sample(logits: Floats, rows: Sequence[RowSampler]) -> list[Sampled | Exception]:
    """Choose one token for each row of logits [rows, vocabulary], or say why there is none."""
    if all(row.is_argmax for row in rows):
        return [Sampled(token) for token in logits.argmax(axis=1).tolist()]
    return [_sample_row(values, row) for row, values in zip(rows, logits, strict=True)]


def _sample_row(logits: Floats, row: RowSampler) -> Sampled | Exception:
    try:
        token = row.choose(logits)
        asked = row.logprobs
        return Sampled(token, None if asked is None else logprobs(logits, token, asked))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this request's and no other's
        return error


def uniform(seed: int, position: int) -> float:
    """Give the random number in [0, 1) of a position; a hash, so that nothing else matters."""
    message = (seed % 2**64).to_bytes(8, "little") + position.to_bytes(8, "little")
    digest = blake2b(message, digest_size=8, person=b"fastrun-draw").digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def draw(logits: Floats, sampling: SamplingParams, random: float) -> int:
    """Draw by temperature, then min_p, top_k and top_p, each over what the one before left."""
    scaled = logits * np.float32(1 / sampling.temperature)
    scaled -= scaled.max()
    candidates: Indices | None = None
    np.maximum(scaled, np.float32(NEGLIGIBLE), out=scaled)
    if sampling.min_p:
        # p >= min_p * p_max, in logarithms, where the likeliest token stands at 0.
        candidates = np.flatnonzero(scaled >= math.log(min(sampling.min_p, 1)))
        scaled = scaled[candidates]
    if 0 < sampling.top_k < len(scaled):
        best = largest(scaled, sampling.top_k)
        candidates = best if candidates is None else candidates[best]
        scaled = scaled[best]
    if sampling.top_p < 1:
        best = nucleus(scaled, sampling.top_p)
        candidates = best if candidates is None else candidates[best]
        scaled = scaled[best]
    at = pick(np.exp(scaled), random)
    return at if candidates is None else int(candidates[at])


def largest(values: Floats, count: int) -> Indices:
    """Return the indices of the count largest values, descending; of equals the lower first."""
    if count >= len(values):
        candidates = np.arange(len(values))
    else:
        candidates = np.flatnonzero(values >= lower_bound(values, count))
    return candidates[np.argsort(-values[candidates], kind="stable")[:count]]


def lower_bound(values: Floats, count: int) -> np.float32:
    """Find a value that at least count values reach, and few more.

    The count-th largest of the maxima of strided groups is such a bound, and finding it costs one
    pass, where partitioning all values costs many.
    """
    groups = 16 * count
    if 4 * groups > len(values):
        return np.float32(np.partition(values, len(values) - count)[-count])
    maxima = values[: len(values) // groups * groups].reshape(-1, groups).max(axis=0)
    return np.float32(np.partition(maxima, groups - count)[-count])


def nucleus(scaled: Floats, top_p: float) -> Indices:
    """Return the fewest likeliest indices that together reach top_p, at least one, ascending."""
    weights = np.exp(scaled)
    # In float32, which adds in pairs: twice as fast, and wrong by a ten millionth at most.
    total = float(weights.sum())
    goal = top_p * total
    # What is lighter than this weighs less than 1 - top_p in all, so that the rest reaches top_p.
    candidates = np.flatnonzero(weights >= (1 - top_p) * total / len(weights))
    weights = weights[candidates]
    # Values are sorted, not indices: numpy does that several times faster.
    descending = np.sort(weights)[::-1]
    size = int(np.searchsorted(np.cumsum(descending, dtype=np.float64), goal)) + 1
    lightest = descending[min(size, len(descending)) - 1]
    kept = candidates[weights > lightest]
    equals = candidates[weights == lightest]
    return np.sort(np.concatenate([kept, equals[: size - len(kept)]]))


def pick(weights: Floats, random: float) -> int:
    """Return the index whose stretch of the cumulated weights holds random times their sum."""
    strides = len(weights) // DRAW_STRIDE
    if strides < 2:
        return locate(np.cumsum(weights, dtype=np.float64), random)[0]
    whole = strides * DRAW_STRIDE
    sums = weights[:whole].reshape(strides, DRAW_STRIDE).sum(axis=1, dtype=np.float64)
    rest = weights[whole:].sum(dtype=np.float64)
    at, within = locate(np.cumsum(np.append(sums, rest)), random)
    inside = weights[at * DRAW_STRIDE : (at + 1) * DRAW_STRIDE]
    return at * DRAW_STRIDE + locate(np.cumsum(inside, dtype=np.float64), within)[0]


def locate(cumulated: npt.NDArray[np.float64], random: float) -> tuple[int, float]:
    """Find the stretch that random falls into, and where in it, both as fractions of their sums."""
    target = random * cumulated[-1]
    # A stretch of weight 0 is never found, except by rounding; the clip keeps that in range.
    at = min(int(np.searchsorted(cumulated, target, side="right")), len(cumulated) - 1)
    before = float(cumulated[at - 1]) if at else 0.0
    width = float(cumulated[at]) - before
    return at, (float(target) - before) / width if width > 0 else 0.0


def logprobs(logits: Floats, token_id: int, count: int) -> TokenLogprobs:
    """Report token_id and the count likeliest tokens by the row's softmax."""
    peak = logits.max()
    total = float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    top = largest(logits, count) if count else np.empty(0, np.int64)
    return TokenLogprobs(
        chosen=max(LOGPROB_FLOOR, float(logits[token_id]) - total),
        top=[
            (token, max(LOGPROB_FLOOR, value - total))
            for token, value in zip(top.tolist(), logits[top].tolist(), strict=True)
        ],
    )
