"""`fastrun key`: keys are made here, shown once, and known to the server by their hash only."""

import sys
import time
from secrets import SystemRandom
from typing import Annotated, Any

import typer

from fastrun.cli.connection import TIMEOUT_S, Auth, ContextName, ask, auth_service
from fastrun.cli.data import Data
from fastrun.cli.errors import CommandError
from fastrun.cli.group import group
from fastrun.cli.output import Json, moment, print_columns, print_json
from fastrun.service import api_key
from fastrun.v1 import admin_pb2, admin_pb2_grpc
from fastrun.v1.auth_pb2 import KeyState

app = group("key", help="Issue, revoke and list API keys.")

_DAY_S = 86_400.0


@app.command()
def issue(
    account: Annotated[str, typer.Argument(help="The account's name or id.")],
    name: Annotated[str, typer.Option(help="What the key is for.")] = "",
    days: Annotated[
        float | None, typer.Option(min=1, help="The key ends after so many days.")
    ] = None,
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Make a key for an account, and show it: this once and never again."""
    key = api_key.generate(SystemRandom())
    request = admin_pb2.IssueKeyRequest(
        account=account,
        name=name,
        key_sha256=api_key.key_sha256(key),
        prefix=api_key.display_prefix(key),
        expires_at=None if days is None else time.time() + days * _DAY_S,
    )
    answer = ask(
        auth_service(auth, data, context),
        lambda channel: admin_pb2_grpc.AdminServiceStub(channel).IssueKey(
            request, timeout=TIMEOUT_S
        ),
    )
    if as_json:
        print_json({**_fields(answer.key), "key": key})
    else:
        print(key)
        # Beside the key, which scripts read: its id is what `key revoke` takes.
        print(f"id {answer.key.key_id}; the key is not shown again", file=sys.stderr)


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="The key's id, as `fastrun key list` shows it.")],
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """End a key for good."""
    if api_key.well_formed(key):
        raise CommandError("give the key's id, key_..., as `fastrun key list` shows it")
    answer = ask(
        auth_service(auth, data, context),
        lambda channel: admin_pb2_grpc.AdminServiceStub(channel).RevokeKey(
            admin_pb2.RevokeKeyRequest(key_id=key), timeout=TIMEOUT_S
        ),
    )
    if as_json:
        print_json(_fields(answer.key))
    else:
        print(f"key {answer.key.key_id} is revoked")


@app.command("list")
def list_(
    account: Annotated[str, typer.Argument(help="Only this account's: its name or id.")] = "",
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """List keys, newest first."""
    answer = ask(
        auth_service(auth, data, context),
        lambda channel: admin_pb2_grpc.AdminServiceStub(channel).ListKeys(
            admin_pb2.ListKeysRequest(account=account), timeout=TIMEOUT_S
        ),
    )
    keys = [_fields(key) for key in answer.keys]
    if as_json:
        print_json(keys)
    else:
        titles = ("id", "prefix", "state", "account_id", "created_at", "expires_at", "name")
        print_columns(
            [title.removesuffix("_at").removesuffix("_id") for title in titles],
            [[each[title] or "-" for title in titles] for each in keys],
        )


def _fields(key: admin_pb2.Key) -> dict[str, Any]:
    return {
        "id": key.key_id,
        "account_id": key.account_id,
        "name": key.name,
        "prefix": key.prefix,
        "state": _state(key),
        "created_at": moment(key.created_at),
        "expires_at": moment(key.expires_at) if key.HasField("expires_at") else None,
    }


def _state(key: admin_pb2.Key) -> str:
    """Whether a key may call; one that has ended by itself is still active by its record."""
    ended = key.HasField("expires_at") and key.expires_at <= time.time()
    if ended and key.state == KeyState.KEY_STATE_ACTIVE:
        return "expired"
    return KeyState.Name(key.state).removeprefix("KEY_STATE_").lower()
