"""What an engine hands over, as something to iterate over."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from gpu_worker.engine.protocol import Engine, StepOutput


async def outputs_of(
    engine: Engine, *arguments: Any, **fields: Any
) -> AsyncGenerator[StepOutput, None]:
    """Generate; closing this aborts, and returns when the engine holds nothing any more."""
    arrived: asyncio.Queue[StepOutput | None] = asyncio.Queue()

    def take(output: StepOutput) -> bool:
        arrived.put_nowait(output)
        return False

    task = asyncio.create_task(engine.generate(*arguments, take=take, **fields))
    task.add_done_callback(lambda _: arrived.put_nowait(None))
    try:
        while (output := await arrived.get()) is not None:
            yield output
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])
