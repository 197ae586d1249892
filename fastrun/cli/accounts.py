"""Accounts as operators name them, by id or by name."""

from fastrun.cli.connection import TIMEOUT_S
from fastrun.cli.errors import CommandError
from fastrun.v1 import admin_pb2, admin_pb2_grpc


async def find(stub: "admin_pb2_grpc.AdminServiceAsyncStub", account: str) -> admin_pb2.Account:
    """The account of that id or name; an id is never a name.

    Raises:
        CommandError: there is none.
    """
    for each in await _all(stub):
        if account in (each.account_id, each.name):
            return each
    raise CommandError(f"account {account!r} does not exist: fastrun account list shows all")


async def names(stub: "admin_pb2_grpc.AdminServiceAsyncStub") -> dict[str, str]:
    """What each account is called, by its id."""
    return {each.account_id: each.name for each in await _all(stub)}


async def _all(stub: "admin_pb2_grpc.AdminServiceAsyncStub") -> list[admin_pb2.Account]:
    answer = await stub.ListAccounts(admin_pb2.ListAccountsRequest(), timeout=TIMEOUT_S)
    return list(answer.accounts)
