"""Which engine a worker runs: loads it and its model as the settings say."""

import asyncio
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from fastrun.service.lifecycle import StartError
from fastrun.v1.worker_pb2 import ModelCard
from gpu_worker.config import Config
from gpu_worker.dialect import families
from gpu_worker.dialect.chat_template import ChatTemplate, PromptEncoder, TemplateError
from gpu_worker.dialect.family import deepseek_dsml
from gpu_worker.engine.errors import ModelError
from gpu_worker.engine.protocol import Engine, EngineError, SamplingParams, UnsupportedError
from gpu_worker.generation import Model
from gpu_worker.model_file import Dialect, ModelFileError, PublicFacts, template_source
from gpu_worker.model_store import store_of
from gpu_worker.prompt import SamplingDefaults

if TYPE_CHECKING:
    from gpu_worker.dialect.tokenizer import Tokenizer
    from gpu_worker.engine.cpu.engine import CpuEngine
    from gpu_worker.engine.model_facts import ModelFacts

log = structlog.get_logger()

SCRIPTED_NAME = "scripted"
# For a model that brings none: a base model continues a transcript.
TRANSCRIPT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% endfor %}assistant:"
)


async def load(config: Config, *, leave: Callable[[int], None] = os._exit) -> tuple[Engine, Model]:
    """Load engine and model, and generate a little; takes seconds, or minutes with a GPU.

    So the first request waits for nothing to be compiled, and an engine that cannot generate never
    registers.

    Args:
        config: the settings.
        leave: ends the process at once; for an engine whose threads or processes may hang.

    Raises:
        StartError: with one sentence that says what to do.
    """
    if config.engine == "scripted":
        return _scripted(config)
    try:
        if config.engine == "tensorrt-llm":
            return await _tensorrt_llm(config, leave)
        engine, model = await asyncio.to_thread(_cpu, config)
    except (TemplateError, ModelFileError) as error:
        raise StartError(str(error)) from error
    await _warm_up(engine)
    return engine, model


async def _warm_up(engine: "CpuEngine") -> None:
    try:
        await engine.warm_up()
    except asyncio.CancelledError:
        await engine.close()
        raise
    except EngineError as error:
        await engine.close()
        raise StartError(f"the CPU engine does not generate: {error}") from error


def _scripted(config: Config) -> tuple[Engine, Model]:
    from gpu_worker.engine import scripted  # noqa: PLC0415 - only the chosen engine is loaded

    tokenizer = scripted.ByteTokenizer()
    engine = scripted.ScriptedEngine(
        slots=config.slots,
        context_length=config.scripted_context,
        seconds_per_token=_seconds_per(config.scripted_tokens_per_s),
        seconds_per_prompt_token=_seconds_per(config.scripted_prompt_tokens_per_s),
    )
    template = ChatTemplate(scripted.CHAT_TEMPLATE)
    profile = families.find(template)
    model = Model(
        card=ModelCard(
            model=config.model.partition("=")[0] or SCRIPTED_NAME,
            context_length=engine.context_length,
            longest_token_bytes=tokenizer.longest_token_bytes,
            created=int(datetime.now(tz=UTC).timestamp()),
            # A script cannot be held to anything.
            features=[name for name in profile.features if name != "structured_output"],
        ),
        encoder=PromptEncoder(template, tokenizer),
        profile=profile,
        token_bytes=tokenizer.token_bytes,
        stop_token_ids=(scripted.TURN_END,),
    )
    return engine, model


def _seconds_per(rate: float) -> float:
    return 1 / rate if rate else 0.0


def _cpu(config: Config) -> tuple["CpuEngine", Model]:
    try:
        return _load_cpu(config)
    except ImportError as error:
        raise StartError("the CPU engine is missing: pip install 'fastrun[cpu]'") from error
    except ModelError as error:
        raise StartError(str(error)) from error


def _load_cpu(config: Config) -> tuple["CpuEngine", Model]:
    # Only the chosen engine is loaded: this one needs the extra `cpu`.
    from gpu_worker.dialect.tokenizer import JsonTokenizer  # noqa: PLC0415
    from gpu_worker.engine.cpu import model_source, preparation  # noqa: PLC0415
    from gpu_worker.engine.cpu.runtime import import_openvino  # noqa: PLC0415

    source = model_source.model_source(config.model or None, store_of(config.models))
    with ThreadPoolExecutor(1, "model-files") as beside:
        preparing = beside.submit(
            preparation.prepare,
            source,
            precision="fast" if config.precision == "fast" else "exact",
            cache=Path(config.cache) if config.cache else None,
            progress=Phases(),
        )
        # The engine's libraries are imported while files are hashed, which needs no Python.
        from gpu_worker.engine.cpu import loading  # noqa: PLC0415

        import_openvino()
        prepared = preparing.result()
    log.info("model_loading", model=prepared.name)
    tokenizer = cache(partial(JsonTokenizer.from_file, prepared.tokenizer))
    engine = loading.load_cpu_engine(
        prepared,
        slots=config.slots,
        kv_cache_bytes=config.kv_cache_mib << 20,
        threads=config.threads or None,
        tokenizer=tokenizer,
    )
    return engine, _model(source, prepared, tokenizer(), engine)


async def _tensorrt_llm(config: Config, leave: Callable[[int], None]) -> tuple[Engine, Model]:
    # Only the chosen engine is loaded: this one needs NVIDIA's image.
    from gpu_worker.engine.tensorrt_llm import loading, model_folder  # noqa: PLC0415
    from gpu_worker.engine.tensorrt_llm.arguments import EngineArguments  # noqa: PLC0415
    from gpu_worker.engine.tensorrt_llm.errors import StartupError  # noqa: PLC0415
    from gpu_worker.engine.tensorrt_llm.watch import Limits  # noqa: PLC0415

    try:
        folder = await asyncio.to_thread(model_folder.find, config.model, store_of(config.models))
        engine = await loading.load(
            folder,
            EngineArguments(
                tensor_parallel=config.tensor_parallel,
                pipeline_parallel=config.pipeline_parallel,
                tokens_per_step=config.tokens_per_step,
                kv_cache_fraction=config.kv_cache_fraction,
                kv_cache_dtype=config.kv_cache_dtype,
                prefix_cache=config.prefix_cache,
            ),
            slots=config.slots,
            context_length=config.context_length or None,
            limits=Limits(stalled_s=config.stalled_s),
            leave=leave,
        )
    except StartupError as error:
        raise StartError(str(error)) from error
    return engine, _model(folder, folder.facts, folder.tokenizer, engine)


class Source(Protocol):
    """What was asked for: see model_source.py and model_folder.py."""

    @property
    def name(self) -> str:
        """What clients ask for."""

    @property
    def dialect(self) -> Dialect:
        """What is set by hand."""

    @property
    def public(self) -> PublicFacts:
        """What is published."""


def _model(source: Source, prepared: "ModelFacts", tokenizer: "Tokenizer", engine: Engine) -> Model:
    dialect, public = source.dialect, source.public
    written = (
        template_source(dialect)
        or prepared.chat_template
        or deepseek_dsml.template_for(tokenizer.special_tokens)
    )
    begins = written or prepared.bos_id is not None
    template = ChatTemplate(
        written or TRANSCRIPT_TEMPLATE,
        variables={
            "bos_token": prepared.bos_token if begins else "",
            "eos_token": prepared.eos_token,
        },
    )
    profile = dialect.profile(template)
    known(dialect.stop_tokens, tokenizer)
    return Model(
        card=ModelCard(
            model=source.name,
            name=public.name,
            hugging_face_id=public.hugging_face_id,
            quantization=public.quantization,
            context_length=engine.context_length,
            longest_token_bytes=prepared.longest_token_bytes,
            created=prepared.created if public.created is None else public.created,
            features=profile.features,
        ),
        encoder=PromptEncoder(template, tokenizer, bos_id=prepared.bos_id),
        profile=profile,
        token_bytes=with_markers(tokenizer, profile.markers),
        stop_token_ids=with_stop_tokens(prepared.eos_ids, profile.stop_tokens, tokenizer),
        defaults=SamplingDefaults(
            temperature=1.0 if prepared.temperature is None else prepared.temperature,
            top_p=1.0 if prepared.top_p is None else prepared.top_p,
            top_k=prepared.top_k or 0,
            repetition_penalty=_penalty(prepared.repetition_penalty or 1.0, engine),
        ),
    )


def _penalty(wanted: float, engine: Engine) -> float:
    """What a model asks for by itself, unless its engine would refuse each request for that."""
    try:
        engine.check(SamplingParams(max_tokens=1, repetition_penalty=wanted))
    except UnsupportedError:
        return 1.0
    return wanted


def known(stop_tokens: Iterable[str], tokenizer: "Tokenizer") -> None:
    """Check the stop tokens that a model file names: one that is none would never end a turn.

    Raises:
        ModelFileError: the model has no such token.
    """
    for text in stop_tokens:
        if text not in tokenizer.special_tokens:
            raise ModelFileError(f"dialect.stop_tokens: the model has no special token {text!r}")


def with_stop_tokens(
    eos_ids: Iterable[int], texts: Iterable[str], tokenizer: "Tokenizer"
) -> tuple[int, ...]:
    """Return the tokens that end a turn: those of the model's files and of its family."""
    special = tokenizer.special_tokens
    family = (special[text] for text in texts if text in special)
    return tuple(dict.fromkeys((*eos_ids, *family)))


def with_markers(tokenizer: "Tokenizer", markers: Iterable[str]) -> Callable[[int], bytes]:
    """Return what tokens stand for, such that a parser sees its markers in any vocabulary."""
    hidden = {
        token_id: marker.encode()
        for marker in markers
        if (token_id := tokenizer.special_tokens.get(marker)) is not None
        and not tokenizer.token_bytes(token_id)
    }
    if not hidden:
        return tokenizer.token_bytes
    return lambda token_id: hidden.get(token_id) or tokenizer.token_bytes(token_id)


class Phases:
    """Logs what a long preparation does, each phase and each quarter of it once."""

    def __init__(self) -> None:
        self._last: tuple[str, int | None] | None = None

    def __call__(self, phase: str, fraction: float | None) -> None:
        """Take what is being done, and how much of it is done."""
        percent = None if fraction is None else int(fraction * 4) * 25
        if (phase, percent) != self._last:
            self._last = (phase, percent)
            log.info("model_preparing", phase=phase, percent=percent)
