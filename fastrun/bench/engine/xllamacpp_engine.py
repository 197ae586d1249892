"""llama.cpp's server inside the process, as xllamacpp packs it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from fastrun.bench.engine.workload import TEMPERATURE, TOP_P, Workload, question

MOST_STREAMS = 32
CONTEXT = 512  # of each stream


class LlamaCpp:
    """Its server."""

    def __init__(self, server: Any) -> None:
        """Take a server over."""
        self._server = server

    def run(self, workload: Workload, on_first_token: Callable[[], None]) -> int:
        """See contender.py."""
        with ThreadPoolExecutor(workload.streams) as threads:
            streams = [
                threads.submit(self._stream, seed, workload.tokens, on_first_token)
                for seed in workload.seeds
            ]
            return sum(stream.result() for stream in streams)

    def _stream(self, seed: int, tokens: int, on_first_token: Callable[[], None]) -> int:
        began, made = False, 0

        def take(chunk: Any) -> None:
            nonlocal began, made
            if not began and any(choice["delta"].get("content") for choice in chunk["choices"]):
                began = True
                on_first_token()
            made = chunk.get("usage", {}).get("completion_tokens", made)

        self._server.handle_chat_completions(
            {
                "messages": [{"role": "user", "content": question(seed)}],
                "max_tokens": tokens,
                "temperature": TEMPERATURE,
                "top_p": TOP_P,
                "seed": seed,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
            take,
        )
        return made


def load(name: str, *, model: str, threads: int) -> LlamaCpp:
    """Load a model."""
    del name
    library = import_module("xllamacpp")
    params = library.CommonParams()
    params.model.path = model
    params.n_parallel = MOST_STREAMS
    params.n_ctx = MOST_STREAMS * CONTEXT
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    return LlamaCpp(library.Server(params))
