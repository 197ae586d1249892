"""One generation inside the engine: its tokens, its blocks and how far it is computed."""

import numpy as np
import numpy.typing as npt

from gpu_worker.engine.cpu.blocks import chain_digest, chain_start
from gpu_worker.engine.cpu.sampler import Restriction, RowSampler
from gpu_worker.engine.protocol import Finish, SamplingParams


class Sequence:
    """Prompt and completion in arrays that never move, so that a step copies only what is new.

    Attributes:
        token_ids: int64 [capacity]; the first ``length`` are known.
        blocks: int32 [capacity in blocks]; the first ``block_count`` are held.
        computed: how many leading tokens have their keys and values in the cache.
        cached_tokens: prompt tokens that the prefix cache held when the sequence first ran; None
            until then.
    """

    __slots__ = (
        "_block_size",
        "_digests",
        "_salt_digest",
        "block_count",
        "blocks",
        "cached_tokens",
        "computed",
        "ended_before",
        "length",
        "max_tokens",
        "prompt_length",
        "sampler",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(
        self,
        known: npt.NDArray[np.int64],
        sampling: SamplingParams,
        *,
        max_tokens: int,
        cache_salt: str,
        block_size: int,
        restriction: Restriction | None = None,
        resumed: int = 0,
    ) -> None:
        """Begin after the known tokens, of which the last ``resumed`` are completion already."""
        capacity = len(known) + max_tokens
        prompt, completion = np.split(known, [len(known) - resumed])
        self.token_ids = np.empty(capacity, np.int64)
        self.token_ids[: len(prompt)] = prompt
        self.blocks = np.empty(-(-capacity // block_size), np.int32)
        self.block_count = 0
        self.prompt_length = len(prompt)
        self.length = len(prompt)
        self.max_tokens = resumed + max_tokens
        self.computed = 0
        self.cached_tokens: int | None = None
        self.sampler = RowSampler(sampling, prompt, restriction)
        self.stop_token_ids = frozenset(sampling.stop_token_ids)
        self._block_size = block_size
        self._salt_digest = chain_start(cache_salt)
        self._digests: list[bytes] = []
        # How it ended, if what was resumed is the whole of it.
        self.ended_before: Finish | None = None
        for token_id in completion.tolist():
            self.ended_before = self.append(token_id)

    @property
    def completion_length(self) -> int:
        """How many tokens were generated."""
        return self.length - self.prompt_length

    @property
    def uncomputed(self) -> int:
        """How many known tokens await the network; 1 while decoding."""
        return self.length - self.computed

    def digest(self, index: int) -> bytes:
        """Name the content of the full block at index, counted from the sequence's start."""
        size = self._block_size
        while len(self._digests) <= index:
            at = len(self._digests)
            parent = self._digests[-1] if self._digests else self._salt_digest
            tokens = self.token_ids[at * size : (at + 1) * size].tobytes()
            self._digests.append(chain_digest(parent, tokens))
        return self._digests[index]

    def append(self, token_id: int) -> Finish | None:
        """Add a generated token and say whether it ends the generation."""
        self.token_ids[self.length] = token_id
        self.length += 1
        self.sampler.observe(token_id)
        if token_id in self.stop_token_ids or self.sampler.is_complete:
            return Finish.STOP
        return Finish.LENGTH if self.completion_length >= self.max_tokens else None
