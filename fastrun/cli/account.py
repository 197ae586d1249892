"""`fastrun account`: who may call."""

from typing import Annotated, Any

import typer

from fastrun.cli.connection import TIMEOUT_S, Auth, ContextName, ask, auth_service
from fastrun.cli.data import Data
from fastrun.cli.group import group
from fastrun.cli.output import Json, moment, print_columns, print_json
from fastrun.v1 import admin_pb2, admin_pb2_grpc
from fastrun.v1.auth_pb2 import AccountState

app = group("account", help="Create, approve, suspend and list accounts.")

Account = Annotated[str, typer.Argument(help="The account's name or id.")]


@app.command()
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


@app.command()
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


@app.command()
def suspend(
    account: Account,
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Stop an account from calling."""
    answer = ask(
        auth_service(auth, data, context),
        lambda channel: admin_pb2_grpc.AdminServiceStub(channel).SuspendAccount(
            admin_pb2.SuspendAccountRequest(account=account), timeout=TIMEOUT_S
        ),
    )
    _show(answer.account, as_json=as_json)


@app.command("list")
def list_(
    auth: Auth = None, data: Data = None, context: ContextName = None, as_json: Json = False
) -> None:
    """List all accounts, newest first."""
    answer = ask(
        auth_service(auth, data, context),
        lambda channel: admin_pb2_grpc.AdminServiceStub(channel).ListAccounts(
            admin_pb2.ListAccountsRequest(), timeout=TIMEOUT_S
        ),
    )
    accounts = [_fields(account) for account in answer.accounts]
    if as_json:
        print_json(accounts)
    else:
        print_columns(
            ("name", "state", "created", "id"),
            [(each["name"], each["state"], each["created_at"], each["id"]) for each in accounts],
        )


def _show(account: admin_pb2.Account, *, as_json: bool) -> None:
    fields = _fields(account)
    if as_json:
        print_json(fields)
    else:
        print(f"account {fields['name']} ({fields['id']}) is {fields['state']}")


def _fields(account: admin_pb2.Account) -> dict[str, Any]:
    return {
        "id": account.account_id,
        "name": account.name,
        "state": AccountState.Name(account.state).removeprefix("ACCOUNT_STATE_").lower(),
        "created_at": moment(account.created_at),
    }
