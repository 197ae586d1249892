"""Ours, with the model as a worker loads it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from fastrun.bench.engine.workload import TEMPERATURE, TOP_P, Workload, question
from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.tokenizer import JsonTokenizer
from gpu_worker.engine.cpu.engine import CpuEngine
from gpu_worker.engine.cpu.loading import load_cpu_engine
from gpu_worker.engine.cpu.model_source import ModelSource
from gpu_worker.engine.cpu.preparation import PreparedModel, prepare
from gpu_worker.engine.protocol import SamplingParams, StepOutput


class FastrunEngine:
    """The CPU engine."""

    def __init__(self, engine: CpuEngine, model: PreparedModel) -> None:
        """Take a loaded engine over."""
        self._engine = engine
        self._tokenizer = JsonTokenizer.from_file(model.tokenizer)
        self._template = ChatTemplate(
            model.chat_template or "{{ messages[0].content }}",
            variables={"bos_token": model.bos_token, "eos_token": model.eos_token},
        )
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(engine.warm_up())

    def run(self, workload: Workload, on_first_token: Callable[[], None]) -> int:
        """See contender.py."""
        return self._loop.run_until_complete(self._run(workload, on_first_token))

    async def _run(self, workload: Workload, on_first_token: Callable[[], None]) -> int:
        streams = [self._stream(seed, workload.tokens, on_first_token) for seed in workload.seeds]
        return sum(await asyncio.gather(*streams))

    async def _stream(self, seed: int, tokens: int, on_first_token: Callable[[], None]) -> int:
        came = 0

        def take(output: StepOutput) -> bool:
            nonlocal came
            if not came:
                on_first_token()
            came += len(output.token_ids)
            return False

        messages = [{"role": "user", "content": question(seed)}]
        await self._engine.generate(
            self._tokenizer.encode(self._template.render(messages), special=True),
            SamplingParams(max_tokens=tokens, temperature=TEMPERATURE, top_p=TOP_P, seed=seed),
            take=take,
            cache_salt="",
        )
        return came


def load(name: str, *, model: str, threads: int) -> FastrunEngine:
    """Load a model, converted before if it was."""
    prepared = prepare(
        ModelSource("bench", Path(model)), precision="fast" if name.endswith("fast") else "exact"
    )
    engine = load_cpu_engine(prepared, threads=threads, slots=64)
    return FastrunEngine(engine, prepared)
