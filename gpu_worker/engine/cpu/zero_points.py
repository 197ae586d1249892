"""Gives Q4_1 weights back the precision that OpenVINO's GGUF reader takes from them.

A Q4_1 block holds weights q * d + m. The reader writes them as (q - z) * d with z = -m / d rounded
to four bits, which shifts whole blocks by up to half a quantization step: on a chat prompt of
SmolLM2-135M, the likeliest next token was another one than by the file's own weights in a third of
all places. So the exact one is written instead, which is no integer.

Kernels that compute in float32 take it at the same speed. Those of ``fast``, which round
activations to 8 bits too, take integers only, and without them others run, half as fast. So there
the loaded graph gets integers again, sixteen times as fine.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_worker.engine.cpu.gguf import Tensor, read_gguf
from gpu_worker.engine.cpu.runtime import import_openvino

Q4_1 = 3  # ggml's number
BLOCK = np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("quants", "u1", (16,))])
WEIGHTS = 32  # in a block
FLOAT16_MAX = 65504.0
STEPS = 16  # of a zero point, between two quants of four bits; as many fit into a byte
BYTE_MAX = 255

Halves = npt.NDArray[np.float16]
Rows = dict[bytes, Halves]


def restore_zero_points(graph: Any, gguf: Path) -> int:
    """Make the zero points of a converted graph those of the file; return how many changed."""
    rows: Rows = {}
    for tensor in read_gguf(gguf).tensors:
        if tensor.kind == Q4_1:
            rows.update(_zero_points(gguf, tensor))
    return sum(_restore(node, rows) for node in graph.get_ops()) if rows else 0


def use_whole_zero_points(graph: Any) -> int:
    """Make exact zero points integers in a loaded graph; return how many matrices changed.

    Quants and zero points become bytes that count sixteenths, and scales a sixteenth: a weight
    moves by a 32nd of a quantization step at most.
    """
    return sum(_use_whole(node) for node in graph.get_ops())


def _zero_points(gguf: Path, tensor: Tensor) -> Rows:
    """Map each row's scales to its zero points.

    Rows are known by their scales, dozens of numbers, because the reader reorders some matrices.
    """
    *outer, width = tensor.shape
    shape = (int(np.prod(outer)), width // WEIGHTS)
    blocks = np.memmap(gguf, BLOCK, "r", tensor.offset, shape)
    scales, minima = blocks["scale"], blocks["minimum"].astype(np.float32)
    # A block of scale 0 has lost its minimum in the graph, which nothing brings back.
    divisors = np.where(scales == 0, np.inf, scales.astype(np.float32))
    zero_points = np.clip(-minima / divisors, -FLOAT16_MAX, FLOAT16_MAX).astype(np.float16)
    return {row.tobytes(): zeros for row, zeros in zip(scales, zero_points, strict=True)}


def _restore(node: Any, rows: Rows) -> bool:
    """Replace the zero points of one decompression."""
    if not (parts := decompression(node)):
        return False
    difference, scales = parts
    found = [rows.get(row.tobytes()) for row in scales[:, :, 0]]
    exact = [zeros for zeros in found if zeros is not None]
    if len(exact) < len(found):
        return False
    zero_points = constant(np.stack(exact)[:, :, None])
    difference.input(1).replace_source_output(zero_points.output(0))
    return True


def _use_whole(node: Any) -> bool:
    """Replace one decompression, if its zero points are exact and fit."""
    if not (parts := decompression(node)):
        return False
    difference, scales = parts
    zero_points, quants = (difference.input_value(at).get_node() for at in (1, 0))
    if zero_points.get_type_name() != "Constant" or quants.get_type_name() != "Convert":
        return False
    packed = quants.input_value(0).get_node()
    if packed.get_type_name() != "Constant" or packed.get_element_type().get_type_name() != "u4":
        return False
    whole = np.rint(zero_points.data.astype(np.float32) * STEPS)
    if whole.min() < 0 or whole.max() > BYTE_MAX:
        return False
    # Two quants in a byte, the lower half first; either becomes the upper half of its own.
    halves = np.empty((packed.data.size, 2), np.uint8)
    halves[:, 0] = packed.data << 4
    halves[:, 1] = packed.data & 0xF0
    operators, kind = import_openvino().opset13, scales.dtype
    difference = operators.subtract(
        operators.convert(constant(halves.reshape(packed.get_output_shape(0))), kind),
        operators.convert(constant(whole.astype(np.uint8)), kind),
    )
    weights = operators.multiply(difference, constant(scales / np.float16(STEPS)))
    node.output(0).replace(weights.output(0))
    return True


def decompression(node: Any) -> tuple[Any, Halves] | None:
    """Return the difference and the scales, if this is (Convert(q) - z) * scales."""
    if node.get_type_name() != "Multiply":
        return None
    difference, scale = (node.input_value(at).get_node() for at in range(2))
    if difference.get_type_name() != "Subtract" or scale.get_type_name() != "Constant":
        return None
    scales: Halves = scale.data
    if scales.dtype != np.float16 or scales.ndim != 3 or scales.shape[2] != 1:
        return None
    return difference, scales


def constant(values: npt.NDArray[Any]) -> Any:
    """Make a constant of an array, not of a copy, which would take more time than all else."""
    return import_openvino().op.Constant(values, shared_memory=True)
