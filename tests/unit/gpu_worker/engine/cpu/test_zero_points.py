"""Exact zero points for Q4_1 weights, on a graph as OpenVINO's GGUF reader makes it."""

import struct

import numpy as np
import pytest

from gpu_worker.engine.cpu.runtime import import_openvino
from gpu_worker.engine.cpu.zero_points import restore_zero_points, use_whole_zero_points

ROWS, WIDTH = 6, 64
ORDER = [3, 0, 5, 1, 4, 2]  # the reader reorders the rows of some matrices


@pytest.fixture
def quantized():
    """Quants, scales and minima of a matrix."""
    random = np.random.default_rng(0)
    quants = random.integers(0, 16, (ROWS, 2, 32)).astype(np.uint8)
    scales = random.uniform(0.01, 0.02, (ROWS, 2)).astype(np.float16)
    minima = -random.uniform(0.02, 0.14, (ROWS, 2)).astype(np.float16)
    return quants, scales, minima


@pytest.fixture
def gguf(tmp_path, quantized):
    quants, scales, minima = quantized
    packed = quants[..., :16] | quants[..., 16:] << 4
    blocks = np.concatenate(
        [scales[..., None].view(np.uint8), minima[..., None].view(np.uint8), packed], axis=-1
    )
    name = b"blk.0.attn_q.weight"
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0)
    header += struct.pack("<Q", len(name)) + name + struct.pack("<IQQIQ", 2, WIDTH, ROWS, 3, 0)
    path = tmp_path / "model.gguf"
    path.write_bytes(header.ljust(-(-len(header) // 32) * 32, b"\0") + blocks.tobytes())
    return path


def save(path, quants, scales, zero_points):
    """Write a graph that multiplies by a decompressed matrix."""
    openvino = import_openvino()
    from openvino import opset13 as operators  # noqa: PLC0415 - after import_openvino

    def unpacked(values):
        compressed = operators.constant(values.astype(np.uint8), dtype=openvino.Type.u4)
        return operators.convert(compressed, np.float16)

    difference = operators.subtract(unpacked(quants), unpacked(zero_points))
    weights = operators.multiply(difference, operators.constant(scales[..., None]))
    matrix = operators.convert(
        operators.reshape(weights, np.array([ROWS, WIDTH]), special_zero=False), np.float32
    )
    vector = operators.parameter([-1, WIDTH], np.float32, name="x")
    product = operators.matmul(vector, matrix, False, True)
    openvino.save_model(openvino.Model([product], [vector]), path, compress_to_fp16=False)


def read(model):
    return import_openvino().Core().read_model(model)


def multiply(graph, vectors):
    core = import_openvino().Core()
    compiled = core.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled(vectors)[0]


def zero_points(graph):
    """Return the type of every zero point in a graph."""
    found = []
    for node in graph.get_ops():
        if node.get_type_name() == "Subtract":
            source = node.input_value(1).get_node()
            if source.get_type_name() == "Convert":
                source = source.input_value(0).get_node()
            found.append(source.get_element_type().get_type_name())
    return found


def test_product_is_that_of_the_file_s_weights(tmp_path, gguf, quantized):
    """After the restoration the graph computes with the weights of the file, reordered or not."""
    quants, scales, minima = quantized
    model = tmp_path / "openvino_model.xml"
    rounded = np.round(-minima.astype(np.float32) / scales).clip(0, 15)[..., None]
    save(model, quants[ORDER], scales[ORDER], rounded[ORDER])
    exact = quants * scales[..., None].astype(np.float32) + minima[..., None].astype(np.float32)
    expected = exact.reshape(ROWS, WIDTH)[ORDER].T
    vectors = np.eye(WIDTH, dtype=np.float32)
    graph = read(model)
    assert np.abs(multiply(graph, vectors) - expected).max() > 1e-3
    assert restore_zero_points(graph, gguf) == 1
    assert np.abs(multiply(graph, vectors) - expected).max() < 1e-4


def test_other_matrices_stay(tmp_path, gguf, quantized):
    """A matrix whose scales are not in the file is left as it is."""
    quants, scales, _ = quantized
    model = tmp_path / "openvino_model.xml"
    save(model, quants, scales * 2, np.full((ROWS, 2, 1), 8))
    graph = read(model)
    assert restore_zero_points(graph, gguf) == 0
    assert zero_points(graph) == ["u4"]


def test_whole_zero_points_keep_the_weights(tmp_path, gguf, quantized):
    """Made integers, zero points move no weight by more than a 32nd of its quantization step."""
    quants, scales, minima = quantized
    model = tmp_path / "openvino_model.xml"
    save(model, quants, scales, np.full((ROWS, 2, 1), 8))
    graph = read(model)
    restore_zero_points(graph, gguf)
    assert zero_points(graph) == ["f16"]
    assert use_whole_zero_points(graph) == 1
    assert zero_points(graph) == ["u8"]
    exact = quants * scales[..., None].astype(np.float32) + minima[..., None].astype(np.float32)
    moved = np.abs(multiply(graph, np.eye(WIDTH, dtype=np.float32)).T - exact.reshape(ROWS, WIDTH))
    assert (moved.reshape(ROWS, 2, 32) <= scales[..., None].astype(np.float32) / 31).all()


def test_zero_points_beyond_a_byte_stay(tmp_path, gguf, quantized):
    """A matrix whose zero points lie outside of its quants stays as it is."""
    quants, scales, _ = quantized
    model = tmp_path / "openvino_model.xml"
    save(model, quants, scales, np.full((ROWS, 2, 1), 8))
    content = gguf.read_bytes()
    # The last block of the file: its scale, its minimum, its quants.
    gguf.write_bytes(content[:-18] + np.float16(0.01).tobytes() + content[-16:])
    graph = read(model)
    restore_zero_points(graph, gguf)
    assert use_whole_zero_points(graph) == 0
    assert zero_points(graph) == ["f16"]


def test_zero_points_that_are_whole_already_stay(tmp_path, quantized):
    """A matrix that nothing was restored in keeps its quants of four bits."""
    quants, scales, _ = quantized
    model = tmp_path / "openvino_model.xml"
    save(model, quants, scales, np.full((ROWS, 2, 1), 8))
    assert use_whole_zero_points(read(model)) == 0
