"""What clients of a stack saw, what its workers logged, and what its database says was used."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
from stacks import Up

from edge.usage_files import Reader, owners, segments
from edge.usage_lines import Closed, Ledger

CLIENTS = 16
"""Connections at least, so that each edge gets some."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client saw of one request."""

    status: int | None
    """None: the connection broke."""
    request_id: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    """Counts of prompt, cached and completion tokens, where there were any."""
    is_whole: bool = False
    """It was answered to its end."""


class Client:
    """Asks a stack for completions, at a steady rate or one by one."""

    def __init__(self, up: Up) -> None:
        self._up = up
        self._sessions: list[aiohttp.ClientSession] = []
        self.seen: list[Seen] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Client"]:
        """Hold some connections."""
        headers = {"authorization": f"Bearer {self._up.ready['api_key']}"}
        timeout = aiohttp.ClientTimeout(total=120)
        self._sessions = [
            aiohttp.ClientSession(self._up.base_url + "/", headers=headers, timeout=timeout)
            for _ in range(CLIENTS)
        ]
        try:
            yield self
        finally:
            for session in self._sessions:
                await session.close()

    async def ask(self, path: str = "chat/completions", **body: Any) -> Seen:
        """Ask once, and note what is seen; a stream is asked to tell its usage."""
        if body.get("stream"):
            body["stream_options"] = {"include_usage": True}
        session = self._sessions[len(self.seen) % CLIENTS]
        seen = await _ask(session, path, {"model": self._up.ready["model"], **body})
        self.seen.append(seen)
        return seen

    async def ask_steadily(
        self, per_s: float, until: Callable[[], bool], body: Callable[[int], dict[str, Any]]
    ) -> None:
        """Ask at a rate that does not depend on the answers; return when all have ended."""
        running: set[asyncio.Task[Seen]] = set()
        began = time.monotonic()
        number = 0
        while not until():
            await asyncio.sleep(began + number / per_s - time.monotonic())
            task = asyncio.create_task(self.ask(**body(number)))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        await asyncio.gather(*running)


async def _ask(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> Seen:
    status, request_id = None, ""
    try:
        async with session.post(path, json=body) as answer:
            status, request_id = answer.status, answer.headers["x-request-id"]
            data = await answer.read()
    except (aiohttp.ClientError, OSError):
        return Seen(status, request_id)
    if status != 200:
        return Seen(status, request_id)
    if not body.get("stream"):
        return Seen(status, request_id, _counts(json.loads(data)["usage"]), is_whole=True)
    *events, end = data.decode().removesuffix("\n\n").split("\n\n")
    if end != "data: [DONE]":
        return Seen(status, request_id)
    usage = json.loads(events[-1].removeprefix("data: "))["usage"]
    return Seen(status, request_id, _counts(usage), is_whole=True)


def _counts(usage: dict[str, Any]) -> dict[str, int]:
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "completion_tokens": usage["completion_tokens"],
    }


def misrecorded(seen: Iterable[Seen], records: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """What was answered whole and is not recorded, or with other counts."""
    return [
        (each, records.get(each.request_id))
        for each in seen
        if each.is_whole and not each.usage.items() <= records.get(each.request_id, {}).items()
    ]


class Books:
    """What a stack with a Postgres of its own has written down."""

    def __init__(self, up: Up) -> None:
        self.folder = Path(up.ready["data"])

    @property
    def postmaster(self) -> int:
        """The process id of Postgres' first process."""
        return int(self._postmaster_pid()[0])

    async def ask(self, sql: str) -> list[asyncpg.Record]:
        """Run a query."""
        connection = await asyncpg.connect(
            host="127.0.0.1",
            port=int(self._postmaster_pid()[3]),
            user="fastrun",
            password=(self.folder / "postgres" / "password").read_text(),
            database="postgres",
        )
        try:
            return await connection.fetch(sql)
        finally:
            await connection.close()

    async def records(self) -> dict[str, dict[str, Any]]:
        """All usage records, by request id."""
        rows = [dict(row) for row in await self.ask("select * from usage_records")]
        found = {row["request_id"]: row for row in rows}
        assert len(found) == len(rows)
        return found

    def logged(self, event: str, service: str = "worker") -> list[dict[str, Any]]:
        """All lines of that event in a service's logs, unless they were too many to be kept."""
        return [line for line in self._logged(service) if line.get("event") == event]

    async def worked(
        self, request_ids: Iterable[str], timeout_s: float = 20
    ) -> dict[str, tuple[int, int]]:
        """What workers logged of every request they accepted: its prompt, and all its completions.

        Waits until these are among them, and all have ended.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                began = Counter(line["request_id"] for line in self.logged("request_started"))
                ended = [
                    line
                    for line in self.logged("request_finished")
                    if line["request_id"] in began and line["prompt_tokens"] is not None
                ]
                if began.keys() >= set(request_ids) and len(ended) == began.total():
                    break
                await asyncio.sleep(0.1)
        completion: Counter[str] = Counter()
        for line in ended:
            completion[line["request_id"]] += line["completion_tokens"]
        return {
            line["request_id"]: (line["prompt_tokens"], completion[line["request_id"]])
            for line in ended
        }

    async def settled(self, timeout_s: float = 60) -> dict[str, dict[str, Any]]:
        """Wait until no edge owes a record; return all records."""
        async with asyncio.timeout(timeout_s):
            while True:
                began = time.monotonic()
                owed = self._owed()
                records = await self.records()
                if owed is not None and owed <= records.keys():
                    return records
                # There may be many, and who looks all the time leaves no time to deliver them.
                await asyncio.sleep(0.1 + 2 * (time.monotonic() - began))

    def _owed(self) -> set[str] | None:
        """The records that stand in the spool; None: of some request it is not decided."""
        spool = self.folder / "spool"
        closed: set[str] = set()
        sets = owners(spool)
        with suppress(FileNotFoundError):  # deleted meanwhile, as delivered
            for owner in sets:
                ledger = Ledger()
                for line in Reader(segments(spool, owner)).lines():
                    ledger.take(line)
                    if isinstance(line, Closed):
                        closed.add(line.request_id)
                if ledger.open:
                    return None
            # One that was adopted meanwhile stands where it was not looked for.
            return closed if owners(spool) == sets else None
        return None

    def _logged(self, service: str) -> Iterator[dict[str, Any]]:
        for path in sorted((self.folder / "logs").glob(f"{service}*")):
            for line in path.read_text().splitlines():
                with suppress(ValueError):
                    yield json.loads(line)

    def _postmaster_pid(self) -> list[str]:
        return (self.folder / "postgres" / "data" / "postmaster.pid").read_text().splitlines()
