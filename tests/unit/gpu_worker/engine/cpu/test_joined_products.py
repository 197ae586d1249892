"""Products of one vector by several compressed matrices, joined to one."""

import numpy as np
import pytest

from gpu_worker.engine.cpu.joined_products import join_products
from gpu_worker.engine.cpu.runtime import import_openvino

WIDTH = 64


@pytest.fixture
def random():
    return np.random.default_rng(0)


def graph_of(random, *matrices):
    """Make a graph that multiplies one vector by matrices of so many rows, in groups so wide."""
    openvino = import_openvino()
    operators = openvino.opset13
    vector = operators.parameter([-1, WIDTH], np.float32, name="x")
    products = []
    for rows, width in matrices:
        shape = (rows, WIDTH // width, width)
        quants = operators.constant(
            random.integers(0, 16, shape).astype(np.uint8), dtype=openvino.Type.u4
        )
        zero_points = operators.constant(
            random.uniform(0, 15, (*shape[:2], 1)).astype(np.float16), dtype=openvino.Type.f16
        )
        scales = operators.constant(random.uniform(0.01, 0.02, (*shape[:2], 1)).astype(np.float16))
        weights = operators.multiply(
            operators.subtract(operators.convert(quants, np.float16), zero_points), scales
        )
        flat = operators.reshape(weights, np.array([rows, WIDTH]), special_zero=False)
        matrix = operators.convert(flat, np.float32)
        products.append(operators.matmul(vector, matrix, transpose_a=False, transpose_b=True))
    return openvino.Model(products, [vector])


def results(graph, vectors):
    compiled = (
        import_openvino().Core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    )
    return list(compiled(vectors).values())


def products(graph):
    return sum(node.get_type_name() == "MatMul" for node in graph.get_ops())


def test_joined_products_are_the_same(random):
    """Each has its own rows of the one product, in its own place."""
    graph = graph_of(random, (6, 32), (2, 32), (4, 32))
    vectors = random.normal(size=(3, WIDTH)).astype(np.float32)
    before = results(graph, vectors)
    assert join_products(graph) == 1
    assert products(graph) == 1
    # What the graph does not hold itself would be overwritten.
    overwriting = [np.full(size, 255, np.uint8) for size in range(16, 1024) for _ in range(8)]
    after = results(graph, vectors)
    del overwriting
    assert [each.shape for each in after] == [(3, 6), (3, 2), (3, 4)]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5)


def test_other_groups_stay_alone(random):
    """A matrix that is compressed in groups of another size is no part of it."""
    graph = graph_of(random, (6, 32), (2, 16), (4, 32))
    assert join_products(graph) == 1
    assert products(graph) == 2


def test_one_product_stays(random):
    """What has nothing to be joined with is left as it is."""
    graph = graph_of(random, (6, 32))
    assert join_products(graph) == 0
    assert products(graph) == 1
