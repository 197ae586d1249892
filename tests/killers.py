"""Clients that hang up and processes that are killed or frozen, at random moments of a seed."""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from stacks import Machine, Up
from traffic import Callers

from fastrun.v1.scheduler_pb2 import WatchFleetResponse

MODULES = {"worker": "-m gpu_worker", "edge": "-m edge", "scheduler": "-m scheduler"}
ROUND = ("worker",) * 4 + ("edge",) * 3 + ("scheduler",)
"""Who is killed how often: about each process as often as any other."""
STEADY_S = 61
"""Who has run so long is started again at once; another one the later, each time."""
DEATH_S = 1
RETRY_LATER = (429, 500, 502, 503)


@dataclass(slots=True)
class Ending:
    """How a request ended for its client; times are monotonic seconds."""

    number: int
    text: str
    """That its answer has to say."""
    choices: int
    began_at: float
    ended_at: float = 0.0
    status: int = 0
    request_id: str = ""
    how: str = "unfinished"
    """`whole`, `refused`, `error event`, `broken`, `hung up`, or what was wrong with it."""
    usage: dict[str, int] = field(default_factory=dict)
    detail: str = ""

    @property
    def is_whole(self) -> bool:
        """It was answered to its end, as it had to be."""
        return self.how == "whole"

    def told(self) -> str:
        """In short."""
        return f"{self.status} {self.how}" if self.how == "refused" else self.how


class Crowd:
    """Random clients: some read all, others leave while they wait, in mid-stream or at the end."""

    def __init__(self, callers: Callers, keys: list[str], seed: int) -> None:
        self._callers = callers
        self._keys = keys
        self._seed = seed
        self.endings: list[Ending] = []

    async def come(self, count: int, within_s: float) -> None:
        """Ask so many times at a steady pace; return when all have ended."""
        began, asking = time.monotonic(), []
        for number in range(count):
            await asyncio.sleep(began + number * within_s / count - time.monotonic())
            asking.append(asyncio.create_task(self._one(number)))
        await asyncio.gather(*asking)

    async def _one(self, number: int) -> None:
        chance = Random(f"{self._seed} {number}")
        length = int(min(400, chance.expovariate(1 / 60))) + 1
        text = "".join(chance.choices("abcdefghij ", k=length))
        ending = Ending(number, text, chance.choice((1, 1, 1, 2, 3)), time.monotonic())
        self.endings.append(ending)
        # One in a hundred is large enough to go by the Attach of its own that edges keep for these.
        padding = "x" * 300_000 if chance.random() < 0.01 else ""
        asking = asyncio.create_task(
            self._ask_at_last(
                ending,
                chance.choice(self._keys),
                f"[[text={text}]] {number} {padding}",
                leaves_after=chance.randrange(length) if chance.random() < 0.2 else None,
                stream=chance.random() < 0.7,
            )
        )
        patience_s = chance.uniform(0, 1.5) if chance.random() < 0.25 else None
        await asyncio.wait({asking}, timeout=patience_s)
        if not asking.done():
            asking.cancel()
            ending.how = "hung up"
        with suppress(asyncio.CancelledError):
            await asking
        ending.ended_at = time.monotonic()

    async def _ask_at_last(self, ending: Ending, *request: Any, **how: Any) -> None:
        """Ask; where nobody listens, since all edges are dead, try again."""
        while True:
            try:
                await self._ask(ending, *request, **how)
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.1)
            else:
                return

    async def _ask(
        self, ending: Ending, key: str, prompt: str, *, leaves_after: int | None, stream: bool
    ) -> None:
        fields: dict[str, Any] = {"max_tokens": 1000, "temperature": 0, "n": ending.choices}
        if stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            async with self._callers.sent(key, prompt, **fields) as answer:
                ending.status = answer.status
                ending.request_id = answer.headers["x-request-id"]
                if answer.status != 200:
                    ending.how = _refusal(answer, await answer.read())
                elif stream:
                    ending.how = await _stream(ending, answer, leaves_after)
                else:
                    ending.how = _plain(ending, json.loads(await answer.read()))
        except TimeoutError:
            ending.how = "hangs"
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            ending.how, ending.detail = "broken", repr(error)


def _refusal(answer: aiohttp.ClientResponse, data: bytes) -> str:
    error = json.loads(data)["error"]
    if error.keys() != {"message", "type", "code"} or error["code"] != answer.status:
        return f"no envelope: {error}"
    if answer.status in RETRY_LATER and "retry-after" not in answer.headers:
        return f"{answer.status} without Retry-After"
    return "refused"


def _plain(ending: Ending, told: dict[str, Any]) -> str:
    ending.usage = _counts(told["usage"])
    texts = [choice["message"]["content"] for choice in told["choices"]]
    return "whole" if texts == [ending.text] * ending.choices else f"another text: {texts}"


async def _stream(ending: Ending, answer: aiohttp.ClientResponse, leaves_after: int | None) -> str:
    error, seen = None, 0
    pieces: dict[int, list[str]] = {index: [] for index in range(ending.choices)}
    async for line in answer.content:
        data = line.removeprefix(b"data: ").strip()
        if not line.startswith(b"data: "):
            continue
        if error is not None:
            return f"goes on after its error event: {data[:80]!r}"
        if data == b"[DONE]":
            said = ["".join(pieces[index]) for index in range(ending.choices)]
            return "whole" if said == [ending.text] * ending.choices else f"another text: {said}"
        event = json.loads(data)
        error = event.get("error")
        if error is not None and error.keys() != {"message", "type", "code"}:
            return f"no envelope: {error}"
        if event.get("usage"):
            ending.usage = _counts(event["usage"])
        for choice in event.get("choices", ()):
            pieces[choice["index"]].append(choice["delta"].get("content") or "")
        seen += 1
        if leaves_after is not None and seen > leaves_after:
            return "hung up"
    return "ends without [DONE]" if error is None else "error event"


def _counts(usage: dict[str, Any]) -> dict[str, int]:
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}


@dataclass(frozen=True, slots=True)
class Hit:
    """What was done to a process; times are monotonic seconds."""

    at: float
    until: float
    service: str
    signal: str


class Killer:
    """Kills, ends and freezes processes of a stack."""

    def __init__(self, machine: Machine, chance: Random) -> None:
        self._machine = machine
        self._chance = chance
        self._first_seen: dict[int, float] = {}
        self._frozen: dict[int, asyncio.TimerHandle] = {}
        self._ended: set[int] = set()
        self.hits: list[Hit] = []

    async def work(self, kills: int, within_s: float, *, longest_freeze_s: float) -> None:
        """Kill so many, by SIGKILL or SIGTERM, and freeze half as many besides; thaw all."""
        chance, services = self._chance, list[str]()
        while len(services) < kills:
            services += chance.sample(ROUND, len(ROUND))
        try:
            for service in services[:kills]:
                await asyncio.sleep(chance.uniform(0, 2 * within_s / kills))
                number = signal.SIGTERM if chance.random() < 0.2 else signal.SIGKILL
                await self._hit(service, number)
                if chance.random() < 0.5:
                    await self._freeze(chance.choice(ROUND), chance.uniform(1, longest_freeze_s))
        finally:
            for pid, thawing in list(self._frozen.items()):
                thawing.cancel()
                self._thaw(pid)

    def was_killed(self, service: str, began_at: float, ended_at: float) -> bool:
        """Tell whether one of a service died in between, which takes its moment."""
        return any(
            hit.service == service
            and hit.signal == "SIGKILL"
            and began_at - DEATH_S <= hit.at <= ended_at
            for hit in self.hits
        )

    def was_hit(self, began_at: float, ended_at: float) -> bool:
        """Tell whether anything was done to an edge or a worker in between."""
        return any(
            hit.service != "scheduler" and hit.at <= ended_at and hit.until >= began_at - DEATH_S
            for hit in self.hits
        )

    async def _hit(self, service: str, number: signal.Signals) -> None:
        pid = await self._victim(service)
        if pid in self._ended:  # a second SIGTERM ends at once, whatever runs
            number = signal.SIGKILL
        self._ended.add(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            now = time.monotonic()
            self.hits.append(Hit(now, now, service, number.name))

    async def _freeze(self, service: str, for_s: float) -> None:
        pid = await self._victim(service)
        if pid in self._frozen:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            now = time.monotonic()
            self.hits.append(Hit(now, now + for_s, service, "SIGSTOP"))
            self._frozen[pid] = asyncio.get_running_loop().call_later(for_s, self._thaw, pid)

    def _thaw(self, pid: int) -> None:
        self._frozen.pop(pid, None)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    async def _victim(self, service: str) -> int:
        """Choose one; mostly one that has run for long, if there is any."""
        while True:
            processes = await asyncio.to_thread(self._machine.processes)
            now = time.monotonic()
            ours = [pid for pid, line in processes.items() if MODULES[service] in line]
            self._first_seen = {
                pid: self._first_seen.get(pid, now) for pid in processes if processes[pid]
            }
            steady = [pid for pid in ours if now - self._first_seen[pid] > STEADY_S]
            if ours:
                return self._chance.choice(
                    steady if steady and self._chance.random() < 0.9 else ours
                )
            await asyncio.sleep(0.05)


class Watch:
    """Looks at a stack while it runs: at its leader's books, its workers' engines, its memory."""

    def __init__(self, up: Up, machine: Machine) -> None:
        self._up = up
        self._machine = machine
        self.views = 0
        self.drifts: list[tuple[float, int]] = []
        """When it was looked, and how much drift there was."""
        self.faults: list[str] = []
        self.most_waiting = 0
        self.most_in_use = 0
        self.memory: dict[tuple[int, str], list[int]] = {}
        """Of each process, by id and service: MiB, one sample after another."""

    async def look(self, until: asyncio.Event) -> None:
        """Look twice a second."""
        while not until.is_set():
            addresses = self._up.ready["scheduler_addresses"]
            views = await asyncio.gather(
                *(asyncio.to_thread(self._up.view, address) for address in addresses)
            )
            if led := [view for view in views if view is not None and view.leads]:
                self._take(max(led, key=lambda view: view.term))
            await asyncio.to_thread(self._weigh)
            with suppress(TimeoutError):
                await asyncio.wait_for(until.wait(), 0.5)

    def longest_drift_s(self) -> float:
        """For how long at most there was any."""
        longest, since = 0.0, None
        for at, drift in self.drifts:
            since = (since or at) if drift else None
            longest = max(longest, at - since if since else 0.0)
        return longest

    def most_grown_mib(self) -> dict[str, int]:
        """By how much, of each service, a process has grown at most since its first ten seconds."""
        most: dict[str, int] = {}
        for (_, service), samples in self.memory.items():
            if len(samples) > 30:
                most[service] = max(most.get(service, -(1 << 20)), samples[-1] - samples[20])
        return most

    def _take(self, view: WatchFleetResponse) -> None:
        self.views += 1
        self.drifts.append((time.monotonic(), view.drift))
        self.most_waiting = max(self.most_waiting, *(queue.waiting for queue in view.queues), 0)
        self.most_in_use = max(
            self.most_in_use, sum(worker.slots_in_use for worker in view.workers)
        )
        for worker in view.workers:
            beat = worker.heartbeat
            for what, count, most in (
                ("leases booked", worker.slots_in_use, worker.slots),
                ("leases running", len(beat.running_lease_ids), worker.slots),
                ("requests more than slots in the engine", beat.waiting, 0),
            ):
                if count > most:
                    self.faults.append(f"{worker.worker_id}: {count} {what}")

    def _weigh(self) -> None:
        for pid, line in self._machine.processes().items():
            names = [name for name, module in MODULES.items() if module in line]
            names += ["auth"] * ("-m auth_service" in line) + ["up"] * ("fastrun.cli up" in line)
            if not names:
                continue
            with suppress(OSError):
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                self.memory.setdefault((pid, names[0]), []).append(pages * 4096 >> 20)


def tally(of: Iterable[object]) -> str:
    """Counts, the most frequent first."""
    return ", ".join(f"{count} {what}" for what, count in Counter(of).most_common())
