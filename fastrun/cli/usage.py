"""`fastrun usage`: what accounts have used, by day and model, and what it costs."""

import sys
from datetime import UTC, date, datetime
from typing import Annotated

import grpc.aio
import typer

from fastrun.cli import accounts
from fastrun.cli.connection import TIMEOUT_S, Auth, ContextName, ask, auth_service
from fastrun.cli.data import Data
from fastrun.cli.group import group
from fastrun.cli.output import Json, print_columns, print_json
from fastrun.cli.times import day_of
from fastrun.cli.usage_report import (
    Line,
    cells,
    fields,
    line,
    over_days,
    titles,
    to_csv,
    total,
    unpriced,
)
from fastrun.v1 import admin_pb2, admin_pb2_grpc, auth_pb2

app = group("usage", help="Show what accounts have used, and what it costs.")

RECOMPUTE_TIMEOUT_S = 3600.0

First = Annotated[
    date | None,
    typer.Option(
        "--from",
        metavar="DAY",
        parser=day_of,
        help="The first day, in UTC, such as 2026-11-01.  [when the month of --to began]",
    ),
]
Last = Annotated[
    date | None,
    typer.Option("--to", metavar="DAY", parser=day_of, help="The last day.  [today]"),
]


@app.callback(
    invoke_without_command=True,
    no_args_is_help=False,
    epilog="Example: fastrun usage --account alice --from 2026-11-01 --to 2026-11-30 --csv",
)
def usage(
    called: typer.Context,
    account: Annotated[str, typer.Option(help="Only this account's: its name or id.")] = "",
    model: Annotated[str, typer.Option(help="Only of this model.")] = "",
    first: First = None,
    last: Last = None,
    by_account: Annotated[
        bool, typer.Option("--total", help="A line for each account and model, not for each day.")
    ] = False,
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Show what accounts have used, and what it costs."""
    if called.invoked_subcommand is not None:
        return
    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv: leave out one")
    first_day, last_day = days(first, last, datetime.now(UTC).date())
    request = admin_pb2.AdminServiceQueryUsageRequest(
        account=account, model=model, first_day=first_day, last_day=last_day
    )

    async def talk(channel: grpc.aio.Channel) -> list[Line]:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        sums: list[auth_pb2.UsageSum] = []
        while True:
            answer = await stub.QueryUsage(request, timeout=TIMEOUT_S)
            sums.extend(answer.sums)
            request.page_token = answer.next_page_token
            if not request.page_token:
                break
        names = await accounts.names(stub)
        return [line(each, names) for each in sums]

    lines = ask(auth_service(auth, data, context), talk)
    if by_account:
        lines = over_days(lines)
    if as_json:
        sums = {"sums": [fields(each) for each in lines], "total": fields(total(lines))}
        print_json({"first_day": first_day, "last_day": last_day, **sums})
    elif as_csv:
        print(to_csv(lines, days=not by_account), end="")
    else:
        _show(lines, days=not by_account)


@app.command(epilog="Example: fastrun usage recompute --from 2026-11-01 --to 2026-11-30")
def recompute(
    first: First = None,
    last: Last = None,
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Add up days anew from the records of requests.

    For when the sums are not right, such as after somebody has changed records by hand.
    """
    first_day, last_day = days(first, last, datetime.now(UTC).date())
    request = admin_pb2.RecomputeUsageRequest(first_day=first_day, last_day=last_day)
    answer = ask(
        auth_service(auth, data, context),
        lambda channel: admin_pb2_grpc.AdminServiceStub(channel).RecomputeUsage(
            request, timeout=RECOMPUTE_TIMEOUT_S
        ),
    )
    if as_json:
        print_json({"first_day": first_day, "last_day": last_day, "changed": answer.changed})
    else:
        print(f"{first_day} to {last_day}: {answer.changed} sums were not right and are now")


def days(first: date | None, last: date | None, today: date) -> tuple[str, str]:
    """The first and last day that are meant, in UTC; pure.

    Raises:
        BadParameter: the last is before the first.
    """
    to = last or today
    begin = first or to.replace(day=1)
    if begin > to:
        raise typer.BadParameter("is after --to", param_hint="--from")
    return begin.isoformat(), to.isoformat()


def _show(lines: list[Line], *, days: bool) -> None:
    shown = titles(days=days)
    rows = [cells(each, days=days) for each in lines]
    if lines:
        rows.append(["total", *cells(total(lines), days=days)[1:]])
    print_columns(shown, rows, right={*shown} - {"day", "account", "model"})
    if missing := unpriced(lines):
        print(
            f"without a price, and not in the cost: {', '.join(missing)}; see fastrun price set",
            file=sys.stderr,
        )
