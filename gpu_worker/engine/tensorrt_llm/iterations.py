"""What TensorRT-LLM tells of its iterations: how full the KV cache is, and that it works."""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import structlog

log = structlog.get_logger(__name__)

# How long a reader waits for an iteration before it looks anew, and how long it then rests: there
# is one queue for all readers, so there is one reader, and an idle engine tells nothing.
SILENCE_S = 2
REST_S = 0.5


class Iterations:
    """The newest statistics of each rank."""

    def __init__(self) -> None:
        self._used: dict[int, int] = {}
        self._total: dict[int, int] = {}

    @property
    def kv_blocks_used(self) -> int:
        """Blocks that running requests hold; 0 before the first iteration."""
        return sum(self._used.values())

    @property
    def kv_blocks_total(self) -> int:
        """Blocks that there are."""
        return sum(self._total.values())

    def take(self, iteration: Mapping[str, Any] | str) -> bool:
        """Take one iteration's statistics; what is missing in them is left as it was.

        Returns:
            Whether prompts were worked on: progress of which no token tells.
        """
        values = json.loads(iteration) if isinstance(iteration, str) else iteration
        cache = values.get("kvCacheStats") or {}
        rank = int(values.get("attentionDpRank") or 0)
        if "usedNumBlocks" in cache and "maxNumBlocks" in cache:
            self._used[rank] = int(cache["usedNumBlocks"])
            self._total[rank] = int(cache["maxNumBlocks"])
        batch = values.get("inflightBatchingStats") or {}
        return bool(batch.get("numContextRequests"))

    async def read(self, llm: Any, *, on_progress: Callable[[], None]) -> None:
        """Read until cancelled. Statistics that fail are no reason to stop serving.

        Args:
            llm: a ``tensorrt_llm.LLM`` that has been given a request: before, it may raise.
            on_progress: called for each iteration that worked on prompts.
        """
        failed = False
        while True:
            try:
                with suppress(TimeoutError, asyncio.QueueEmpty):
                    async for iteration in llm.get_stats_async(timeout=SILENCE_S):
                        if self.take(iteration):
                            on_progress()
                failed = False
            except Exception as error:  # noqa: BLE001 - whatever it is, requests are not concerned
                if not failed:
                    log.warning("engine_statistics_failed", kind=type(error).__name__)
                failed = True
            await asyncio.sleep(REST_S)
