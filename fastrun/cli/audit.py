"""`fastrun audit`: who changed what."""

import json
from typing import Annotated, Any

import grpc.aio
import typer

from fastrun.cli import accounts
from fastrun.cli.connection import TIMEOUT_S, Auth, ContextName, ask, auth_service
from fastrun.cli.data import Data
from fastrun.cli.group import group
from fastrun.cli.output import Json, moment, print_columns, print_json
from fastrun.v1 import admin_pb2, admin_pb2_grpc

app = group()


@app.command(epilog="Example: fastrun audit --account alice")
def audit(
    account: Annotated[str, typer.Option(help="Only about this account and its keys.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The newest so many.")] = 100,
    auth: Auth = None,
    data: Data = None,
    context: ContextName = None,
    as_json: Json = False,
) -> None:
    """Show who changed what about accounts, keys, limits and prices, newest first."""

    async def talk(channel: grpc.aio.Channel) -> list[dict[str, Any]]:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        request = admin_pb2.ListAuditRequest(account=account, limit=limit)
        answer = await stub.ListAudit(request, timeout=TIMEOUT_S)
        names = await accounts.names(stub)
        return [_fields(record, names) for record in answer.records]

    records = ask(auth_service(auth, data, context), talk)
    if as_json:
        print_json(records)
    else:
        print_columns(
            ("at", "who", "action", "account", "key", "change"),
            [
                (
                    record["at"],
                    record["actor"],
                    record["action"],
                    record["account"] or "-",
                    record["key_id"] or "-",
                    change_text(record["change"]),
                )
                for record in records
            ],
        )


def change_text(change: dict[str, dict[str, Any]]) -> str:
    """What was and what became of each field, in a line."""
    return ", ".join(
        f"{field} {_value(field, each.get('from'))} -> {_value(field, each.get('to'))}"
        if each.get("from") is not None
        else f"{field} {_value(field, each.get('to'))}"
        for field, each in change.items()
    )


def _value(field: str, value: Any) -> str:
    if value is None:
        return "none"
    if field.endswith("_at") and isinstance(value, int | float):
        return moment(value)
    if isinstance(value, str) and value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _fields(record: admin_pb2.AuditRecord, names: dict[str, str]) -> dict[str, Any]:
    return {
        "number": record.number,
        "at": moment(record.at),
        "actor": record.actor,
        "action": record.action,
        "account": names.get(record.account_id) if record.account_id else None,
        "account_id": record.account_id or None,
        "key_id": record.key_id or None,
        "change": json.loads(record.change_json),
    }
