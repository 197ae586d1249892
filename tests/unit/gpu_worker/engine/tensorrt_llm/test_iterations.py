"""What the engine tells of its iterations."""

import asyncio
import json

from gpu_worker.engine.tensorrt_llm.iterations import Iterations


def iteration(used, total=100, **more):
    return {"kvCacheStats": {"usedNumBlocks": used, "maxNumBlocks": total}, **more}


def test_the_newest_of_each_rank_count():
    """Ranks with a cache of their own add up."""
    iterations = Iterations()
    iterations.take(iteration(5))
    iterations.take(iteration(7))
    iterations.take(iteration(2, attentionDpRank=1))
    assert (iterations.kv_blocks_used, iterations.kv_blocks_total) == (9, 200)
    iterations.take({"iter": 5})
    iterations.take({"kvCacheStats": None})
    assert iterations.kv_blocks_used == 9


def test_older_versions_write_them_as_text():
    """JSON is read as well."""
    iterations = Iterations()
    iterations.take(json.dumps(iteration(5)))
    assert iterations.kv_blocks_used == 5


def test_only_work_on_prompts_is_progress():
    """An engine that spins without doing anything iterates, too."""
    iterations = Iterations()
    assert not iterations.take(iteration(5))
    assert not iterations.take(iteration(5, inflightBatchingStats={"numContextRequests": 0}))
    assert iterations.take(iteration(5, inflightBatchingStats={"numContextRequests": 1}))


class Llm:
    """Fails, falls silent, and tells."""

    def __init__(self):
        self.turns = [RuntimeError("no stats"), TimeoutError(), asyncio.QueueEmpty(), None]
        self.told = asyncio.Event()

    async def get_stats_async(self, timeout):
        turn = self.turns.pop(0) if self.turns else None
        if turn is not None:
            raise turn
        yield iteration(3)
        self.told.set()


async def test_reading_survives_what_statistics_do(monkeypatch):
    """Whatever they raise, they are read again, and requests are not concerned."""
    monkeypatch.setattr("gpu_worker.engine.tensorrt_llm.iterations.REST_S", 0)
    iterations, llm = Iterations(), Llm()
    reader = asyncio.create_task(iterations.read(llm, on_progress=lambda: None))
    await asyncio.wait_for(llm.told.wait(), 10)
    assert iterations.kv_blocks_used == 3
    reader.cancel()
    await asyncio.wait([reader])
