"""Makes the account and the key of a stack on one machine: a process of its own at its start.

The key's file is written before the key is registered, so that a start that breaks off between the
two is mended by the next one: registering the same key again changes nothing.
"""

import asyncio
import os
import sys
from pathlib import Path
from secrets import SystemRandom

import grpc.aio

from fastrun.service import api_key, parent, private_file, rpc
from fastrun.service.errors import ServiceError
from fastrun.service.identity import Role
from fastrun.service.tls import Tls
from fastrun.v1 import admin_pb2, admin_pb2_grpc
from fastrun.v1.auth_pb2 import KeyState
from fastrun.v1.error_pb2 import ErrorReason

ACCOUNT = "dev"
TIMEOUT_S = 10.0


async def provide(admin: "admin_pb2_grpc.AdminServiceAsyncStub", path: Path) -> None:
    """Make sure that a file holds a key that may call.

    Raises:
        ServiceError: the auth service refused.
        OSError: the file cannot be written.
    """
    await _provide_account(admin)
    if await _register(admin, _read(path)):
        return
    key = api_key.generate(SystemRandom())
    private_file.write(path, key.encode())
    await _register(admin, key)


async def _provide_account(admin: "admin_pb2_grpc.AdminServiceAsyncStub") -> None:
    try:
        await admin.CreateAccount(admin_pb2.CreateAccountRequest(name=ACCOUNT), timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        refused = ServiceError.of_rpc(error)
        if refused.detail.reason != ErrorReason.ERROR_REASON_ALREADY_EXISTS:
            raise refused from error
    await admin.ApproveAccount(admin_pb2.ApproveAccountRequest(account=ACCOUNT), timeout=TIMEOUT_S)


async def _register(admin: "admin_pb2_grpc.AdminServiceAsyncStub", key: str) -> bool:
    """Register a key; return whether it can be used: not one that was revoked, or is another's."""
    if not api_key.well_formed(key):
        return False
    request = admin_pb2.IssueKeyRequest(
        account=ACCOUNT,
        name="made by fastrun up",
        key_sha256=api_key.key_sha256(key),
        prefix=api_key.display_prefix(key),
    )
    try:
        answer = await admin.IssueKey(request, timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        refused = ServiceError.of_rpc(error)
        if refused.detail.reason == ErrorReason.ERROR_REASON_ALREADY_EXISTS:
            return False
        raise refused from error
    return answer.key.state == KeyState.KEY_STATE_ACTIVE


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


async def _run(address: str, certs: Path, path: Path) -> str | None:
    async with rpc.channel(address, Role.AUTH, Tls.of_folder(certs)) as channel:
        try:
            await provide(admin_pb2_grpc.AdminServiceStub(channel), path)
        except grpc.aio.AioRpcError as error:
            return str(ServiceError.of_rpc(error))
        except (ServiceError, OSError) as error:
            return str(error)
    return None


def main() -> None:
    """Take the auth service's address, a folder of certificates and the key's file as arguments."""
    parent.follow(os.environ)
    sys.exit(asyncio.run(_run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))))


if __name__ == "__main__":
    main()
