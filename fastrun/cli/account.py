"""`fastrun account`: who may call."""

from enum import StrEnum
from typing import Annotated, Any

import grpc.aio
import typer

from fastrun.cli import accounts, limits
from fastrun.cli.connection import TIMEOUT_S, Auth, ContextName, ask, auth_service
from fastrun.cli.data import Data
from fastrun.cli.group import group
from fastrun.cli.output import Json, moment, print_columns, print_json
from fastrun.v1 import admin_pb2, admin_pb2_grpc
from fastrun.v1.auth_pb2 import AccountState, Limits

app = group(
    "account",
    help="Create, approve, suspend, close, limit and list accounts.",
    epilog="Example: fastrun account create alice",
)


class State(StrEnum):
    """Whether an account may call: only an approved one."""

    PENDING = "pending"
    APPROVED = "approved"
    SUSPENDED = "suspended"
    CLOSED = "closed"


Account = Annotated[str, typer.Argument(help="The account's name or id.")]


@app.command(epilog="Example: fastrun account create alice")
def create(
    name: Annotated[str, typer.Argument(help="A name that no other account has.")],
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Make an account; it may call once it is approved."""
    answer = ask(
        auth_service(auth, data, context),
        lambda channel: admin_pb2_grpc.AdminServiceStub(channel).CreateAccount(
            admin_pb2.CreateAccountRequest(name=name), timeout=TIMEOUT_S
        ),
    )
    _show(answer.account, as_json=as_json)


@app.command(epilog="Example: fastrun account approve alice")
def approve(
    account: Account,
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Let a pending or suspended account call."""
    answer = ask(
        auth_service(auth, data, context),
        lambda channel: admin_pb2_grpc.AdminServiceStub(channel).ApproveAccount(
            admin_pb2.ApproveAccountRequest(account=account), timeout=TIMEOUT_S
        ),
    )
    _show(answer.account, as_json=as_json)


@app.command(epilog="Example: fastrun account suspend alice")
def suspend(
    account: Account,
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Stop an account from calling, until it is approved again."""
    answer = ask(
        auth_service(auth, data, context),
        lambda channel: admin_pb2_grpc.AdminServiceStub(channel).SuspendAccount(
            admin_pb2.SuspendAccountRequest(account=account), timeout=TIMEOUT_S
        ),
    )
    _show(answer.account, as_json=as_json)


@app.command(epilog="Example: fastrun account close alice --yes")
def close(
    account: Account,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """End an account and all its keys for good. What it used stays on record."""
    service = auth_service(auth, data, context)
    if not yes:
        typer.confirm(f"End {account} and all its keys for good?", abort=True, err=True)
    answer = ask(
        service,
        lambda channel: admin_pb2_grpc.AdminServiceStub(channel).CloseAccount(
            admin_pb2.CloseAccountRequest(account=account), timeout=TIMEOUT_S
        ),
    )
    _show(answer.account, as_json=as_json)


@app.command("limits", epilog="Example: fastrun account limits alice --requests-per-minute 60")
def limits_(
    account: Account,
    requests_per_minute: limits.RequestsPerMinute = None,
    tokens_per_minute: limits.TokensPerMinute = None,
    concurrent_requests: limits.ConcurrentRequests = None,
    tokens_per_month: limits.TokensPerMonth = None,
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Show the limits of an account, or change those that are given.

    They hold for all its keys together.
    """
    changes = limits.given(
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        concurrent_requests=concurrent_requests,
        tokens_per_month=tokens_per_month,
    )

    async def talk(channel: grpc.aio.Channel) -> Limits:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        found = await accounts.find(stub, account)
        if not changes:
            return found.limits
        request = admin_pb2.SetLimitsRequest(
            account=found.account_id, limits=limits.changed(found.limits, changes)
        )
        return (await stub.SetLimits(request, timeout=TIMEOUT_S)).limits

    limits.show(ask(auth_service(auth, data, context), talk), as_json=as_json)


@app.command("list", epilog="Example: fastrun account list --state pending")
def list_(
    state: Annotated[State | None, typer.Option(help="Only those that are in it.")] = None,
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """List accounts, newest first."""
    wanted = AccountState.Value(f"ACCOUNT_STATE_{state.upper()}") if state else None
    answer = ask(
        auth_service(auth, data, context),
        lambda channel: admin_pb2_grpc.AdminServiceStub(channel).ListAccounts(
            admin_pb2.ListAccountsRequest(state=wanted), timeout=TIMEOUT_S
        ),
    )
    if as_json:
        print_json([_fields(account) for account in answer.accounts])
    else:
        print_columns(
            ("name", "state", "created", "id", "limits"),
            [_row(account) for account in answer.accounts],
        )


def _show(account: admin_pb2.Account, *, as_json: bool) -> None:
    fields = _fields(account)
    if as_json:
        print_json(fields)
    else:
        print(f"account {fields['name']} ({fields['id']}) is {fields['state']}")


def _row(account: admin_pb2.Account) -> tuple[object, ...]:
    fields = _fields(account)
    shown = (fields["name"], fields["state"], fields["created_at"], fields["id"])
    return (*shown, limits.text(account.limits))


def _fields(account: admin_pb2.Account) -> dict[str, Any]:
    return {
        "id": account.account_id,
        "name": account.name,
        "state": AccountState.Name(account.state).removeprefix("ACCOUNT_STATE_").lower(),
        "created_at": moment(account.created_at),
        "limits": limits.fields(account.limits),
    }
