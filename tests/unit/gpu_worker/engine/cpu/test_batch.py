"""Which sequences run, with how many tokens, and what happens when blocks run out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engine.cpu.batch import ContinuousBatch
from gpu_worker.engine.cpu.blocks import BlockPool
from gpu_worker.engine.cpu.sequence import Sequence
from gpu_worker.engine.protocol import Finish, SamplingParams

BLOCK = 4


def sequence(prompt, max_tokens=8, salt="", first=0):
    return Sequence(
        np.arange(first, first + prompt, dtype=np.int64),
        SamplingParams(max_tokens=max_tokens, stop_token_ids=(9999,)),
        max_tokens=max_tokens,
        cache_salt=salt,
        block_size=BLOCK,
    )


def batch(blocks=100, slots=4, tokens=16):
    pool = BlockPool(blocks)
    return pool, ContinuousBatch(pool, block_size=BLOCK, slots=slots, tokens_per_step=tokens)


def step(batch, token=1):
    """Run a step as the engine does; return (start, size) of its rows by sequence."""
    rows = batch.plan()
    batch.commit(rows)
    for row in rows:
        if row.samples and row.sequence.append(token) is not None:
            batch.remove(row.sequence)
    return {row.sequence: (row.start, row.size) for row in rows}


def test_prefill_is_cut_into_chunks():
    """A prompt longer than a step's budget takes several steps."""
    _, b = batch(tokens=16)
    s = sequence(40)
    b.add(s)
    assert [{s: (0, 16)}, {s: (16, 16)}, {s: (32, 8)}, {s: (40, 1)}] == [step(b) for _ in range(4)]


def test_decodes_come_before_prefill():
    """A decoding sequence gets its token in every step, and waits for half a step's prefill."""
    _, b = batch(tokens=16)
    old, new = sequence(3), sequence(40, first=100)
    b.add(old)
    step(b)
    b.add(new)
    assert {old: (3, 1), new: (0, 8)} == step(b)
    assert {old: (4, 1), new: (8, 8)} == step(b)


def test_prefill_alone_takes_the_whole_step():
    """While nobody decodes, a prompt is computed in steps as large as they may be."""
    _, b = batch(tokens=16)
    new = sequence(40)
    b.add(new)
    assert {new: (0, 16)} == step(b)


def test_slots_are_never_exceeded():
    """No more sequences run than there are slots; the others wait."""
    _, b = batch(slots=2)
    for at in range(3):
        b.add(sequence(2, first=10 * at))
    step(b)
    assert (b.running, b.waiting) == (2, 1)


def test_next_sequence_is_admitted_when_one_ends():
    """A slot that becomes free is used in the next step."""
    _, b = batch(slots=1)
    first, second = sequence(2, max_tokens=1), sequence(2, first=10)
    b.add(first)
    b.add(second)
    assert first in step(b)
    assert {second: (0, 2)} == step(b)


def test_equal_prefix_is_computed_once():
    """Full blocks that another sequence of the same salt computed are taken over and counted."""
    _, b = batch()
    b.add(sequence(10, max_tokens=1))
    step(b)
    s = sequence(10)
    b.add(s)
    assert {s: (8, 2)} == step(b)
    assert s.cached_tokens == 8
    assert (b.prompt_tokens, b.cached_tokens) == (20, 8)


def test_last_token_is_always_computed():
    """A prompt that is cached as a whole still leaves a token to compute logits from."""
    _, b = batch()
    b.add(sequence(8, max_tokens=1))
    step(b)
    s = sequence(8)
    b.add(s)
    step(b)
    assert s.cached_tokens == 4


def test_other_salt_shares_nothing():
    """The same prompt under another salt finds nothing in the cache."""
    _, b = batch()
    b.add(sequence(10, max_tokens=1, salt="a"))
    step(b)
    s = sequence(10, salt="b")
    b.add(s)
    step(b)
    assert s.cached_tokens == 0


def test_newest_is_preempted_first():
    """When blocks run out the newest sequence gives its own up, and keeps its tokens."""
    pool, b = batch(blocks=5)
    old, new = sequence(7, max_tokens=12), sequence(7, max_tokens=12, first=50)
    b.add(old)
    step(b)
    b.add(new)
    for _ in range(3):
        step(b)
    length = new.length
    while not b.preemptions:
        step(b)
    assert (b.running, b.waiting) == (1, 1)
    assert new.block_count == 0
    assert new.length >= length
    assert old.block_count == pool.held


def test_preempted_sequence_waits_in_front():
    """A preempted sequence runs again before those that came after it."""
    _, b = batch(blocks=5, slots=2)
    old, new, last = (sequence(7, max_tokens=12, first=50 * at) for at in range(3))
    for s in (old, new, last):
        b.add(s)
    while not b.preemptions:
        step(b)
    seen = []
    while b.running + b.waiting:
        seen += [s for s in step(b) if s not in seen]
    assert [old, new, last] == seen


def test_preemption_does_not_change_the_cached_count():
    """Blocks found again after a preemption do not count as cached prompt tokens."""
    _, b = batch(blocks=5)
    old, new = sequence(7, max_tokens=12), sequence(7, max_tokens=12, first=50)
    b.add(old)
    b.add(new)
    while b.running + b.waiting:
        step(b)
    assert b.preemptions
    assert (new.cached_tokens, b.cached_tokens, b.prompt_tokens) == (0, 0, 14)


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_removed_sequence_holds_nothing(steps):
    """Whether it waits, is being prefilled or decodes: a removed sequence leaves no block held."""
    pool, b = batch(tokens=4)
    s = sequence(10)
    b.add(s)
    for _ in range(steps):
        step(b)
    b.remove(s)
    b.remove(s)
    assert (pool.held, b.running, b.waiting) == (0, 0, 0)


def test_stop_token_and_length_end_a_sequence():
    """A sequence ends after a stop token, which it includes, or at max_tokens."""
    s = sequence(3, max_tokens=2)
    assert s.append(5) is None
    assert s.append(5) == Finish.LENGTH
    s = sequence(3, max_tokens=2)
    assert s.append(9999) == Finish.STOP
    assert s.completion_length == 1


@given(
    requests=st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 20), st.integers(0, 2), st.integers(0, 30)),
        min_size=1,
        max_size=12,
    ),
    blocks=st.integers(13, 30),
    slots=st.integers(1, 4),
    tokens=st.integers(1, 20),
)
def test_every_sequence_finishes(requests, blocks, slots, tokens):
    """However small the pool: all sequences finish, none computes a token without a block."""
    pool, b = batch(blocks=blocks, slots=slots, tokens=tokens)
    pending = sorted(
        ((at, sequence(p, m, first=100 * first)) for p, m, first, at in requests),
        key=lambda item: item[0],
    )
    sequences = [s for _, s in pending]
    for now in range(5000):
        while pending and pending[0][0] <= now:
            b.add(pending.pop(0)[1])
        if not pending and not b.running and not b.waiting:
            break
        rows = b.plan()
        assert rows or not (b.running or b.waiting)
        assert b.running <= slots
        assert sum(row.size for row in rows) <= max(tokens, slots)
        for row in rows:
            assert row.start == row.sequence.computed
            assert row.start + row.size <= row.sequence.block_count * BLOCK
        b.commit(rows)
        for row in rows:
            if row.samples and row.sequence.append(now % 7) is not None:
                b.remove(row.sequence)
    assert all(s.completion_length == s.max_tokens for s in sequences)
    assert pool.held == 0
