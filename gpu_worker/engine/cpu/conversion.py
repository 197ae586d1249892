"""Turns a GGUF file into OpenVINO's format, in a process of its own.

The converter takes several times the model's size in memory and can die on a damaged file; neither
should be the worker's. Run as ``python -m gpu_worker.engine.cpu.conversion FILE PRECISION``: the
result is written beside the file.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from gpu_worker.engine.cpu.precision import Precision
from gpu_worker.engine.cpu.runtime import import_openvino
from gpu_worker.engine.errors import ModelError

RESULT = "openvino_model.xml"
HEADS = "heads.json"
"""Beside a lowered model: what its attention nodes know of their heads, by their names."""
TIMEOUT_S = 3600.0
# No device has this name. The converter saves the model before it compiles it for a device, and the
# compilation, which nobody needs here, is the larger part of its time.
NO_DEVICE = "NONE"


def convert(gguf: Path, folder: Path, precision: Precision) -> None:
    """Write openvino_model.xml and .bin into folder, lowered if that can be.

    Raises:
        ModelError: the converter refused the file.
    """
    link = folder / "model.gguf"
    # The converter opens it for writing, and writes nothing. In an image it is somebody else's.
    if os.access(gguf, os.W_OK):
        link.symlink_to(gguf)
    else:
        shutil.copyfile(gguf, link)
    with tempfile.TemporaryFile() as errors:
        # As safe as the worker itself from modules in the working directory.
        safe = ["-P"] if sys.flags.safe_path else []
        module = "gpu_worker.engine.cpu.conversion"
        command = [sys.executable, *safe, "-m", module, str(link), precision]
        with subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors
        ) as process:
            try:
                process.wait(TIMEOUT_S)
            except BaseException:
                process.kill()
                raise
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    if process.returncode != 0 or not (folder / RESULT).is_file():
        raise ModelError(f"{gguf} cannot be converted: {lines[-1] if lines else 'no reason given'}")
    keep = {RESULT, Path(RESULT).with_suffix(".bin").name, HEADS}
    for path in folder.iterdir():
        if path.name not in keep:
            path.unlink()


def main(gguf: Path, precision: str) -> None:
    """Convert in this process."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    openvino = import_openvino()
    # After import_openvino, which keeps it off the network; numpy is not for those who only ask.
    import openvino_genai  # noqa: PLC0415
    from openvino._offline_transformations import apply_moc_transformations  # noqa: PLC0415

    from gpu_worker.engine.cpu.joined_products import join_products  # noqa: PLC0415
    from gpu_worker.engine.cpu.lowering import lower  # noqa: PLC0415
    from gpu_worker.engine.cpu.zero_points import restore_zero_points  # noqa: PLC0415

    try:
        openvino_genai.LLMPipeline(str(gguf), NO_DEVICE, enable_save_ov_model=True)
    except RuntimeError:
        if not (gguf.parent / RESULT).is_file():
            openvino_genai.LLMPipeline(str(gguf), "CPU", enable_save_ov_model=True)
    model = gguf.parent / RESULT
    graph = openvino.Core().read_model(model)
    restore_zero_points(graph, gguf)
    join_products(graph)
    # What every compilation would begin with.
    apply_moc_transformations(graph, cf=False)
    # The old weights are still mapped: the new ones take their place only when written.
    written = model.with_name(f"new-{model.name}")
    openvino.save_model(graph, written, compress_to_fp16=False)
    written.with_suffix(".bin").replace(model.with_suffix(".bin"))
    written.replace(model)
    if precision == "exact":
        lower(model)


def _die_with_parent() -> None:
    # The pipe ends when the parent does, however that happens.
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
    # The interpreter would wait for threads of native libraries.
    sys.stderr.flush()
    os._exit(0)
