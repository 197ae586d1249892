"""What docs/operating/backup.md says, done: a dump of one database, restored into another one."""

import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import asyncpg
import pytest

from auth_service.__main__ import AuthService
from auth_service.config import Config
from auth_service.migrate import migrate
from fastrun.local import postgres_binaries
from fastrun.service import api_key, rpc
from fastrun.v1 import admin_pb2, admin_pb2_grpc, auth_pb2, auth_pb2_grpc

PAGE = Path(__file__).parents[3] / "docs" / "operating" / "backup.md"
DAY = "2028-02-29"
NOON = datetime(2028, 2, 29, 12, tzinfo=UTC).timestamp()
OURS = ("--username=", "--dbname=")  # these are the test's own


def options(program):
    """What the page passes to a program of Postgres, but for the names of its database."""
    (line,) = re.findall(rf"postgres {program} (.*) [<>] fastrun.dump", PAGE.read_text())
    return [each for each in line.split() if each.startswith("--") and not each.startswith(OURS)]


def run(program, *arguments, **pipes):
    binary = postgres_binaries.find().folder / program
    return subprocess.run([str(binary), *arguments], check=True, timeout=60, **pipes)


class Deployment:
    """A running auth service, and what a caller and an operator see of it."""

    def __init__(self, database):
        self.service = AuthService(
            Config(
                database_url=database,
                pepper="ab" * 32,
                listen="127.0.0.1:0",
                admin_listen="127.0.0.1:0",
            )
        )

    async def __aenter__(self):
        ports = await self.service.start()
        self.channel = rpc.channel(f"127.0.0.1:{ports['grpc']}")
        self.auth = auth_pb2_grpc.AuthServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        return self

    async def __aexit__(self, *exc):
        await self.channel.close()
        await self.service.stop()

    async def issue(self):
        """Make an account that may call, and return it and its key."""
        made = await self.admin.CreateAccount(admin_pb2.CreateAccountRequest(name="alice"))
        account = made.account.account_id
        await self.admin.ApproveAccount(admin_pb2.ApproveAccountRequest(account=account))
        key = api_key.generate(Random(1))
        request = admin_pb2.IssueKeyRequest(
            account=account, key_sha256=api_key.key_sha256(key), prefix=api_key.display_prefix(key)
        )
        await self.admin.IssueKey(request)
        return account, key

    async def use(self, account, request_id):
        """Record a request of the account, and return how many of it were new."""
        record = auth_pb2.UsageRecord(
            request_id=request_id,
            account_id=account,
            key_id="key_1",
            model="m",
            worker_id="w",
            status=auth_pb2.USAGE_STATUS_COMPLETED,
            started_at=NOON,
            prompt_tokens=3,
            completion_tokens=2,
        )
        request = auth_pb2.RecordUsageRequest(records=[record])
        return (await self.auth.RecordUsage(request)).recorded

    async def requests(self, account):
        """How many requests the account has made."""
        request = auth_pb2.QueryUsageRequest(account_id=account, first_day=DAY, last_day=DAY)
        return [each.requests for each in (await self.auth.QueryUsage(request)).sums]

    async def verify(self, key):
        request = auth_pb2.VerifyKeyRequest(key_sha256=api_key.key_sha256(key))
        return await self.auth.VerifyKey(request)

    async def audit(self):
        listed = await self.admin.ListAudit(admin_pb2.ListAuditRequest())
        return [each.action for each in listed.records]


async def test_a_dump_is_restored(database, empty_database, tmp_path):
    """The old key is valid, its usage is there and is not counted twice, and the audit is whole."""
    async with Deployment(database) as old:
        account, key = await old.issue()
        assert await old.use(account, "r1") == 1
        verified, audit = await old.verify(key), await old.audit()
    dump = tmp_path / "fastrun.dump"
    with dump.open("wb") as file:
        run("pg_dump", *options("pg_dump"), f"--dbname={database}", stdout=file)
    for _ in range(2):  # over an empty database, and over itself
        with dump.open("rb") as file:
            run("pg_restore", *options("pg_restore"), f"--dbname={empty_database}", stdin=file)
    assert await migrate(empty_database) == []

    async with Deployment(empty_database) as new:
        assert await new.verify(key) == verified
        assert await new.audit() == audit
        assert await new.requests(account) == [1]
        assert (await new.use(account, "r1"), await new.use(account, "r2")) == (0, 1)
        assert await new.requests(account) == [2]
        await new.admin.SuspendAccount(admin_pb2.SuspendAccountRequest(account=account))
        assert (await new.verify(key)).sequence > verified.sequence
        assert len(await new.audit()) == len(audit) + 1

    connection = await asyncpg.connect(empty_database)
    with pytest.raises(asyncpg.PostgresError):
        await connection.execute("delete from audit")
    await connection.close()
