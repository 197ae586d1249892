"""`fastrun fleet`: workers, slots, queues, whether the books are right; and how a worker leaves."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import grpc.aio
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fastrun.cli import draining
from fastrun.cli.connection import TIMEOUT_S, ContextName, Scheduler, ask, scheduler_service
from fastrun.cli.data import Data
from fastrun.cli.draining import Leaving, Watched
from fastrun.cli.errors import CommandError
from fastrun.cli.fleet_view import NUMBERS, TITLES, fields, lines, notes, rows
from fastrun.cli.group import group
from fastrun.cli.output import Json, print_json, table
from fastrun.v1.scheduler_pb2 import DrainWorkerRequest, WatchFleetRequest, WatchFleetResponse
from fastrun.v1.scheduler_pb2_grpc import SchedulerServiceStub

app = group("fleet")

WATCH_INTERVAL_MS = 1000
LEAVING_INTERVAL_MS = 250


@app.callback(
    invoke_without_command=True,
    help="Show workers, slots, caches and queues; or drain a worker.",
    epilog="Example: fastrun fleet --watch",
)
def fleet(
    called: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again each second.")] = False,
    scheduler: Scheduler = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Show the fleet, unless a command follows."""
    if called.invoked_subcommand is not None:
        return

    async def talk(channel: grpc.aio.Channel) -> bool:
        request = WatchFleetRequest(interval_ms=WATCH_INTERVAL_MS if watch else 0)
        seen = False
        timeout_s = None if watch else TIMEOUT_S
        with _screen(as_json=as_json, again=watch) as screen:
            async for answer in SchedulerServiceStub(channel).WatchFleet(
                request, timeout=timeout_s
            ):
                screen(answer)
                seen = True
        return seen

    service = scheduler_service(scheduler, data, context)
    if not ask(service, talk):
        raise CommandError(f"the scheduler at {service.address} says nothing: ask it again")


@app.command(epilog="Example: fastrun fleet drain gpu-1 --deadline 60 --restart")
def drain(
    worker: Annotated[
        str, typer.Argument(metavar="WORKER", help="Its id, as `fastrun fleet` shows it.")
    ],
    deadline: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            max=draining.LONGEST_S,
            help="When what still runs goes on at other workers.  [the worker's drain_s]",
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Wait until it serves again, as a new process.")
    ] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return at once.")] = False,
    scheduler: Scheduler = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Let a worker finish what it runs, take nothing new and end.

    Whatever supervises it starts it again: for a new version, or new settings.
    """
    deadline_ms = None if deadline is None else round(deadline * 1000)
    request = DrainWorkerRequest(worker_id=worker, deadline_ms=deadline_ms)

    async def talk(channel: grpc.aio.Channel) -> Leaving | None:
        stub = SchedulerServiceStub(channel)
        answer = await stub.DrainWorker(request, timeout=TIMEOUT_S)
        if not as_json:
            print(f"{worker} drains: {draining.requests(answer.slots_in_use)} running", flush=True)
        elif no_wait:
            print_json({"worker_id": worker, "running": answer.slots_in_use})
        if no_wait:
            return None
        watched = Watched(worker, answer, restart=restart)
        watch = WatchFleetRequest(interval_ms=LEAVING_INTERVAL_MS)
        async for seen in stub.WatchFleet(watch):
            if (left := watched.see(seen)) is not None:
                return left
        raise CommandError("the scheduler has ended: see with fastrun fleet what became of it")

    left = ask(scheduler_service(scheduler, data, context), talk)
    if left is not None and as_json:
        print_json(asdict(left))
    elif left is not None:
        print(left)


def _shown(answer: WatchFleetResponse) -> Group:
    return Group(table(TITLES, rows(answer), right=NUMBERS), Text("\n".join(["", *notes(answer)])))


@contextmanager
def _screen(*, as_json: bool, again: bool) -> Iterator[Callable[[WatchFleetResponse], None]]:
    """What shows a fleet: redraws in place on a terminal; else one after another."""
    if as_json:
        yield lambda answer: print_json(fields(answer))
    elif sys.stdout.isatty() and again:
        with Live(auto_refresh=False) as live:
            yield lambda answer: live.update(_shown(answer), refresh=True)
    elif sys.stdout.isatty():
        yield lambda answer: Console().print(_shown(answer))
    else:
        yield lambda answer: print(
            "\n".join(lines(answer)), end="\n\n" if again else "\n", flush=True
        )
