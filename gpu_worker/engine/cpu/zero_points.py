"""Gives Q4_1 weights back the precision that OpenVINO's GGUF reader takes from them.

A Q4_1 block holds weights q * d + m. The reader writes them as (q - z) * d with z = -m / d rounded
to four bits, which shifts whole blocks by up to half a quantization step: on a chat prompt of
SmolLM2-135M, the likeliest next token was another one than by the file's own weights in a third of
all places. The kernels take a zero point that is no integer at the same speed, so the exact one is
written instead.
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

Halves = npt.NDArray[np.float16]
Rows = dict[bytes, Halves]


def restore_zero_points(model: Path, gguf: Path) -> int:
    """Rewrite a converted model, if it holds Q4_1 weights; return how many matrices changed."""
    rows: Rows = {}
    for tensor in read_gguf(gguf).tensors:
        if tensor.kind == Q4_1:
            rows.update(_zero_points(gguf, tensor))
    if not rows:
        return 0
    openvino = import_openvino()
    graph = openvino.Core().read_model(model)
    changed = sum(_restore(node, rows) for node in graph.get_ops())
    if changed:
        graph.validate_nodes_and_infer_types()
        # The old weights are still mapped: the new ones take their place only when written.
        written = model.with_name(f"exact-{model.name}")
        openvino.save_model(graph, written, compress_to_fp16=False)
        written.with_suffix(".bin").replace(model.with_suffix(".bin"))
        written.replace(model)
    return changed


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
    """Replace the zero points of one decompression, (Convert(q) - Convert(z)) * d."""
    from openvino import opset13 as operators  # noqa: PLC0415 - after import_openvino

    if node.get_type_name() != "Multiply":
        return False
    difference, scale = (node.input_value(at).get_node() for at in range(2))
    if difference.get_type_name() != "Subtract" or scale.get_type_name() != "Constant":
        return False
    scales = scale.data
    if scales.dtype != np.float16 or scales.ndim != 3 or scales.shape[2] != 1:
        return False
    found = [rows.get(row.tobytes()) for row in scales[:, :, 0]]
    exact = [zeros for zeros in found if zeros is not None]
    if len(exact) < len(found):
        return False
    constant = operators.constant(np.stack(exact)[:, :, None])
    difference.input(1).replace_source_output(constant.output(0))
    return True
