"""The TensorRT-LLM engine of this process, over the stand-in."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_worker.engine.tensorrt_llm import loading, model_folder
from gpu_worker.engine.tensorrt_llm.arguments import EngineArguments
from gpu_worker.engine.tensorrt_llm.engine import TensorRtLlmEngine
from gpu_worker.engine.tensorrt_llm.watch import Limits

STANDIN = Path(__file__).parent / "standin"
STANDS_IN = {"tensorrt_llm", "pynvml"}
TINY = Path(__file__).parent / "models" / "tiny"


@contextmanager
def installed(**environ: str) -> Iterator[pytest.MonkeyPatch]:
    """Have the stand-in installed, in this process, until the block ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(STANDIN))
        patch.setenv("TRTLLM_NO_USAGE_STATS", "1")
        for name, value in environ.items():
            patch.setenv(name, value)
        try:
            yield patch
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] in STANDS_IN]:
                del sys.modules[name]


async def load_standin(
    *,
    slots: int = 4,
    leave: Callable[[int], None] = lambda _status: None,
    limits: Limits | None = None,
    **arguments: object,
) -> TensorRtLlmEngine:
    """Load the tiny model's vocabulary into the stand-in, which has to be installed."""
    return await loading.load(
        model_folder.find(f"tiny={TINY}"),
        EngineArguments(**arguments),
        slots=slots,
        context_length=None,
        limits=limits or Limits(),
        leave=leave,
    )
