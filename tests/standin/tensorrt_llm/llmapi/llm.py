"""The LLM class: everything that a user calls."""

import asyncio
import inspect
import os
import queue
import time
from pathlib import Path

import tokenizers

from tensorrt_llm._contract import CONTRACT, IS_OLD, names
from tensorrt_llm.executor.result import GenerationResult
from tensorrt_llm.executor.utils import RequestError
from tensorrt_llm.llmapi._executor import Executor
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs
from tensorrt_llm.sampling_params import SamplingParams

assert os.environ.get("TRTLLM_NO_USAGE_STATS") == "1", "it would tell its maker how it is used"


def _parameter(name, default):
    if default == "<required>":
        default = inspect.Parameter.empty
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)


SIGNATURE = inspect.Signature(
    [_parameter(name, default) for name, default in names("generate_async").items()]
)


class LLM:
    """A loaded model."""

    def __init__(self, **keywords):
        for name in keywords:
            if name not in names("LLM"):
                raise ValueError(f"LLM got invalid argument: {name}")
        asyncio.get_running_loop()  # so that results can be awaited in it
        self.args = TorchLlmArgs(**keywords)
        if self.args.kv_cache_config.dtype not in ("auto", "fp8", "nvfp4"):
            raise ValueError("1 validation error for KvCacheConfig\ndtype: unknown")
        folder = Path(self.args.model)
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(f"{folder} does not exist")
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        self._executor = Executor(self.args, text, tokenizers.Tokenizer.from_str(text))
        self._params = []  # kept, so that no new one gets the id of an old one
        self._has_statistics_reader = False

    def generate_async(self, **keywords):
        """Begin a request: returns at once, within the loop that reads the result."""
        given = SIGNATURE.bind(**keywords)
        given.apply_defaults()
        inputs, params = given.arguments["inputs"], given.arguments["sampling_params"]
        loop = asyncio.get_running_loop()
        if self._executor is None:
            raise RuntimeError("LLM is shutting down")
        if not isinstance(params, SamplingParams):
            raise TypeError("sampling_params must be a SamplingParams")
        assert all(params is not other for other in self._params[-4096:]), "it was written to"
        self._params.append(params)
        if set(inputs) != {"prompt_token_ids"}:
            raise TypeError("this stand-in takes token ids only")
        token_ids = inputs["prompt_token_ids"]
        if not (isinstance(token_ids, list) and all(isinstance(each, int) for each in token_ids)):
            raise TypeError("prompt_token_ids must be a list of int")
        if not self.args.enable_chunked_prefill and len(token_ids) > self.args.max_num_tokens:
            raise RequestError("The sum of prompt length should not exceed max_num_tokens")
        assert given.arguments["streaming"]
        assert given.arguments["cache_salt"] != ""
        result = GenerationResult(len(self._params), self._executor, loop)
        if self._executor.blocks_caller(token_ids):
            time.sleep(3600)
        self._executor.submit(result, token_ids, params, given.arguments["cache_salt"])
        return result

    async def get_stats_async(self, timeout=None):
        """Yield statistics until there are none for some seconds."""
        assert not self._has_statistics_reader, "the queue has one reader"
        assert self._params, "there is nothing to tell before a first request"
        self._has_statistics_reader = True
        try:
            waited = 0.0
            while waited < timeout:
                try:
                    yield self._executor.statistics.get_nowait()
                    waited = 0.0
                except queue.Empty:
                    await asyncio.sleep(0.01)
                    waited += 0.01
        finally:
            self._has_statistics_reader = False

    def shutdown(self):
        """End the executor."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.close()

    def _check_health(self):
        return self._executor is not None and self._executor.check_health()


LLM.generate_async.__signature__ = SIGNATURE.replace(
    parameters=[
        inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *SIGNATURE.parameters.values(),
    ]
)

if not IS_OLD:

    def _capacity(self):
        return {"maxNumBlocks": self._executor.blocks, "tokensPerBlock": 32}

    LLM.get_kv_cache_capacity = _capacity

assert all(hasattr(LLM, name) for name in CONTRACT["LLM_methods"])
