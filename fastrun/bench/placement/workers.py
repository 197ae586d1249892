"""A simulated worker: continuous batching step by step, with chunked prefill and a prefix cache.

A step computes one token for each running request and at most one chunk of one prompt; prompts take
turns, first come, first served. Steps that are alike are taken in one stride, so that a simulation
costs by what changes and not by tokens; the times are those of the single steps all the same.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass

from fastrun.bench.placement.cache import CacheFollower, PrefixCache
from fastrun.bench.placement.trace import BLOCK_TOKENS, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a worker can do.

    The times are those that SMG's mock worker publishes for one GPU. The cache is what a model of
    8 billion parameters with 8 heads of keys and values (128 KiB for each token) has in 64 GiB.
    """

    slots: int = 16
    step_s: float = 0.006
    step_per_request_s: float = 0.00035
    prefill_tokens_per_s: float = 8000.0
    chunk_tokens: int = 512
    """Of a prompt in one step."""
    cache_blocks: int = 1024
    """Of 512 tokens, for what runs and what is kept."""

    def alone_s(self, request: Request) -> float:
        """Return how long a request takes alone on a worker that has nothing cached."""
        step = self.step_s + self.step_per_request_s
        chunks = -(-request.prompt_tokens // self.chunk_tokens)
        prefill = request.prompt_tokens / self.prefill_tokens_per_s
        return (chunks + request.output_tokens - 1) * step + prefill


@dataclass(slots=True, eq=False)
class Run:
    """A request on a worker."""

    request: Request
    total_blocks: int
    cached_tokens: int = 0
    matched: int = 0
    """Blocks of the prompt that were there."""
    prefill_left: int = 0
    """Tokens."""
    born_step: int = 0
    """In which it had its first token."""

    def context_tokens(self, step: int) -> int:
        """Return how many tokens it has in all after a step."""
        return self.request.prompt_tokens + 1 + step - self.born_step


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says of itself."""

    running: list[int]
    """Numbers of the requests on it."""
    waiting: int
    prefill_tokens: int
    context_tokens: int
    blocks_used: int
    blocks_total: int
    prompt_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class Progress:
    """What came about at the end of a stride."""

    first_token: list[Run]
    finished: list[Run]


class SimulatedWorker:
    """One worker; times are virtual seconds."""

    def __init__(
        self, machine: Machine, *, index: int = 0, follower: CacheFollower | None = None
    ) -> None:
        self._machine = machine
        self.cache = PrefixCache(machine.cache_blocks, worker=index, follower=follower)
        self._waiting: deque[Run] = deque()
        self._prefill: Run | None = None
        self._decoding: list[tuple[int, int, Run]] = []
        """A heap by the step in which each one ends."""
        self._held: dict[int, Run] = {}
        self._step = 0
        """How many steps were done before the stride that is under way."""
        self._stride_began = 0.0
        self._stride_steps = 0
        self._step_s = 0.0
        self._context_base = 0
        """Tokens that all that decodes would have at step 0; at step n each one has n more."""
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self.wake_s: float | None = None
        """When the stride ends; None while there is nothing to do."""

    def __len__(self) -> int:
        return len(self._held)

    def start(self, request: Request, now: float) -> None:
        """Take a request in.

        Raises:
            ValueError: every slot is taken, or the request can never fit.
        """
        tokens = request.prompt_tokens + request.output_tokens
        total = -(-tokens // BLOCK_TOKENS)
        if len(self._held) >= self._machine.slots:
            raise ValueError("every slot is taken")
        if total > self._machine.cache_blocks:
            raise ValueError(f"a request of {tokens} tokens does not fit in the cache")
        run = Run(request, total)
        self._held[request.number] = run
        self._waiting.append(run)
        if self.wake_s is None:
            self._plan(now)
        elif self._prefill is None and len(self._waiting) == 1:
            self._cut_short(now)

    def advance(self) -> Progress:
        """Do what the stride that is under way does, as its end has come."""
        assert self.wake_s is not None
        now = self.wake_s
        progress = Progress([], [])
        self._step += self._stride_steps
        if self._prefill is not None:
            self._prefill.prefill_left -= self._stride_steps * self._machine.chunk_tokens
            if self._prefill.prefill_left <= 0:
                self._first_token(self._prefill, progress)
                self._prefill = None
        while self._decoding and self._decoding[0][0] <= self._step:
            _, _, run = heapq.heappop(self._decoding)
            self._context_base -= run.context_tokens(0)
            self._finish(run, progress)
        self._plan(now)
        return progress

    def report(self, now: float) -> Report:
        """Say how things stand."""
        step = self._step
        if self.wake_s is not None and self._step_s:
            done = int((now - self._stride_began) / self._step_s)
            step += max(0, min(done, self._stride_steps))
        prefill = sum(run.request.prompt_tokens for run in self._waiting)
        context = self._context_base + len(self._decoding) * step
        if self._prefill is not None:
            done = (step - self._step) * self._machine.chunk_tokens
            left = max(0, self._prefill.prefill_left - done)
            prefill += left
            context += self._prefill.request.prompt_tokens - left
        return Report(
            running=list(self._held),
            waiting=len(self._waiting),
            prefill_tokens=prefill,
            context_tokens=context,
            blocks_used=self.cache.held,
            blocks_total=self._machine.cache_blocks,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
        )

    def _first_token(self, run: Run, progress: Progress) -> None:
        self.cache.publish(run.request.blocks, run.matched)
        progress.first_token.append(run)
        if run.request.output_tokens == 1:
            self._finish(run, progress)
            return
        ends = self._step + run.request.output_tokens - 1
        heapq.heappush(self._decoding, (ends, run.request.number, run))
        run.born_step = self._step
        self._context_base += run.context_tokens(0)

    def _finish(self, run: Run, progress: Progress) -> None:
        self.cache.release(run.request.blocks, run.total_blocks)
        del self._held[run.request.number]
        self._prompt_tokens += run.request.prompt_tokens
        self._cached_tokens += run.cached_tokens
        progress.finished.append(run)

    def _cut_short(self, now: float) -> None:
        """End a stride of decoding with the step that is under way: a prompt has come."""
        done = max(1, math.ceil((now - self._stride_began) / self._step_s))
        if done < self._stride_steps:
            self._stride_steps = done
            self.wake_s = self._stride_began + done * self._step_s

    def _plan(self, now: float) -> None:
        """Find out what the next steps do, up to the first one after which something changes."""
        if self._prefill is None and self._waiting:
            self._begin_prefill()
        running = len(self._decoding)
        steps = self._decoding[0][0] - self._step if running else 0
        tokens = 0
        if self._prefill is not None:
            tokens = min(self._machine.chunk_tokens, self._prefill.prefill_left)
            whole = max(1, self._prefill.prefill_left // self._machine.chunk_tokens)
            steps = min(steps, whole) if running else whole
            running += 1
        self._stride_began = now
        self._stride_steps = steps
        if not steps:
            self.wake_s = None
            return
        machine = self._machine
        self._step_s = machine.step_s + machine.step_per_request_s * running
        self._step_s += tokens / machine.prefill_tokens_per_s
        self.wake_s = now + steps * self._step_s

    def _begin_prefill(self) -> None:
        run = self._waiting[0]
        blocks = run.request.blocks
        matched = self.cache.match(blocks)
        if matched * BLOCK_TOKENS == run.request.prompt_tokens:
            matched -= 1  # the last token is always computed: what follows it is the answer
        if not self.cache.reserve(blocks, matched, run.total_blocks):
            return
        self._waiting.popleft()
        run.matched = matched
        run.cached_tokens = matched * BLOCK_TOKENS
        run.prefill_left = run.request.prompt_tokens - run.cached_tokens
        self._prefill = run
