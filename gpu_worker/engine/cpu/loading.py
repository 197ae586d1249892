"""Puts the CPU engine together from a prepared model."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gpu_worker.dialect.tokenizer import JsonTokenizer
from gpu_worker.engine.cpu.engine import TOKENS_PER_STEP, CpuEngine
from gpu_worker.engine.cpu.grammar_compiler import GrammarCompiler
from gpu_worker.engine.cpu.graph import compile_graph, read_graph, vocabulary_of
from gpu_worker.engine.cpu.network import PagedNetwork, available_cores
from gpu_worker.engine.cpu.preparation import PreparedModel
from gpu_worker.engine.cpu.runtime import import_openvino
from gpu_worker.engine.errors import ModelError

SLOTS = 32
KV_CACHE_BYTES = 1 << 30


def load_cpu_engine(
    model: PreparedModel,
    *,
    slots: int = SLOTS,
    kv_cache_bytes: int = KV_CACHE_BYTES,
    threads: int | None = None,
    tokens_per_step: int = TOKENS_PER_STEP,
    tokenizer: Callable[[], JsonTokenizer] | None = None,
) -> CpuEngine:
    """Load a model; takes seconds and must not run in an event loop.

    Args:
        model: from ``prepare``.
        slots: how many generations run at once.
        kv_cache_bytes: upper bound of the KV cache, whose memory is taken as it is first used. It
            is not made larger than all slots can fill; if it is smaller than one context, the
            engine's context_length shrinks to it.
        threads: for the network; None for one per core that this process may use.
        tokens_per_step: how many tokens one step computes at most.
        tokenizer: reads the model's, where the caller needs it too; called once, and done with
            when this returns.

    Raises:
        ModelError: it is not a model that paged attention can be built into.
    """
    try:
        network, grammars = _compiled(
            model,
            threads or available_cores(),
            tokenizer or partial(JsonTokenizer.from_file, model.tokenizer),
        )
    except Exception as error:  # OpenVINO raises several kinds
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise ModelError(f"model {model.name!r} cannot be loaded: {reason[0]}") from error
    usable = slots * -(-model.context_length // network.block_size)
    blocks = max(1, min(usable, kv_cache_bytes // network.block_bytes))
    network.allocate(blocks)
    return CpuEngine(
        network,
        slots=slots,
        context_length=model.context_length,
        blocks=blocks,
        grammars=grammars,
        tokens_per_step=tokens_per_step,
    )


def _compiled(
    model: PreparedModel, threads: int, tokenizer: Callable[[], JsonTokenizer]
) -> tuple[PagedNetwork, GrammarCompiler | None]:
    core = import_openvino().Core()
    graph = read_graph(core, model.ir, model.precision)
    # Compiling takes half a second or more, and no Python. Reading vocabularies takes nearly as
    # long, and lets no other Python run meanwhile.
    with ThreadPoolExecutor(1, "vocabulary") as beside:
        making = beside.submit(_grammars, model, vocabulary_of(graph), tokenizer)
        try:
            compiled = compile_graph(core, graph, model.precision, threads=threads)
        except BaseException:
            if grammars := making.result():
                grammars.close()
            raise
        return PagedNetwork(compiled), making.result()


def _grammars(
    model: PreparedModel, vocabulary: int, tokenizer: Callable[[], JsonTokenizer]
) -> GrammarCompiler | None:
    if not model.eos_ids:
        return None
    return GrammarCompiler(
        model.tokenizer, vocabulary=vocabulary, eos_ids=model.eos_ids, read=tokenizer()
    )
