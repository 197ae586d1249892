"""A model as OpenVINO's graph: read, given paged attention, and compiled."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gpu_worker.engine.cpu.conversion import HEADS
from gpu_worker.engine.cpu.precision import PROPERTIES, Precision
from gpu_worker.engine.cpu.zero_points import use_whole_zero_points

ATTENTION = "PagedAttentionExtension"
Heads = dict[str, dict[str, int]]

# Passes leave a constant that is marked so as it is. The lowered model has each as kernels want
# it; without the mark, weights of 4 bits would be widened to 8.
_KEEP = "keep_const_precision_0"


def read_graph(core: Any, model: Path, precision: Precision) -> Any:
    """Read a model, ready to be compiled.

    Args:
        core: of OpenVINO.
        model: openvino_model.xml, its weights beside it; as it was converted, or lowered.
        precision: what it is to be compiled for.
    """
    heads = model.with_name(HEADS)
    if heads.is_file():
        return _lowered(core, model, msgspec.json.decode(heads.read_bytes(), type=Heads))
    graph = core.read_model(model)
    if precision == "fast":
        use_whole_zero_points(graph)
    add_paged_attention(graph)
    return graph


def compile_graph(
    core: Any,
    graph: Any,
    precision: Precision,
    *,
    threads: int,
    properties: Mapping[str, object] | None = None,
) -> Any:
    """Compile a graph for the CPU; takes a second, or half of one if it was lowered."""
    return core.compile_model(
        graph,
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
            "INFERENCE_NUM_THREADS": str(threads),
            # Pinned threads of two processes would fight for the same cores.
            "ENABLE_CPU_PINNING": "NO",
            **PROPERTIES[precision],
            **(properties or {}),
        },
    )


def add_paged_attention(graph: Any) -> None:
    """Rewrite a stateful graph in place: paged KV cache, and logits of chosen tokens only.

    The rewriting pass is not a public interface of OpenVINO: its version is pinned and a test
    compiles a model with it.
    """
    # Both after import_openvino: see there.
    from openvino import opset13 as operators  # noqa: PLC0415
    from openvino._offline_transformations import (  # noqa: PLC0415
        paged_attention_transformation,
    )

    paged_attention_transformation(graph)
    head = graph.get_results()[0].input(0).get_source_output().get_node()
    while head.get_type_name() != "MatMul":
        head = head.input(0).get_source_output().get_node()
    hidden = head.input(0)
    sampled = operators.parameter([-1], np.int64, name="sampled")
    sampled.output(0).set_names({"sampled"})
    axis = operators.constant(0, np.int64)
    gathered = operators.gather(hidden.get_source_output(), sampled, axis)
    hidden.replace_source_output(gathered.output(0))
    graph.add_parameters([sampled])
    graph.validate_nodes_and_infer_types()


def vocabulary_of(graph: Any) -> int:
    """Return how many token ids there are, which is the width of the logits."""
    return int(graph.output("logits").partial_shape[-1].get_length())


def heads_of(graph: Any) -> Heads:
    """Return what a graph's attention nodes know of their heads."""
    return {
        node.get_friendly_name(): {name: info.value for name, info in node.get_rt_info().items()}
        for node in graph.get_ops()
        if node.get_type_name() == ATTENTION
    }


def _lowered(core: Any, model: Path, heads: Heads) -> Any:
    # Whoever asks for one of its properties loads the plugin, and with it the operators that only
    # it has.
    core.get_property("CPU", "FULL_DEVICE_NAME")
    graph = core.read_model(model)
    for node in graph.get_ops():
        kind = node.get_type_name()
        if kind == "Constant":
            node.get_rt_info()[_KEEP] = True
        elif kind == ATTENTION:
            info = node.get_rt_info()
            for name, value in heads[node.get_friendly_name()].items():
                info[name] = value
    return graph
