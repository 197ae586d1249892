"""openvino-genai's continuous batching, with its own reader of GGUF files."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from fastrun.bench.engine.workload import TEMPERATURE, TOP_P, Workload, question
from gpu_worker.engine.cpu.precision import EXACT

CACHE_GB = 1
MOST_STREAMS = 64
TOKENS_PER_STEP = 256  # its own default


class OpenVinoGenAi:
    """Its pipeline."""

    def __init__(self, genai: Any, pipeline: Any) -> None:
        """Take a pipeline over."""
        self._genai = genai
        self._pipeline = pipeline
        self._tokenizer = pipeline.get_tokenizer()

    def run(self, workload: Workload, on_first_token: Callable[[], None]) -> int:
        """See contender.py."""
        handles = [self._begin(seed, workload.tokens) for seed in workload.seeds]
        waiting, tokens = set(handles), 0
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for handle in handles:
                while handle.can_read():
                    if handle in waiting:
                        waiting.remove(handle)
                        on_first_token()
                    tokens += sum(len(made.generated_ids) for made in handle.read().values())
        return tokens

    def _begin(self, seed: int, tokens: int) -> Any:
        config = self._genai.GenerationConfig(
            max_new_tokens=tokens,
            ignore_eos=True,
            do_sample=True,
            temperature=TEMPERATURE,
            top_p=TOP_P,
            rng_seed=seed,
        )
        messages = [{"role": "user", "content": question(seed)}]
        prompt = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        return self._pipeline.add_request(seed, prompt, config)


def load(name: str, *, model: str, threads: int) -> OpenVinoGenAi:
    """Load a model, in the precision of its choice or in ours."""
    genai = import_module("openvino_genai")
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.enable_prefix_caching = True
    scheduler.max_num_seqs = MOST_STREAMS
    scheduler.max_num_batched_tokens = TOKENS_PER_STEP
    precision = EXACT if name.endswith("f32") else {}
    properties = {"INFERENCE_NUM_THREADS": threads, **precision}
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
    return OpenVinoGenAi(genai, pipeline)
