"""Which sequences run, and how many of their tokens each step computes."""

from collections import deque
from typing import NamedTuple

import numpy as np

from gpu_worker.engine.cpu.blocks import BlockPool
from gpu_worker.engine.cpu.sequence import Sequence
from gpu_worker.engine.protocol import SamplingParams


class Row(NamedTuple):
    """A sequence's share of one step: tokens [start, start + size)."""

    sequence: Sequence
    start: int
    size: int

    @property
    def samples(self) -> bool:
        """Whether the step computes the last known token, so that the next one can be chosen."""
        return self.start + self.size == self.sequence.length


def lone_prompt(tokens: int, *, block: int, block_size: int) -> Row:
    """Return a prompt outside of any batch, for a step of its own; it fits into the block."""
    sequence = Sequence(
        np.arange(tokens, dtype=np.int64),
        SamplingParams(max_tokens=1),
        max_tokens=1,
        cache_salt="",
        block_size=block_size,
    )
    sequence.blocks[0], sequence.block_count = block, 1
    return Row(sequence, 0, tokens)


class ContinuousBatch:
    """Plans steps: decodes first, then prefill in chunks, then admission of what waits.

    Prefill beside decodes takes at most half of a step's tokens.

    Sequences are served in the order of their arrival. A sequence gets the blocks of all its known
    tokens when it is admitted and one more whenever it outgrows them. If there is none, the newest
    running sequence is preempted: it loses its blocks, keeps its tokens and waits in front to be
    computed again. The oldest can always take everybody's blocks and no sequence is larger than
    the pool, so that something always finishes.
    """

    def __init__(
        self, pool: BlockPool, *, block_size: int, slots: int, tokens_per_step: int
    ) -> None:
        self.forget_counts()
        self._pool = pool
        self._block_size = block_size
        self._slots = slots
        # Every running sequence must be able to decode in one step.
        self._tokens_per_step = max(tokens_per_step, slots)
        # Both in the order of arrival, and whatever runs arrived before whatever waits.
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()

    def forget_counts(self) -> None:
        """Count from here on."""
        self.preemptions = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0

    @property
    def running(self) -> int:
        """How many sequences hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many sequences wait for a slot or for blocks."""
        return len(self._waiting)

    @property
    def prefill_tokens(self) -> int:
        """How many known tokens are to be computed before those of decoding sequences."""
        # Of one that waits nobody knows yet how much is cached.
        waiting = sum(sequence.length for sequence in tuple(self._waiting))
        return waiting + sum(
            sequence.uncomputed for sequence in tuple(self._running) if sequence.uncomputed > 1
        )

    @property
    def context_tokens(self) -> int:
        """How many tokens the running sequences have in the cache; shared ones count for each."""
        return sum(sequence.computed for sequence in tuple(self._running))

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that fits into the pool when alone."""
        assert len(sequence.blocks) <= self._pool.size, "a sequence larger than the pool"
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, finished or aborted, in any state; unknown ones are ignored."""
        if sequence in self._running:
            self._running.remove(sequence)
            self._release(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def sequences(self) -> list[Sequence]:
        """All that is running or waiting."""
        return [*self._running, *self._waiting]

    def plan(self) -> list[Row]:
        """Choose the next step's rows; empty only if there is no sequence."""
        rows = self._plan_decodes()
        budget = self._tokens_per_step - len(rows)
        if rows:
            # Those that decode wait for the whole step. Prefill in half the size costs an eighth
            # more time (measured at 64 and 128 tokens) and halves the pauses in what others read.
            budget = min(budget, self._tokens_per_step // 2)
        for sequence in self._running:
            if sequence.uncomputed > 1 and budget > 0:
                rows.append(Row(sequence, sequence.computed, min(sequence.uncomputed, budget)))
                budget -= rows[-1].size
        while budget > 0 and (admitted := self._admit()):
            rows.append(Row(admitted, admitted.computed, min(admitted.uncomputed, budget)))
            budget -= rows[-1].size
        return rows

    def commit(self, rows: list[Row]) -> None:
        """Note that the network has computed rows, and publish the blocks they filled."""
        for sequence, start, size in rows:
            sequence.computed = start + size
            for index in range(start // self._block_size, sequence.computed // self._block_size):
                self._pool.publish(int(sequence.blocks[index]), sequence.digest(index))

    def _plan_decodes(self) -> list[Row]:
        # Oldest first: what is preempted for a sequence is newer and not planned yet; it has no
        # blocks when its turn comes.
        return [
            Row(sequence, sequence.computed, 1)
            for sequence in self._running.copy()
            if sequence.uncomputed == 1 and sequence.block_count and self._grow(sequence)
        ]

    def _grow(self, sequence: Sequence) -> bool:
        """Give a decoding sequence the block its next token needs; False if it was preempted."""
        while sequence.block_count * self._block_size < sequence.length:
            block = self._pool.allocate()
            if block is not None:
                sequence.blocks[sequence.block_count] = block
                sequence.block_count += 1
                continue
            newest = self._running[-1]
            self._preempt(newest)
            if newest is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._release(sequence)
        self._waiting.appendleft(sequence)
        self.preemptions += 1

    def _admit(self) -> Sequence | None:
        """Move the oldest waiting sequence into a slot, if there are slot and blocks for it."""
        if not self._waiting or len(self._running) >= self._slots:
            return None
        sequence = self._waiting[0]
        self._take_cached(sequence)
        missing = -(-sequence.length // self._block_size) - sequence.block_count
        # Each running sequence will soon need a block; admitting on its last one would only
        # preempt the newcomer again.
        if self._pool.available < missing + len(self._running):
            self._release(sequence)
            return None
        for _ in range(missing):
            block = self._pool.allocate()
            assert block is not None, "available blocks were counted before"
            sequence.blocks[sequence.block_count] = block
            sequence.block_count += 1
        self._running.append(self._waiting.popleft())
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            self.cached_tokens += sequence.computed
            self.prompt_tokens += sequence.prompt_length
        return sequence

    def _take_cached(self, sequence: Sequence) -> None:
        """Hold the published blocks that the sequence begins with; its last token is left over."""
        for index in range((sequence.length - 1) // self._block_size):
            block = self._pool.find(sequence.digest(index))
            if block is None:
                break
            sequence.blocks[index] = block
            sequence.block_count = index + 1
        sequence.computed = sequence.block_count * self._block_size

    def _release(self, sequence: Sequence) -> None:
        # The last block first: a chain is found from its start, so its end is worth least.
        for block in reversed(sequence.blocks[: sequence.block_count].tolist()):
            self._pool.release(block)
        sequence.block_count = 0
        sequence.computed = 0
