"""Accounts, keys, limits, prices, usage and audit by the `fastrun` command."""

import asyncio
import csv
import io
import json
import os
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from auth_service.__main__ import AuthService
from auth_service.config import Config
from fastrun.service import api_key, rpc
from fastrun.v1 import auth_pb2, auth_pb2_grpc

NO_LIMITS = dict.fromkeys(
    ("requests_per_minute", "tokens_per_minute", "concurrent_requests", "tokens_per_month")
)

NO_EVE = "account 'eve' does not exist: fastrun account list shows all"


@dataclass(frozen=True)
class Done:
    """What a command has said."""

    status: int
    stdout: str
    stderr: str

    @property
    def json(self):
        assert self.status == 0, self.stderr
        return json.loads(self.stdout)


class Deployment:
    """A running auth service, and the command to operate it."""

    def __init__(self, address, stub, home):
        self.auth = stub
        self._environ = {
            **os.environ,
            "FASTRUN_CLI_AUTH_ADDRESS": address,
            "FASTRUN_CONTEXT": "local",
            "XDG_CONFIG_HOME": str(home),
            "XDG_DATA_HOME": str(home),
        }
        self._environ.pop("FASTRUN_DATA", None)

    async def run(self, *arguments):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fastrun.cli", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environ,
        )
        stdout, stderr = await process.communicate()
        return Done(process.returncode, stdout.decode(), stderr.decode())

    async def verify(self, key):
        request = auth_pb2.VerifyKeyRequest(key_sha256=api_key.key_sha256(key))
        return await self.auth.VerifyKey(request)

    async def record(self, **fields):
        record = auth_pb2.UsageRecord(
            status=auth_pb2.USAGE_STATUS_COMPLETED, worker_id="w", **fields
        )
        await self.auth.RecordUsage(auth_pb2.RecordUsageRequest(records=[record]))


@pytest.fixture
async def deployment(database, tmp_path):
    service = AuthService(
        Config(
            database_url=database,
            pepper="ab" * 32,
            listen="127.0.0.1:0",
            admin_listen="127.0.0.1:0",
        )
    )
    ports = await service.start()
    address = f"127.0.0.1:{ports['grpc']}"
    channel = rpc.channel(address)
    yield Deployment(address, auth_pb2_grpc.AuthServiceStub(channel), tmp_path)
    await channel.close()
    await service.stop()


async def test_an_accounts_life(deployment):
    """An account is pending, approved, suspended and closed, and its limits change one by one."""
    run = deployment.run
    created = (await run("account", "create", "ada", "--json")).json
    assert (created["state"], created["limits"]) == ("pending", NO_LIMITS)
    pending = (await run("account", "list", "--state", "pending", "--json")).json
    assert [each["name"] for each in pending] == ["ada"]

    done = await run("account", "approve", "ada")
    assert done.stdout == f"account ada ({created['id']}) is approved\n"
    assert (await run("account", "list", "--state", "pending", "--json")).json == []

    limits = await run("account", "limits", "ada", "--requests-per-minute", "60", "--json")
    assert limits.json == NO_LIMITS | {"requests_per_minute": 60}
    for account in ("ada", created["id"]):
        limits = await run("account", "limits", account, "--concurrent-requests", "4", "--json")
        assert limits.json == NO_LIMITS | {"requests_per_minute": 60, "concurrent_requests": 4}
    assert "60 requests per minute, 4 concurrent" in (await run("account", "list")).stdout
    limits = await run("account", "limits", "ada", "--requests-per-minute", "none", "--json")
    assert limits.json == NO_LIMITS | {"concurrent_requests": 4}
    assert (await run("account", "limits", "ada", "--json")).json == limits.json

    assert "is suspended" in (await run("account", "suspend", "ada")).stdout
    assert (await run("account", "close", "ada")).status == 1  # nobody has said yes
    assert "is closed" in (await run("account", "close", "ada", "--yes")).stdout
    refused = await run("account", "approve", "ada")
    assert (refused.status, refused.stderr) == (
        1,
        "fastrun: cannot approve an account that is closed\n",
    )
    refused = await run("account", "limits", "eve")
    assert (refused.status, refused.stderr) == (1, f"fastrun: {NO_EVE}\n")


async def test_a_keys_life(deployment):
    """A key is issued, limited, rotated with an overlap, and revoked; each is shown once."""
    run = deployment.run
    await run("account", "create", "ada")
    await run("account", "approve", "ada")
    arguments = ("--name", "laptop", "--model", "a", "--model", "b", "--expires", "90d")
    issued = await run("key", "issue", "ada", *arguments)
    key = issued.stdout.strip()
    [listed] = (await run("key", "list", "ada", "--json")).json
    assert listed["id"] in issued.stderr
    assert (listed["name"], listed["models"], listed["last_used_at"]) == (
        "laptop",
        ["a", "b"],
        None,
    )
    answer = await deployment.verify(key)
    assert (answer.key_id, list(answer.models)) == (listed["id"], ["a", "b"])
    assert 89 < (answer.expires_at - time.time()) / 86_400 <= 90

    limits = await run("key", "limits", listed["id"], "--tokens-per-month", "1000", "--json")
    assert limits.json == NO_LIMITS | {"tokens_per_month": 1000}
    named = await run("key", "limits", listed["id"], "--account", "ada", "--json")
    assert named.json == limits.json
    missing = await run("key", "limits", "key_nobodys")
    said = "fastrun: key 'key_nobodys' does not exist: fastrun key list shows all\n"
    assert (missing.status, missing.stderr) == (1, said)

    rotated = (await run("key", "rotate", listed["id"], "--overlap", "1h", "--json")).json
    assert (rotated["name"], rotated["models"]) == ("laptop", ["a", "b"])
    assert rotated["limits"] == limits.json
    assert (await deployment.verify(rotated["key"])).key_id == rotated["id"]
    assert (await deployment.verify(key)).expires_at - time.time() <= 3600
    again = await run("key", "rotate", rotated["id"], "--overlap", "0")
    assert f"{rotated['id']} has ended" in again.stderr
    ended = (await deployment.verify(rotated["key"])).key_state
    assert ended == auth_pb2.KEY_STATE_REVOKED

    last = (await deployment.verify(again.stdout.strip())).key_id
    assert (await run("key", "revoke", last)).stdout == f"key {last} is revoked\n"


async def test_usage_and_its_price(deployment):
    """Usage is told by day, account and model, with what it costs; as a table, JSON and CSV."""
    run = deployment.run
    account = (await run("account", "create", "ada", "--json")).json["id"]
    key = (await run("key", "issue", "ada", "--json")).json["id"]
    price = ("--prompt", "0.15", "--cached", "0.05", "--completion", "0.6")
    assert (await run("price", "set", "m", *price)).status == 0
    [listed] = (await run("price", "list", "--json")).json
    assert {name: value for name, value in listed.items() if name != "valid_from"} == {
        "model": "m",
        "prompt_micros": 150_000,
        "cached_micros": 50_000,
        "completion_micros": 600_000,
    }
    started_at = time.time()
    day = datetime.fromtimestamp(started_at, UTC).date().isoformat()
    whose = {"account_id": account, "key_id": key, "started_at": started_at}
    await deployment.record(
        request_id="1", model="m", prompt_tokens=1000, cached_tokens=0, completion_tokens=9, **whose
    )
    await deployment.record(request_id="2", model="free", **whose)

    days = ("--from", day, "--to", day)
    told = (await run("usage", *days, "--json")).json
    assert (told["first_day"], told["last_day"]) == (day, day)
    first, second = told["sums"]
    assert (first["model"], first["account"], first["lost_requests"]) == ("free", "ada", 1)
    assert (second["model"], second["prompt_tokens"], second["completion_tokens"]) == ("m", 1000, 9)
    assert (first["cost_micros"], second["cost_micros"]) == (None, 155)  # 155.4
    assert (told["total"]["requests"], told["total"]["cost_micros"]) == (2, 155)

    assert (await run("usage", *days, "--account", "ada", "--model", "m", "--json")).json[
        "sums"
    ] == [second]
    table = await run("usage", *days, "--total")
    assert [line.split()[0] for line in table.stdout.splitlines()] == [
        "ACCOUNT",
        "ada",
        "ada",
        "total",
    ]
    assert "without a price, and not in the cost: free" in table.stderr
    rows = list(csv.DictReader(io.StringIO((await run("usage", *days, "--csv")).stdout)))
    assert [(row["day"], row["account_id"], row["model"]) for row in rows] == [
        (day, account, "free"),
        (day, account, "m"),
    ]
    done = await run("usage", "recompute", *days)
    assert done.stdout == f"{day} to {day}: 0 sums were not right and are now\n"
    refused = await run("usage", "--account", "eve")
    assert (refused.status, refused.stderr) == (1, f"fastrun: {NO_EVE}\n")


async def test_audit(deployment):
    """Who changed what is told newest first, of all accounts or of one."""
    run = deployment.run
    for name in ("ada", "eve"):
        await run("account", "create", name)
    await run("account", "approve", "ada")
    await run("price", "set", "m", "--prompt", "1", "--completion", "2")

    everything = (await run("audit", "--json")).json
    assert [(each["action"], each["account"]) for each in everything] == [
        ("price_set", None),
        ("account_approved", "ada"),
        ("account_created", "eve"),
        ("account_created", "ada"),
    ]
    assert (await run("audit", "--limit", "1", "--json")).json == everything[:1]
    table = (await run("audit", "--account", "ada")).stdout.splitlines()
    assert len(table) == 3
    assert "state pending -> approved" in table[1]
