"""What a grammar may take until it can be followed: time, memory, and the threads for it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from gpu_worker.engine.protocol import EngineError

MAX_BYTES = 16 << 20  # of one compiled grammar
WAIT_S = 10.0
# Processor time. Nearly every grammar takes a few milliseconds, so that the few that take longer
# are begun anew in a lane of their own, where they wait for one another and nobody else does.
QUICK_S = 0.25
SLOW_S = 2.0
QUICK_THREADS = 2
TOO_COSTLY = "the grammar takes too much time or memory to compile: make it simpler"


@asynccontextmanager
async def bounded_wait() -> AsyncIterator[None]:
    """Give up on what a grammar needs after ``WAIT_S``.

    Raises:
        EngineError: the grammars of others took the time.
    """
    try:
        async with asyncio.timeout(WAIT_S):
            yield
    except TimeoutError as error:
        raise EngineError("this worker is too busy to compile a grammar now") from error


def deep_threads(count: int, stack_bytes: int) -> ThreadPoolExecutor:
    """Return an executor with that many threads, each with a stack of that many bytes."""
    threads = ThreadPoolExecutor(count, thread_name_prefix="grammar-compiler")
    before = threading.stack_size(stack_bytes)
    try:
        # A thread begins with its first task: none of these ends before all have begun.
        barrier = threading.Barrier(count)
        for task in [threads.submit(barrier.wait) for _ in range(count)]:
            task.result()
    finally:
        threading.stack_size(before)
    return threads
