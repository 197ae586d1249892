"""Keeps what OpenVINO's passes make of a model, which is most of what compiling it takes.

They rewrite the graph until it consists of what the processor's kernels do, and took a second at
each start of a worker. What they made can be exported. OpenVINO's own cache does that too, but
cannot read a graph with paged attention again: what the attention nodes know of their heads is no
part of the file. So it lies beside it here. When the graph is compiled again, the passes find next
to nothing to do.

Nothing of it is a promise of OpenVINO's: whatever fails, or computes other bits than before, leaves
the model as it was converted.
"""

import re
import shutil
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from gpu_worker.engine.cpu.batch import lone_prompt
from gpu_worker.engine.cpu.conversion import HEADS
from gpu_worker.engine.cpu.graph import compile_graph, heads_of, read_graph
from gpu_worker.engine.cpu.network import PagedNetwork, available_cores, load_network
from gpu_worker.engine.cpu.runtime import import_openvino

# Beyond that the weights take longer than the passes, and exporting them several times as much.
MOST_BYTES = 1 << 30
PROMPT_TOKENS = 8

_CONSTANT = re.compile(rb' offset="(\d+)" size="(\d+)"')


def lower(model: Path) -> bool:
    """Replace a converted model by its lowered form, for ``exact``; return whether it was done.

    Args:
        model: openvino_model.xml, its weights beside it.
    """
    if model.with_suffix(".bin").stat().st_size > MOST_BYTES:
        return False
    folder = model.parent / "lowered"
    folder.mkdir()
    try:
        before = _write(model, folder / model.name)
        if not np.array_equal(before, _first_logits(load_network(folder / model.name))):
            return False
    except Exception:  # noqa: BLE001 - OpenVINO raises several kinds
        return False
    else:
        for made in folder.iterdir():
            made.replace(model.with_name(made.name))
        return True
    finally:
        shutil.rmtree(folder)


def _write(model: Path, lowered: Path) -> npt.NDArray[np.float32]:
    """Write the lowered form of a model; return the logits that the model itself gives."""
    openvino = import_openvino()
    # After import_openvino: see there.
    from openvino._offline_transformations import apply_fused_names_cleanup  # noqa: PLC0415

    core = openvino.Core()
    graph = read_graph(core, model, "exact")
    lowered.with_name(HEADS).write_bytes(msgspec.json.encode(heads_of(graph)))
    texts: list[bytes] = []

    def take(text: bytes) -> bytes:
        texts.append(text)
        return b""

    compiled = compile_graph(
        core,
        graph,
        "exact",
        threads=available_cores(),
        # Meant to encrypt the graph's text, which so comes to us and not into the stream.
        properties={"CACHE_ENCRYPTION_CALLBACKS": [take, take]},
    )
    exported = lowered.with_name(f"exported-{lowered.name}")
    _export(compiled, texts, exported)
    graph = core.read_model(exported)
    # Names of all nodes that became one are a third of the text. Writing it again leaves out
    # weights that are there twice.
    apply_fused_names_cleanup(graph)
    openvino.save_model(graph, lowered, compress_to_fp16=False)
    for path in (exported, exported.with_suffix(".bin")):
        path.unlink()
    return _first_logits(PagedNetwork(compiled))


def _export(compiled: Any, texts: list[bytes], model: Path) -> None:
    stream = BytesIO()
    compiled.export_model(stream)
    (text,) = texts
    model.write_bytes(text)
    # The text would come last. Without it, the constants do.
    size = max(int(offset) + int(size) for offset, size in _CONSTANT.findall(text))
    model.with_suffix(".bin").write_bytes(stream.getbuffer()[-size:])


def _first_logits(network: PagedNetwork) -> npt.NDArray[np.float32]:
    """Compute a short prompt."""
    network.allocate(1)
    prompt = lone_prompt(PROMPT_TOKENS, block=0, block_size=network.block_size)
    return network.forward([prompt]).copy()
