"""The model as an OpenVINO graph with paged attention: rows of tokens in, logits out."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpu_worker.engine.cpu.batch import Row
from gpu_worker.engine.cpu.graph import compile_graph, read_graph, vocabulary_of
from gpu_worker.engine.cpu.precision import Precision
from gpu_worker.engine.cpu.runtime import import_openvino


class Network(Protocol):
    """What the engine needs of a model."""

    @property
    def block_size(self) -> int:
        """Tokens in a KV-cache block."""

    @property
    def vocabulary(self) -> int:
        """How many token ids there are, which is the width of the logits."""

    def forward(self, rows: Sequence[Row]) -> npt.NDArray[np.float32]:
        """Compute the keys and values of all rows' tokens, and the logits of those that sample.

        Returns:
            float32 [rows that sample, vocabulary], valid until the next call.
        """

    def close(self) -> None:
        """Free the memory of weights and cache."""


class PagedNetwork:
    """A causal language model in OpenVINO's intermediate representation, with its KV cache.

    The cache is allocated whole, but memory is taken only as blocks are first written.
    """

    def __init__(self, compiled: Any) -> None:
        """Take a compiled graph over: see graph.py."""
        self._openvino = import_openvino()
        self._compiled = compiled
        self._request = self._compiled.create_infer_request()
        self._caches = [port for port in self._compiled.inputs if "_cache." in port.any_name]
        value_cache = self._compiled.input("value_cache.0").partial_shape
        self._block_size = int(value_cache[2].get_length())
        self._vocabulary = vocabulary_of(compiled)

    @property
    def block_size(self) -> int:
        """Tokens in a KV-cache block."""
        return self._block_size

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""
        return self._vocabulary

    @property
    def block_bytes(self) -> int:
        """What one block takes in all layers together."""
        return sum(
            int(np.prod([d.get_length() for d in port.partial_shape if d.is_static]))
            * int(port.element_type.size)
            for port in self._caches
        )

    def allocate(self, blocks: int) -> None:
        """Make the KV cache; its content is undefined."""
        for port in self._caches:
            shape = [d.get_length() if d.is_static else blocks for d in port.partial_shape]
            tensor = self._openvino.Tensor(port.element_type, self._openvino.Shape(shape))
            self._request.set_tensor(port.any_name, tensor)

    def forward(self, rows: Sequence[Row]) -> npt.NDArray[np.float32]:
        """Run one step."""
        for name, value in step_inputs(rows).items():
            self._request.set_tensor(name, self._openvino.Tensor(value))
        self._request.infer()
        logits = self._request.get_tensor("logits").data
        count = sum(row.samples for row in rows)
        result: npt.NDArray[np.float32] = logits.reshape(-1, self._vocabulary)[:count]
        return result

    def close(self) -> None:
        """Free the memory of weights and cache."""
        self._request = self._compiled = None
        self._caches = []


def load_network(
    model: Path, *, precision: Precision = "exact", threads: int | None = None
) -> PagedNetwork:
    """Read and compile a model; takes a second.

    Args:
        model: openvino_model.xml, its weights beside it.
        precision: ``exact`` computes in float32, ``fast`` multiplies by weights in 8 bits.
        threads: how many the network may use; None for one per core that this process has.
    """
    core = import_openvino().Core()
    graph = read_graph(core, model, precision)
    return PagedNetwork(compile_graph(core, graph, precision, threads=threads or available_cores()))


def step_inputs(rows: Sequence[Row]) -> dict[str, npt.NDArray[Any]]:
    """Lay out rows as the paged-attention operator wants them, end to end."""
    counts = np.fromiter((row.size for row in rows), np.int32, len(rows))
    starts = np.fromiter((row.start for row in rows), np.int32, len(rows))
    block_counts = np.fromiter((row.sequence.block_count for row in rows), np.int32, len(rows))
    ends = np.cumsum(counts, dtype=np.int32)
    sampled = [end - 1 for row, end in zip(rows, ends.tolist(), strict=True) if row.samples]
    tokens = [row.sequence.token_ids[row.start : row.start + row.size] for row in rows]
    # Row r's token t stands at position start[r] + t - (where row r begins in this step).
    positions = np.arange(ends[-1], dtype=np.int64) + np.repeat(starts - (ends - counts), counts)
    return {
        "input_ids": np.concatenate(tokens),
        "position_ids": positions,
        "past_lens": starts,
        "subsequence_begins": offsets(ends),
        "block_indices": np.concatenate(
            [r.sequence.blocks[: r.sequence.block_count] for r in rows]
        ),
        "block_indices_begins": offsets(np.cumsum(block_counts, dtype=np.int32)),
        "max_context_len": np.array((starts + counts).max(), np.int32),
        # The graph wants a row in any case; what comes of it is ignored.
        "sampled": np.array(sampled or [0], np.int64),
    }


def offsets(ends: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Put a 0 in front of running totals."""
    return np.concatenate([np.zeros(1, np.int32), ends])


def available_cores(cgroup: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Count the cores this process may use, by affinity and by a container's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = cgroup.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))
