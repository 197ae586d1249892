"""Puts the CPU engine together from a prepared model."""

from concurrent.futures import Future

from gpu_worker.dialect.tokenizer import JsonTokenizer
from gpu_worker.engine.cpu.engine import TOKENS_PER_STEP, CpuEngine
from gpu_worker.engine.cpu.grammar_compiler import GrammarCompiler
from gpu_worker.engine.cpu.network import load_network
from gpu_worker.engine.cpu.preparation import PreparedModel
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
    tokenizer: Future[JsonTokenizer] | None = None,
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
        tokenizer: the model's, where the caller reads it; else it is read here, for grammars.

    Raises:
        ModelError: it is not a model that paged attention can be built into.
    """
    try:
        network = load_network(model.ir, precision=model.precision, threads=threads)
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
        grammars=_grammars(model, network.vocabulary, tokenizer),
        tokens_per_step=tokens_per_step,
    )


def _grammars(
    model: PreparedModel, vocabulary: int, reading: Future[JsonTokenizer] | None
) -> GrammarCompiler | None:
    if not model.eos_ids:
        return None
    return GrammarCompiler(
        model.tokenizer, vocabulary=vocabulary, eos_ids=model.eos_ids, reading=reading
    )
