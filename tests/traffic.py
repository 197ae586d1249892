"""Callers and operators of a whole stack, and what each answer was and when."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from secrets import SystemRandom
from typing import Any

import aiohttp
import asyncpg
import grpc.aio
import orjson
from stacks import Up

from fastrun.local.postgres import DATABASE, USER, Postgres
from fastrun.service import api_key, rpc
from fastrun.service.identity import Role
from fastrun.service.tls import Tls
from fastrun.v1 import admin_pb2, admin_pb2_grpc
from fastrun.v1.auth_pb2 import Limits

PATIENCE_S = 30
TLS_FILES = ("cert", "key", "ca")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; times are monotonic seconds."""

    began_at: float
    ended_at: float
    status: int
    headers: dict[str, str]
    text: str
    is_whole: bool
    """Plain, or a stream that was told to its end."""

    @property
    def took_s(self) -> float:
        return self.ended_at - self.began_at

    @property
    def request_id(self) -> str:
        return self.headers["x-request-id"]


def new_key() -> str:
    """A key that nobody has issued."""
    return api_key.generate(SystemRandom())


class Callers:
    """Ask for a few tokens, each time over a connection of its own, so that all edges are asked."""

    def __init__(self, base_url: str, model: str, session: aiohttp.ClientSession) -> None:
        self._url = f"{base_url}/chat/completions"
        self._model = model
        self._session = session

    @classmethod
    @asynccontextmanager
    async def of(
        cls, up: Up, base_url: str | None = None, *, patience_s: float = PATIENCE_S
    ) -> AsyncIterator["Callers"]:
        """Callers until the end of a block, of another edge where its address is given."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=patience_s)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            yield cls(base_url or up.base_url, up.ready["model"], session)

    def sent(self, key: str, text: str = "hi", **fields: Any) -> Any:
        """A request, to be entered."""
        messages = [{"role": "user", "content": text}]
        body = {"model": self._model, "messages": messages, "max_tokens": 4, **fields}
        return self._session.post(self._url, json=body, headers={"authorization": f"Bearer {key}"})

    async def ask(self, key: str, text: str = "hi", **fields: Any) -> Answer:
        """Read an answer to its end."""
        began_at = time.monotonic()
        async with self.sent(key, text, **fields) as response:
            told = (await response.read()).decode()
        return Answer(
            began_at,
            time.monotonic(),
            response.status,
            {name.lower(): value for name, value in response.headers.items()},
            told,
            not fields.get("stream") or told.endswith("data: [DONE]\n\n"),
        )

    async def asked_steadily(
        self, key: Callable[[], str], *, per_s: float, until: asyncio.Event
    ) -> list[Answer]:
        """Ask at a pace whatever becomes of it, streamed and plain in turn; all answers."""
        asking = []
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        while not until.is_set():
            asking.append(asyncio.create_task(self.ask(key(), stream=len(asking) % 2 == 0)))
            next_at += 1 / per_s
            await asyncio.sleep(max(0.0, next_at - loop.time()))
        return list(await asyncio.gather(*asking))

    async def time_of(self, key: Callable[[], str], status: int) -> float:
        """When the first of ten answers running with a status was asked for: all edges give it."""
        running = 0
        async with asyncio.timeout(PATIENCE_S):
            while running < 10:
                answer = await self.ask(key())
                running = running + 1 if answer.status == status else 0
                if running == 1:
                    began_at = answer.began_at
        return began_at


class Operator:
    """Changes accounts and keys, with the identity of the stack's own operator."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    @classmethod
    @asynccontextmanager
    async def of(cls, up: Up) -> AsyncIterator["Operator"]:
        """The operator until the end of a block."""
        tls = Tls.of_folder(Path(up.ready["data"]) / "certs" / "operator")
        async with rpc.channel(up.ready["auth_address"], Role.AUTH, tls) as channel:
            yield cls(admin_pb2_grpc.AdminServiceStub(channel))

    async def call(self, method: str, **fields: Any) -> Any:
        """Call AdminService; the request has the method's name."""
        request = getattr(admin_pb2, f"{method}Request")(**fields)
        return await getattr(self._stub, method)(request, timeout=PATIENCE_S)

    async def issue(
        self, *, pending: bool = False, expires_at: float | None = None, **limits: int
    ) -> "Issued":
        """Make the key of a new account; limits are the account's."""
        key, name = new_key(), f"account {time.monotonic_ns()}"
        account = (await self.call("CreateAccount", name=name)).account.account_id
        issued = await self.call(
            "IssueKey",
            account=account,
            key_sha256=api_key.key_sha256(key),
            prefix=api_key.display_prefix(key),
            expires_at=expires_at,
        )
        if limits:
            await self.call("SetLimits", account=account, limits=Limits(**limits))
        if not pending:
            await self.call("ApproveAccount", account=account)
        return Issued(key, issued.key.key_id, account)

    async def issue_at_last(self) -> "Issued":
        """The same, tried until it succeeds."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await self.issue()
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Issued:
    """A key and its ids."""

    key: str
    key_id: str
    account_id: str


class Records:
    """Looks at a stack's own Postgres."""

    def __init__(self, up: Up) -> None:
        self._folder = Path(up.ready["data"]) / "postgres"
        self.server = Postgres(self._folder)

    async def connect(self) -> asyncpg.Connection:
        """Connect, wherever it listens now."""
        password = (self._folder / "password").read_text()
        lines = (self._folder / "data" / "postmaster.pid").read_text().splitlines()
        dsn = f"postgresql://{USER}:{password}@127.0.0.1:{lines[3]}/{DATABASE}"
        return await asyncpg.connect(dsn, timeout=2)

    async def recorded(self, account_id: str) -> tuple[list[str], int]:
        """The request ids of an account's usage, and how many requests its sums have.

        Both are of one moment: records arrive while this looks.
        """
        connection = await self.connect()
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                rows = await connection.fetch(
                    "select request_id from usage_records where account_id = $1", account_id
                )
                total = await connection.fetchval(
                    "select coalesce(sum(requests), 0)::bigint from usage_days"
                    " where account_id = $1 and key_id = ''",
                    account_id,
                )
        finally:
            await connection.close()
        return [row["request_id"] for row in rows], total


@asynccontextmanager
async def own_edge(up: Up, auth_address: str, log: Path, **settings: str) -> AsyncIterator[str]:
    """Another edge of a stack, which reaches its auth service elsewhere; its base URL.

    Args:
        up: the stack.
        auth_address: host:port.
        log: where its output goes.
        settings: by their names without FASTRUN_EDGE_.
    """
    data = Path(up.ready["data"])
    ours = {
        "listen": "127.0.0.1:0",
        "admin_listen": "127.0.0.1:0",
        "auth_address": auth_address,
        "scheduler_addresses": ",".join(up.ready["scheduler_addresses"]),
        "spool": str(data / "spool"),
        **{f"tls_{name}": str(data / "certs" / "edge" / f"{name}.pem") for name in TLS_FILES},
        **settings,
    }
    environ = {f"FASTRUN_EDGE_{name.upper()}": value for name, value in ours.items()}
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "edge"), env={**os.environ, **environ}, stderr=output
        )
    try:
        async with asyncio.timeout(PATIENCE_S):
            while (started := event(log, "service_started")) is None:
                await asyncio.sleep(0.05)
            base = f"http://127.0.0.1:{started['http']}"
            async with aiohttp.ClientSession() as session:
                while (await session.get(f"{base}/readyz")).status != HTTPStatus.OK:
                    await asyncio.sleep(0.05)
        yield f"{base}/v1"
        process.terminate()
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def event(log: Path, name: str) -> dict[str, Any] | None:
    """The first event of a name in a log."""
    lines = (orjson.loads(line) for line in log.read_bytes().splitlines(keepends=True))
    return next((line for line in lines if line["event"] == name), None)


async def edges_that_answered(up: Up, answers: Iterable[Answer]) -> int:
    """How many edges have any of these answers in their logs, once all stand there."""
    ids = {each.request_id for each in answers}
    async with asyncio.timeout(PATIENCE_S):
        while len(found := await asyncio.to_thread(_answered_by, up, ids)) < len(ids):
            await asyncio.sleep(0.1)
    return len(set(found.values()))


def _answered_by(up: Up, request_ids: set[str]) -> dict[str, Path]:
    """Which edge's log has which of these requests."""
    return {
        told["request_id"]: path
        for path in Path(up.ready["data"], "logs").glob("edge*.log")
        for line in path.read_bytes().splitlines()
        if b'"request_finished"' in line
        if (told := orjson.loads(line))["request_id"] in request_ids
    }
