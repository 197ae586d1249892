"""`fastrun key`: keys are made here, shown once, and known to the server by their hash only."""

import sys
import time
from secrets import SystemRandom
from typing import Annotated, Any

import grpc.aio
import typer

from fastrun.cli import limits
from fastrun.cli.connection import TIMEOUT_S, Auth, ContextName, ask, auth_service
from fastrun.cli.data import Data
from fastrun.cli.errors import CommandError
from fastrun.cli.group import group
from fastrun.cli.output import Json, moment, print_columns, print_json
from fastrun.cli.times import DAY_S, duration_s, moment_of
from fastrun.service import api_key
from fastrun.v1 import admin_pb2, admin_pb2_grpc
from fastrun.v1.auth_pb2 import KeyState, Limits

app = group(
    "key",
    help="Issue, rotate, revoke, limit and list API keys.",
    epilog="Example: fastrun key issue alice",
)

KeyId = Annotated[
    str, typer.Argument(metavar="KEY_ID", help="The key's id, as `fastrun key list` shows it.")
]

_LONGEST_OVERLAP_S = 90 * DAY_S  # as the auth service has it


@app.command(epilog="Example: fastrun key issue alice --name laptop --expires 90d")
def issue(
    account: Annotated[str, typer.Argument(help="The account's name or id.")],
    name: Annotated[str, typer.Option(help="What the key is for.")] = "",
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model that it may use; may be repeated.  [all models]"),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="When it ends: 90d, 12h, a day (its beginning in UTC) or a time.  [never]",
        ),
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
        expires_at=None if expires is None else moment_of(expires, time.time(), "--expires"),
        models=model or (),
    )
    answer = ask(
        auth_service(auth, data, context),
        lambda channel: admin_pb2_grpc.AdminServiceStub(channel).IssueKey(
            request, timeout=TIMEOUT_S
        ),
    )
    _show_once(key, answer.key, as_json=as_json)


@app.command(epilog="Example: fastrun key rotate key_8MiaUQ2dAQ9LMMsW --overlap 1h")
def rotate(
    key: KeyId,
    overlap: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="How long the old one still works, such as 1h; 0: it ends at once.",
        ),
    ] = "1d",
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Make a key in place of another, and show it this once.

    It has the name, the models, the limits and the end of the old one.
    """
    _check_id(key)
    overlap_s = duration_s(overlap, "--overlap")
    if overlap_s > _LONGEST_OVERLAP_S:
        raise typer.BadParameter("give at most 90d", param_hint="--overlap")
    new = api_key.generate(SystemRandom())
    request = admin_pb2.RotateKeyRequest(
        key_id=key,
        key_sha256=api_key.key_sha256(new),
        prefix=api_key.display_prefix(new),
        overlap_s=round(overlap_s),
    )
    answer = ask(
        auth_service(auth, data, context),
        lambda channel: admin_pb2_grpc.AdminServiceStub(channel).RotateKey(
            request, timeout=TIMEOUT_S
        ),
    )
    _show_once(new, answer.key, as_json=as_json)
    if not as_json:
        until = f"works for {overlap} more" if request.overlap_s else "has ended"
        print(f"{key} {until}", file=sys.stderr)


@app.command(epilog="Example: fastrun key revoke key_8MiaUQ2dAQ9LMMsW")
def revoke(
    key: KeyId,
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """End a key for good, everywhere in under a second."""
    _check_id(key)
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


@app.command(
    "limits", epilog="Example: fastrun key limits key_8MiaUQ2dAQ9LMMsW --tokens-per-month 1000000"
)
def limits_(
    key: KeyId,
    requests_per_minute: limits.RequestsPerMinute = None,
    tokens_per_minute: limits.TokensPerMinute = None,
    concurrent_requests: limits.ConcurrentRequests = None,
    tokens_per_month: limits.TokensPerMonth = None,
    account: Annotated[
        str, typer.Option(help="Its account, where there are more keys than can be listed.")
    ] = "",
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Show the limits of a key, or change those that are given.

    The account's own limits hold besides.
    """
    _check_id(key)
    changes = limits.given(
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        concurrent_requests=concurrent_requests,
        tokens_per_month=tokens_per_month,
    )

    async def talk(channel: grpc.aio.Channel) -> Limits:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        listed = await stub.ListKeys(admin_pb2.ListKeysRequest(account=account), timeout=TIMEOUT_S)
        before = next((each.limits for each in listed.keys if each.key_id == key), None)
        if before is None:
            raise CommandError(f"key {key!r} does not exist: fastrun key list shows all")
        if not changes:
            return before
        request = admin_pb2.SetLimitsRequest(key_id=key, limits=limits.changed(before, changes))
        return (await stub.SetLimits(request, timeout=TIMEOUT_S)).limits

    limits.show(ask(auth_service(auth, data, context), talk), as_json=as_json)


@app.command("list", epilog="Example: fastrun key list alice")
def list_(
    account: Annotated[str, typer.Argument(help="Only this account's: its name or id.")] = "",
    pepper: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            min=1,
            help="Only those that have not ended and need this pepper: 1 is the first in "
            "FASTRUN_AUTH_PREVIOUS_PEPPERS.",
        ),
    ] = None,
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
    keys = [key for key in answer.keys if pepper is None or _needs(key, pepper)]
    if as_json:
        print_json([_fields(key) for key in keys])
    else:
        titles = ("id", "prefix", "state", "account", "created", "expires", "last used")
        print_columns((*titles, "name", "models", "limits"), [_row(key) for key in keys])


def _check_id(key: str) -> None:
    """See that nobody's key gets into a request, and so perhaps into a log."""
    if api_key.well_formed(key):
        raise CommandError("give the key's id, key_..., as `fastrun key list` shows it")


def _show_once(key: str, issued: admin_pb2.Key, *, as_json: bool) -> None:
    """Print a key: its account's people have to keep it."""
    fields = _fields(issued)
    if as_json:
        print_json({**fields, "key": key})
        return
    print(key)
    # Beside the key, which scripts read: its id is what other commands take.
    ends = f", ends {fields['expires_at']}" if fields["expires_at"] else ""
    print(f"id {issued.key_id}{ends}; the key is not shown again", file=sys.stderr)


def _row(key: admin_pb2.Key) -> tuple[object, ...]:
    fields = _fields(key)
    told = ("id", "prefix", "state", "account_id", "created_at", "expires_at", "last_used_at")
    return (
        *(fields[field] or "-" for field in told),
        key.name or "-",
        ", ".join(key.models) or "all",
        limits.text(key.limits),
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
        "last_used_at": moment(key.last_used_at) if key.HasField("last_used_at") else None,
        "models": list(key.models),
        "limits": limits.fields(key.limits),
        "pepper": key.pepper,
    }


def _needs(key: admin_pb2.Key, pepper: int) -> bool:
    return key.pepper == pepper and _state(key) == "active"


def _state(key: admin_pb2.Key) -> str:
    """Whether a key may call; one that has ended by itself is still active by its record."""
    ended = key.HasField("expires_at") and key.expires_at <= time.time()
    if ended and key.state == KeyState.KEY_STATE_ACTIVE:
        return "expired"
    return KeyState.Name(key.state).removeprefix("KEY_STATE_").lower()
