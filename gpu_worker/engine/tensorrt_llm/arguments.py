"""How a model is loaded: from few settings to the keywords of TensorRT-LLM's constructor."""

from typing import Any

import msgspec

from gpu_worker.engine.tensorrt_llm.batch import SPARE
from gpu_worker.engine.tensorrt_llm.guides import BACKEND
from gpu_worker.engine.tensorrt_llm.library import Library


class EngineArguments(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may choose."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    # Tokens that one step computes at most; longer prompts take several.
    tokens_per_step: int = 8192
    # Of the memory that is free once the weights are loaded.
    kv_cache_fraction: float = 0.85
    kv_cache_dtype: str = "auto"
    # Prompts that begin alike share what the cache holds of them.
    prefix_cache: bool = True

    @property
    def gpus(self) -> int:
        """How many GPUs all that takes."""
        return self.tensor_parallel * self.pipeline_parallel


def keywords(
    model: str, arguments: EngineArguments, library: Library, *, slots: int, context_length: int
) -> dict[str, Any]:
    """Return the constructor's keywords.

    Args:
        model: a folder.
        arguments: chosen.
        library: the installed one.
        slots: how many generations run at once.
        context_length: prompt and completion together, in tokens.
    """
    return {
        "model": model,
        "tensor_parallel_size": arguments.tensor_parallel,
        "pipeline_parallel_size": arguments.pipeline_parallel,
        "max_batch_size": slots + SPARE,
        "max_beam_width": 1,
        "max_num_tokens": arguments.tokens_per_step,
        "max_seq_len": context_length,
        # Without it, every prompt over max_num_tokens is refused.
        "enable_chunked_prefill": True,
        "kv_cache_config": library.kv_cache_config(
            enable_block_reuse=arguments.prefix_cache,
            free_gpu_memory_fraction=arguments.kv_cache_fraction,
            dtype=arguments.kv_cache_dtype,
        ),
        # Without one, guides are ignored without a word.
        "guided_decoding_backend": BACKEND,
        "stream_interval": 1,
        "num_postprocess_workers": 0,
        # Read by one reader, always; those of requests have made memory grow.
        "enable_iter_perf_stats": True,
        "enable_iter_req_stats": False,
        "return_perf_metrics": False,
    }
