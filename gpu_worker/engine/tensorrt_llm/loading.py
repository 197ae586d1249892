"""Puts the engine together: library, model, guides, and a first token before it is ready."""

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from gpu_worker.engine.protocol import EngineError
from gpu_worker.engine.tensorrt_llm import arguments as engine_arguments
from gpu_worker.engine.tensorrt_llm import library as installed
from gpu_worker.engine.tensorrt_llm.arguments import EngineArguments
from gpu_worker.engine.tensorrt_llm.engine import Model, TensorRtLlmEngine
from gpu_worker.engine.tensorrt_llm.errors import StartupError
from gpu_worker.engine.tensorrt_llm.guides import Guides
from gpu_worker.engine.tensorrt_llm.library import Library
from gpu_worker.engine.tensorrt_llm.model_folder import ModelFolder
from gpu_worker.engine.tensorrt_llm.watch import Limits

log = structlog.get_logger(__name__)


async def load(
    folder: ModelFolder,
    arguments: EngineArguments,
    *,
    slots: int,
    context_length: int | None,
    limits: Limits,
    leave: Callable[[int], None],
) -> TensorRtLlmEngine:
    """Load a model; takes minutes, in the event loop's own thread.

    It may start processes and set signal handlers, and looks for the event loop: this is how its
    maker's own servers do it. Nothing else of a worker runs at that time but its admin port, which
    has a thread of its own.

    Args:
        folder: the model.
        arguments: how to load it.
        slots: how many generations run at once.
        context_length: less than the model's, to save memory; None for the model's.
        limits: how long what may take before the engine counts as dead.
        leave: ends the process at once, with a status.

    Raises:
        StartupError: the library or the model cannot be used.
    """
    library, differences = installed.load()
    for difference in differences:
        log.warning("engine_differs", name=difference.name, problem=difference.problem)
    context = min(folder.facts.context_length, context_length or folder.facts.context_length)
    log.info("model_loading", model=folder.name, tensorrt_llm=library.features.version)
    try:
        llm = library.llm(
            **engine_arguments.keywords(
                str(folder.path), arguments, library, slots=slots, context_length=context
            )
        )
    except Exception as error:
        raise StartupError(
            f"TensorRT-LLM cannot load model {folder.name!r}: {_reason(error)}"
        ) from error
    engine = TensorRtLlmEngine(
        llm,
        library,
        Model(
            context_length=min(context, _capacity(llm) or context),
            vocabulary=folder.vocabulary,
            stop_token_ids=folder.facts.eos_ids,
        ),
        slots=slots,
        gpus=arguments.gpus,
        guides=await asyncio.to_thread(_guides, folder),
        leave=leave,
        limits=limits,
    )
    try:
        await engine.warm_up()
    except EngineError as error:
        await engine.close()
        raise StartupError(f"TensorRT-LLM does not generate: {error}") from error
    _say_what_it_lacks(library)
    return engine


def _say_what_it_lacks(library: Library) -> None:
    features = library.features
    lacking = [name for name in ("penalties", "seeds", "min_p") if not getattr(features, name)]
    if lacking:
        log.warning("engine_lacks", tensorrt_llm=features.version, features=lacking)


def _guides(folder: ModelFolder) -> Guides | None:
    if folder.eos_id is None:
        return None
    return Guides.of_model(
        folder.tokenizer_file,
        names=folder.tokenizer.special_tokens,
        size=folder.vocabulary,
        eos_id=folder.eos_id,
    )


def _capacity(llm: Any) -> int | None:
    """Return how many tokens the KV cache holds, where the library tells.

    A prompt beyond that has been seen to hang the engine for all.
    """
    ask = getattr(llm, "get_kv_cache_capacity", None)
    if ask is None:
        return None
    capacity = ask()
    return int(capacity["maxNumBlocks"]) * int(capacity["tokensPerBlock"]) or None


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1][:300] if lines else type(error).__name__
