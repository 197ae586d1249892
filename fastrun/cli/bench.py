"""`fastrun bench`: tokens per second and time to the first token, as a client sees them.

With a name after it, the cost of one part.
"""

import asyncio
import enum
import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from aiohttp import ClientError, InvalidURL

from fastrun.bench.load import BenchError, Load, Target, measure
from fastrun.bench.scheduler.prefixes import Prefixes
from fastrun.cli.errors import CommandError
from fastrun.cli.group import group
from fastrun.cli.output import Json, print_columns, print_json

app = group("bench")


class Part(enum.StrEnum):
    """Which part of a trace."""

    ALL = "all"
    FIRST = "first"
    SECOND = "second"


PROMPTS = [
    f"Tell me a long story about a {animal} and a {place}."
    for animal in ("dog", "cat", "horse", "crow", "fox", "whale", "bee", "goat")
    for place in ("river", "city", "forest", "ship")
]


@app.callback(
    invoke_without_command=True,
    no_args_is_help=False,
    help="Measure concurrent streamed chats, 1, 8 and 32 at once; or one part, by its name.",
    epilog="Example: fastrun bench --concurrency 1 --concurrency 32 --tokens 128",
)
def bench(
    context: typer.Context,
    concurrency: Annotated[
        list[int] | None, typer.Option(min=1, help="Streams at once; may be repeated.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, max=16384, help="Tokens per stream.")] = 64,
    repeat: Annotated[int, typer.Option(min=1, help="How often; the best run counts.")] = 2,
    base_url: Annotated[
        str, typer.Option(envvar="OPENAI_BASE_URL", help="Ends in /v1.")
    ] = "http://127.0.0.1:8000/v1",
    api_key: Annotated[
        str, typer.Option(envvar="OPENAI_API_KEY", show_default=False, help="Of who asks.")
    ] = "",
    model: Annotated[str, typer.Option(envvar="OPENAI_MODEL", help="Which is asked.")] = "",
    as_json: Json = False,
) -> None:
    """Measure concurrent streamed chats, 1, 8 and 32 at once; or one part, by its name."""
    if context.invoked_subcommand is not None:
        return
    if not api_key or not model:
        raise CommandError("set OPENAI_API_KEY and OPENAI_MODEL, or pass --api-key and --model")
    target = Target(base_url.rstrip("/"), api_key, model)
    levels = concurrency or [1, 8, 32]
    try:
        loads = asyncio.run(_measure(target, levels, tokens, repeat))
    except InvalidURL as error:
        raise CommandError("--base-url must be like http://host:8000/v1") from error
    except (BenchError, ClientError, OSError) as error:
        raise CommandError(str(error)) from error
    if as_json:
        print_json([_fields(load) for load in loads])
        return
    one = loads[0].tokens_per_second
    print_columns(
        ("streams", "tokens", "tokens/s", "ratio", "ttft p50 ms", "ttft p99 ms", "cores"),
        [
            (
                load.concurrency,
                sum(stream.completion_tokens for stream in load.streams),
                f"{load.tokens_per_second:.1f}",
                f"{load.tokens_per_second / one:.2f}",
                f"{load.first_token_ms(0.5):.0f}",
                f"{load.first_token_ms(0.99):.0f}",
                os.cpu_count(),
            )
            for load in loads
        ],
    )


@app.command(epilog="Example: fastrun bench dialect --repeat 3")
def dialect(
    *,
    repeat: Annotated[int, typer.Option(min=1, help="How often; the median counts.")] = 5,
    as_json: Json = False,
) -> None:
    """Measure what taking an answer apart costs. In each family of models; needs no stack."""
    from fastrun.bench.dialect import measure as measure_dialect  # noqa: PLC0415 - the worker's code

    costs = measure_dialect(repeat=repeat)
    if as_json:
        print_json([msgspec.structs.asdict(cost) for cost in costs])
        return
    print_columns(
        ("family", "us/token", "with tools", "with stops too"),
        [
            (
                cost.family,
                f"{cost.plain_us:.2f}",
                f"{cost.with_tools_us:.2f}",
                f"{cost.with_tools_and_stops_us:.2f}",
            )
            for cost in costs
        ],
    )


@app.command(epilog="Example: fastrun bench placement --workers 8 --load 0.75 --plot placement.png")
def placement(
    *,
    trace: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="In Mooncake's format; else made-up chats."),
    ] = None,
    part: Annotated[Part, typer.Option(help="Of the trace.")] = Part.ALL,
    seed: Annotated[
        list[int] | None, typer.Option(min=0, help="Of all chance; may be repeated.")
    ] = None,
    workers: Annotated[
        list[int] | None, typer.Option(min=1, max=1000, help="8 and 64; may be repeated.")
    ] = None,
    load: Annotated[
        list[float] | None,
        typer.Option(min=0.01, max=2.0, help="Of what the fleet can carry; may be repeated."),
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help="All of them; may be repeated.")] = None,
    requests: Annotated[
        int, typer.Option(min=10, help="How many to make up; 1,000 workers want 100,000.")
    ] = 12_000,
    accounts: Annotated[int, typer.Option(min=1, max=1000, help="That share the requests.")] = 16,
    plot: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write a PNG; needs fastrun[plot].")
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate a fleet, for placements to be compared. Needs no stack and no GPU."""
    from fastrun.cli.bench_placement import Scenario, compare_all, show  # noqa: PLC0415 - the scheduler's code

    scenario = Scenario(
        trace=trace,
        part=part.value,
        seeds=seed or [0],
        workers=workers or [8, 64],
        loads=load or [0.5, 0.75, 0.95],
        policies=policy,
        accounts=accounts,
        requests=requests,
    )
    show(compare_all(scenario), plot=plot, as_json=as_json)


@app.command(epilog="Example: fastrun bench edge --scenario pace64 --peer smg --repeat 3")
def edge(
    *,
    scenario: Annotated[
        list[str] | None, typer.Option(help="All of them; may be repeated.", metavar="NAME")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="Of each run; else as long as is its own.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="How often; medians count.")] = 3,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="All that are installed; may be repeated.", metavar="NAME"),
    ] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Without peers.")] = False,
    peers: Annotated[
        Path | None,
        typer.Option(
            envvar="FASTRUN_BENCH_PEERS",
            exists=True,
            file_okay=False,
            help="Where each peer has a Python environment of its own, such as smg/bin/smg.",
        ),
    ] = None,
    quiet: Annotated[
        float, typer.Option(min=0, help="Seconds to wait at most for an idle machine each time.")
    ] = 0.0,
    plot: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write a PNG; needs fastrun[plot].")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Write the table into this page."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure what an edge costs, beside others. Starts a stack of its own; Linux, cc."""
    from fastrun.cli import bench_edge  # noqa: PLC0415 - the local stack's code

    bench_edge.run(
        bench_edge.Asked(
            scenarios=scenario or [],
            seconds=seconds,
            repeat=repeat,
            peers=peer or [],
            alone=alone,
            peer_folder=peers,
            quiet_s=quiet,
            plot=plot,
            page=page,
            as_json=as_json,
        )
    )


@app.command(epilog="Example: fastrun bench engine --streams 1 --streams 32 --repeat 5")
def engine(
    *,
    streams: Annotated[
        list[int] | None,
        typer.Option(min=1, max=32, help="At once, 1, 8 and 32; may be repeated."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, max=256, help="Of each stream.")] = 64,
    repeat: Annotated[int, typer.Option(min=1, help="How often; medians count.")] = 3,
    threads: Annotated[
        int, typer.Option(min=0, help="Of each engine; 0 for one per core.", show_default=False)
    ] = 0,
    name: Annotated[
        list[str] | None,
        typer.Option("--engine", help="All that are installed; may be repeated.", metavar="NAME"),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A GGUF file; else the default model."),
    ] = None,
    peers: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Made by pip install --target FOLDER xllamacpp."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the CPU engine beside others. With the same model; needs no stack."""
    from fastrun.cli import bench_engine  # noqa: PLC0415 - the engine's code

    bench_engine.run(
        bench_engine.Asked(
            engines=name or [],
            model=model,
            streams=streams or [1, 8, 32],
            tokens=tokens,
            repeat=repeat,
            threads=threads,
            peers=peers,
        ),
        as_json=as_json,
    )


@app.command(epilog="Example: fastrun bench scheduler --rate 500 --rate 1000 --repeat 3")
def scheduler(
    *,
    rate: Annotated[
        list[float] | None, typer.Option(min=1, help="Requests a second; may be repeated.  [1000]")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="At each rate.")] = 10.0,
    flat_out: Annotated[
        int, typer.Option(min=0, help="Requests as fast as they are answered, before that.")
    ] = 20_000,
    repeat: Annotated[int, typer.Option(min=1, help="How often; medians count.")] = 1,
    edges: Annotated[int, typer.Option(min=1, max=64, help="That ask.")] = 2,
    workers: Annotated[int, typer.Option(min=1, max=4096, help="That have slots.")] = 64,
    slots: Annotated[int, typer.Option(min=1, max=4096, help="Of each worker.")] = 32,
    hold_ms: Annotated[float, typer.Option(min=0, help="How long a request runs.")] = 500.0,
    prefixes: Annotated[
        Prefixes, typer.Option(help="What is told of the beginnings of prompts.")
    ] = Prefixes.SHARED,
    blocks: Annotated[int, typer.Option(min=1, max=256, help="Of each prompt.")] = 16,
    accounts: Annotated[int, typer.Option(min=1, help="That share the requests.")] = 100,
    limits: Annotated[bool, typer.Option(help="Of all kinds, never reached.")] = True,
    database: Annotated[bool, typer.Option(help="The leader's row is in Postgres.")] = True,
    as_json: Json = False,
) -> None:
    """Measure what a scheduler carries. A process on a core of its own; needs no stack; Linux."""
    from fastrun.bench.scheduler.measurement import Scenario  # noqa: PLC0415 - the local stack's code
    from fastrun.bench.scheduler.requests import Mix  # noqa: PLC0415 - the same
    from fastrun.cli import bench_scheduler  # noqa: PLC0415 - the same

    mix = Mix(prefixes=prefixes, blocks=blocks, accounts=accounts, limits=limits)
    bench_scheduler.run(
        Scenario(
            edges=edges,
            workers=workers,
            slots=slots,
            hold_s=hold_ms / 1000,
            mix=mix,
            rates=rate or [1000.0],
            seconds=seconds,
            flat_out=flat_out,
            repeat=repeat,
            database=database,
        ),
        as_json=as_json,
    )


@app.command(epilog="Example: fastrun bench start --repeat 10")
def start(
    *,
    repeat: Annotated[int, typer.Option(min=1, help="How often; medians count.")] = 5,
    as_json: Json = False,
) -> None:
    """Measure how long a worker takes until it serves; needs no stack."""
    from fastrun.cli import bench_start  # noqa: PLC0415 - starts processes

    bench_start.run(repeat, as_json=as_json)


async def _measure(target: Target, levels: list[int], tokens: int, repeat: int) -> list[Load]:
    await measure(target, 1, max_tokens=8, prompts=PROMPTS)  # warms caches on every side
    best = []
    for level in levels:
        runs = [
            await measure(target, level, max_tokens=tokens, prompts=PROMPTS) for _ in range(repeat)
        ]
        best.append(max(runs, key=lambda load: load.tokens_per_second))
    return best


def _fields(load: Load) -> dict[str, float]:
    return {
        "streams": load.concurrency,
        "tokens_per_second": round(load.tokens_per_second, 1),
        "ttft_p50_ms": round(load.first_token_ms(0.5), 1),
        "ttft_p99_ms": round(load.first_token_ms(0.99), 1),
        "wall_s": round(load.wall_s, 3),
    }
