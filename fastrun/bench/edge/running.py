"""Engine and peers as processes, from their start to their end."""

import asyncio
import shlex
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout

from fastrun.bench.edge import cores, peers
from fastrun.bench.edge.cores import Cores
from fastrun.bench.edge.errors import EdgeBenchError
from fastrun.bench.edge.load import Target
from fastrun.bench.edge.peers import Peer, Place
from fastrun.bench.edge.scenarios import Scenario
from fastrun.local import command_guard
from fastrun.local.child import Lifeline
from fastrun.local.temporary_folder import TemporaryFolder

READY_S = 180.0
TRY_S = 30.0
RETRY_S = 0.2
TRIAL = Scenario(name="trial", streamed=False, connections=1, tokens=1)


class Engine(msgspec.Struct, frozen=True):
    """What peers stand before."""

    port: int
    pid: int

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    @property
    def target(self) -> Target:
        """Itself, without a peer before it."""
        return Target(
            name=peers.DIRECT,
            port=self.port,
            key=peers.KEY,
            model=peers.MODEL,
            processes={"measured": [self.pid]},
        )

    async def pace(self, tokens_per_s: float) -> None:
        """Set how fast each stream goes; 0 is as fast as it goes."""
        us = round(1e6 / tokens_per_s) if tokens_per_s else 0
        async with (
            ClientSession() as session,
            session.get(f"http://{self.address}/pace?us={us}") as answer,
        ):
            await answer.read()


@asynccontextmanager
async def engine(program: Path) -> AsyncIterator[Engine]:
    """Run the engine; it ends with this process at the latest."""
    process = await asyncio.create_subprocess_exec(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        yield Engine(int(await process.stdout.readline()), process.pid)
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def started(
    peer: Peer,
    program: str,
    behind: Engine,
    *,
    divided: Cores,
    environ: Mapping[str, str],
    lifeline: Lifeline,
) -> AsyncIterator[Target]:
    """Run a peer before an engine, on the core of what is measured.

    Args:
        peer: which.
        program: what starts it.
        behind: its engine.
        divided: which cores are whose.
        environ: our own.
        lifeline: it ends with this at the latest, and so does what it has started.

    Raises:
        EdgeBenchError: it does not serve.
        LocalError: there is no room for its files.
    """
    with TemporaryFolder() as temporary:
        folder, port = temporary.path, peers.free_port()
        place = Place(program=program, port=port, engine=behind.address, folder=folder)
        log = folder / "log"
        command = f"exec {shlex.join(peer.command(place))}"
        with log.open("wb") as output, cores.on(divided.measured):
            process = await asyncio.create_subprocess_exec(
                *command_guard.command_line(lifeline.descriptor, command),
                pass_fds=[lifeline.descriptor],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=peers.environ_of(peer, environ),
                start_new_session=True,
            )
        try:
            if not await _answers(port, process):
                raise EdgeBenchError(f"{peer.name} does not serve, leave it out: {_last_line(log)}")
            yield Target(
                name=peer.name,
                port=port,
                key=peers.KEY,
                model=peers.MODEL,
                processes={"measured": cores.family(process.pid)[1:]},  # without the guard
            )
        finally:
            await _stop(process)


async def _answers(port: int, process: asyncio.subprocess.Process) -> bool:
    """Wait until a peer answers a request; tell whether it does."""
    headers = {"Authorization": f"Bearer {peers.KEY}", "Content-Type": "application/json"}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    with suppress(TimeoutError):
        async with asyncio.timeout(READY_S), ClientSession(timeout=ClientTimeout(TRY_S)) as session:
            while process.returncode is None:
                with suppress(ClientError, TimeoutError):
                    async with session.post(
                        url, data=TRIAL.body(peers.MODEL), headers=headers
                    ) as answer:
                        if answer.ok:
                            return True
                await asyncio.sleep(RETRY_S)
    return False


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").split("\n")]
    return next((line for line in reversed(lines) if line), "it says nothing")


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Let the guard of a peer end it, with all that it has started."""
    with suppress(ProcessLookupError):
        process.terminate()
    await process.wait()
