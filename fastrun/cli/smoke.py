"""`fastrun worker smoke`: two minutes with a worker on real hardware, and what was measured."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from secrets import token_hex
from typing import Annotated

import grpc.aio
import msgspec
import typer

from fastrun.cli.connection import ContextName, Service, worker_service
from fastrun.cli.data import Data
from fastrun.cli.errors import CommandError
from fastrun.cli.output import Json, print_json
from fastrun.cli.own_worker import OwnWorker
from fastrun.cli.smoke_checks import CHECKS, CheckError, SkippedError, Subject, one_answer
from fastrun.cli.worker_calls import Calls
from fastrun.service import rpc
from fastrun.service.errors import ServiceError
from fastrun.service.terminal import printable
from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.worker_pb2 import GetInfoResponse

STOP_LIMIT_S = 60.0


class Line(msgspec.Struct, frozen=True):
    """What came of one check."""

    check: str
    verdict: str  # `ok`, `failed` or `skipped`
    measured: str


def smoke(
    worker: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="A worker that runs with FASTRUN_WORKER_STANDALONE=true.  [one of its own, "
            "started with the settings of FASTRUN_WORKER_*]",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Of its own worker, in place of FASTRUN_WORKER_MODEL.")
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Of the long prompt.  [most of the window, up to 32768]"),
    ] = None,
    start_limit: Annotated[
        float, typer.Option(min=1, help="Seconds that its own worker may take to start.")
    ] = 3600.0,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Try a worker out on its hardware.

    Throughput, aborts, guided output, long prompts, a restart.
    Each line says ok or failed, and what was measured. Exits with status 1 if a check has failed.
    """
    lines: list[Line] = []

    async def run() -> None:
        if worker is not None:
            found = _given(worker_service(worker, data, context), prompt_tokens)
        else:
            found = _own(model, prompt_tokens, start_limit)
        async for line in found:
            lines.append(line)
            if not as_json:
                print(f"{line.verdict:<8}{line.check:<19}{printable(line.measured)}", flush=True)

    try:
        asyncio.run(run())
    except grpc.aio.AioRpcError as error:
        raise CommandError(f"the worker does not answer: {error.details()}") from error
    if as_json:
        print_json([msgspec.structs.asdict(line) for line in lines])
    failed = sum(line.verdict == "failed" for line in lines)
    if failed:
        raise CommandError(f"{failed} of {len(lines)} checks failed")


async def _given(service: Service, prompt_tokens: int | None) -> AsyncIterator[Line]:
    """Check a worker that runs already, which is not ours to restart."""
    async with rpc.channel(service.address, service.role, service.tls) as channel:
        subject = await _subject(channel, prompt_tokens)
        yield Line("start", "ok", _described(subject.info))
        async for line in _checks(subject):
            yield line
    yield Line("restart", "skipped", "it was not started by this command")


async def _own(
    model: str | None, prompt_tokens: int | None, start_limit_s: float
) -> AsyncIterator[Line]:
    """Check a worker that is started for it."""
    environ = dict(os.environ)
    if model is not None:
        environ["FASTRUN_WORKER_MODEL"] = model
    own = OwnWorker(environ, start_limit_s=start_limit_s, stop_limit_s=STOP_LIMIT_S)
    typer.echo(f"a worker is started; its log is {own.log}", err=True)
    failed = False
    async with own:
        address, seconds = await own.start()
        async with rpc.channel(address) as channel:
            subject = await _subject(channel, prompt_tokens)
            yield Line("start", "ok", f"after {seconds:.1f} s: {_described(subject.info)}")
            async for line in _checks(subject):
                failed |= line.verdict == "failed"
                yield line
        last = await _verdict("restart", _restart(own))
        yield last
    if not failed and last.verdict == "ok":
        own.forget_log()


async def _subject(channel: grpc.aio.Channel, prompt_tokens: int | None) -> Subject:
    calls = Calls(channel)
    return Subject(
        calls=calls,
        info=await calls.info(),
        salt=f"smoke-{token_hex(8)}",
        prompt_tokens=prompt_tokens,
    )


async def _checks(subject: Subject) -> AsyncIterator[Line]:
    for name, check in CHECKS:
        yield await _verdict(name, check(subject))


async def _verdict(name: str, check: Awaitable[str]) -> Line:
    try:
        return Line(name, "ok", await check)
    except SkippedError as reason:
        return Line(name, "skipped", str(reason))
    except (CheckError, CommandError) as error:
        return Line(name, "failed", str(error))
    except ServiceError as error:
        if error.detail.reason == ErrorReason.ERROR_REASON_LEASE_REFUSED:
            raise CommandError(
                "this worker is of a fleet, and takes requests with leases only: start it with "
                "FASTRUN_WORKER_STANDALONE=true, or call fastrun worker smoke without --worker"
            ) from error
        return Line(name, "failed", str(error))
    except grpc.aio.AioRpcError as error:
        return Line(name, "failed", f"the worker does not answer: {error.details()}")


async def _restart(own: OwnWorker) -> str:
    """It ends when it is asked to, starts again and answers."""
    status, stopped_s = await own.stop()
    if status != 0:
        raise CheckError(f"it was asked to end and ended with status {status}")
    address, started_s = await own.start()
    async with rpc.channel(address) as channel:
        answered = await one_answer(await _subject(channel, None))
    return f"ended after {stopped_s:.1f} s, served again after {started_s:.1f} s: {answered}"


def _described(info: GetInfoResponse) -> str:
    gpus = "".join(f", {gpu.name} ({gpu.memory_bytes >> 30} GiB)" for gpu in info.gpus)
    return (
        f"fastrun {info.version}, {info.engine}, {info.model.model}, {info.slots} slots, "
        f"window of {info.model.context_length} tokens{gpus}"
    )
