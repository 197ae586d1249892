"""How rows are laid out for the paged-attention operator, and how many cores there are."""

import os

import numpy as np

from gpu_worker.engine.cpu.batch import Row
from gpu_worker.engine.cpu.network import available_cores, step_inputs
from gpu_worker.engine.cpu.sequence import Sequence
from gpu_worker.engine.protocol import SamplingParams


def sequence(prompt, blocks):
    made = Sequence(
        np.array(prompt, np.int64),
        SamplingParams(max_tokens=4),
        max_tokens=4,
        cache_salt="",
        block_size=2,
    )
    made.blocks[: len(blocks)] = blocks
    made.block_count = len(blocks)
    return made


def test_rows_lie_end_to_end():
    """Tokens, positions and blocks of all rows follow each other; only complete rows sample."""
    rows = [
        Row(sequence([10, 11, 12], [7, 3]), 2, 1),
        Row(sequence([20, 21, 22, 23], [1, 5]), 0, 3),
        Row(sequence([30, 31], [6]), 0, 2),
    ]
    inputs = {name: value.tolist() for name, value in step_inputs(rows).items()}
    assert inputs == {
        "input_ids": [12, 20, 21, 22, 30, 31],
        "position_ids": [2, 0, 1, 2, 0, 1],
        "past_lens": [2, 0, 0],
        "subsequence_begins": [0, 1, 4, 6],
        "block_indices": [7, 3, 1, 5, 6],
        "block_indices_begins": [0, 2, 4, 5],
        "max_context_len": 3,
        "sampled": [0, 5],
    }


def test_types_are_the_operator_s():
    """Token ids are 64 bits wide, counts 32."""
    types = {
        name: value.dtype.name
        for name, value in step_inputs([Row(sequence([10, 11, 12], [7, 3]), 0, 2)]).items()
    }
    wide = {name for name, kind in types.items() if kind == "int64"}
    assert wide == {"input_ids", "position_ids", "sampled"}
    assert set(types.values()) == {"int64", "int32"}


def test_quota_of_a_container_counts(tmp_path):
    """A CPU quota below the number of cores bounds the threads; parts of a core round up."""
    quota = tmp_path / "cpu.max"
    quota.write_text("50000 100000\n")
    assert available_cores(quota) == 1
    quota.write_text("max 100000\n")
    every = available_cores(quota)
    assert every == available_cores(tmp_path / "missing")
    assert 1 <= every <= (os.cpu_count() or 1)
