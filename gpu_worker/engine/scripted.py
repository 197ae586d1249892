"""An engine without a model: deterministic tokens at a set pace, for tests and benchmarks.

Its tokens are the bytes of words that depend on the prompt, the position and, unless the
temperature is 0, the seed. A prompt may hold commands, each at most once:

* ``[[tokens=5]]`` ends its turn after 5 tokens;
* ``[[text=some text]]`` says this text, then ends its turn;
* ``[[clock=us]]`` says the time: each token is ``@T`` and ten digits, the microseconds of the
  monotonic clock modulo 2^31, so that whoever reads it knows for how long it was under way;
* ``[[fail=5]]`` fails the request instead of its token 5 (from 0);
* ``[[die=5]]`` fails the engine as a whole at that token.

Without a command it goes on until max_tokens.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b

from gpu_worker.dialect.special_tokens import SpecialTokens
from gpu_worker.engine.grammar import Grammar, GrammarError
from gpu_worker.engine.protocol import (
    EngineDeadError,
    EngineError,
    EngineStats,
    Finish,
    SamplingParams,
    StepOutput,
    Take,
    TokenLogprobs,
)
from gpu_worker.engine.token_stream import TokenStream

TURN_START, TURN_END = 256, 257
SPECIAL_TOKENS = {"<|im_start|>": TURN_START, "<|im_end|>": TURN_END}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
COMMAND = re.compile(rb"\[\[(tokens|text|clock|fail|die)=(.*?)\]\]", re.DOTALL)
# Ids from here on stand for the time since, and these are so many.
CLOCK = 1 << 31
# Of one width, so that a position says where in which word it is.
WIDTH = 8
WORDS = b"harbour morning lantern village thunder whisper journey kitchen between nothing "


class ByteTokenizer:
    """Every byte is a token, and every time; two special tokens begin and end a turn."""

    @property
    def vocab_size(self) -> int:
        """Up to the last one that tells the time."""
        return 2 * CLOCK

    @property
    def longest_token_bytes(self) -> int:
        """One that tells the time."""
        return len(self.token_bytes(CLOCK))

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Text and id of each."""
        return SPECIAL_TOKENS

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Return token ids; special tokens in the text are text unless ``special``."""
        if not special:
            return list(text.encode())
        ids: list[int] = []
        for piece in SpecialTokens(SPECIAL_TOKENS).split(text):
            ids += [piece] if isinstance(piece, int) else piece.encode()
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return the byte or the time; nothing for special tokens."""
        if token_id >= CLOCK:
            return b"@T%010d " % (token_id - CLOCK)
        return bytes([token_id]) if 0 <= token_id < 256 else b""


class Script:
    """What a generation will say: a function of prompt, seed and position, or the time."""

    def __init__(self, token_ids: Sequence[int], sampling: SamplingParams) -> None:
        prompt = bytes(token_id for token_id in token_ids if token_id < 256)
        self._seed = 0 if sampling.temperature == 0 else sampling.seed
        self._digest = blake2b(prompt).digest()
        self._number, self._word = -1, b""  # the last one, of which there is a letter left mostly
        commands = dict(COMMAND.findall(prompt))
        self._text: bytes | None = commands.get(b"text")
        self._tells_time = b"clock" in commands
        self._end = len(self._text) if self._text is not None else _number(commands, b"tokens")
        self.fails_at = _number(commands, b"fail")
        self.dies_at = _number(commands, b"die")

    def token(self, position: int) -> int:
        """Return the token at a position of the completion."""
        if self._end is not None and position >= self._end:
            return TURN_END
        if self._text is not None:
            return self._text[position]
        if self._tells_time:
            return CLOCK + time.monotonic_ns() // 1000 % CLOCK
        number, letter = divmod(position, WIDTH)
        if number != self._number:
            self._number, self._word = number, self._choose(number)
        return self._word[letter]

    def _choose(self, number: int) -> bytes:
        message = b"%d %d" % (self._seed, number)
        choice = blake2b(message, key=self._digest, digest_size=4).digest()
        at = int.from_bytes(choice, "little") * WIDTH % len(WORDS)
        return WORDS[at : at + WIDTH]


def _number(commands: dict[bytes, bytes], name: bytes) -> int | None:
    value = commands.get(name)
    return int(value) if value is not None and value.isdigit() else None


class _Generation:
    def __init__(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        take: Take,
        *,
        position: int,
        limit: int,
    ) -> None:
        self.script = Script(token_ids, sampling)
        self.stream = TokenStream(take)
        self.prompt_tokens = len(token_ids)
        self.position = position
        self.begins_at = 0.0  # when its prefill will be done, by the loop's clock
        self.began = False  # it is done
        self._sampling = sampling
        self._limit = limit

    def advance(self) -> bool:
        """Make a token; True if it was the last one."""
        token = self.script.token(self.position)
        self.position += 1
        finish = self.finish_after(token)
        self.stream.add([token], finish, self._logprobs(token))
        return finish is not None

    def finish_after(self, token: int) -> Finish | None:
        """Tell whether it ends where it is, with this as the last token."""
        if token == TURN_END or token in self._sampling.stop_token_ids:
            return Finish.STOP
        return Finish.LENGTH if self.position == self._limit else None

    def _logprobs(self, token: int) -> list[TokenLogprobs] | None:
        count = self._sampling.logprobs
        if count is None:
            return None
        top = [((token + rank) % 258, -0.25 - rank) for rank in range(min(count, 258))]
        return [TokenLogprobs(chosen=-0.25, top=top)]


class ScriptedEngine:
    """Any number of streams on one paced loop, at most ``slots`` of them at once."""

    name = "scripted"
    resumable = True
    resumes_grammars = True
    gpus = 0
    grows = False

    def __init__(
        self,
        *,
        slots: int = 32,
        context_length: int = 1 << 20,
        seconds_per_token: float = 0.0,
        seconds_per_prompt_token: float = 0.0,
    ) -> None:
        """Make an engine; it does nothing until it is asked.

        Args:
            slots: how many generations run at once.
            context_length: prompt and completion together, in tokens.
            seconds_per_token: between steps, each of which makes a token for each stream; 0 is as
                fast as it goes. The first token of a stream is made when its prompt is read.
            seconds_per_prompt_token: before the first token.
        """
        self._slots = slots
        self._context_length = context_length
        self._seconds_per_token = seconds_per_token
        self._seconds_per_prompt_token = seconds_per_prompt_token
        self._running: list[_Generation] = []
        self._waiting: deque[_Generation] = deque()
        self._admitted = asyncio.Event()
        self._steps: asyncio.Task[None] | None = None
        self._death: str | None = None
        self._prompt_tokens = 0
        self._completion_tokens = 0

    @property
    def slots(self) -> int:
        """How many generations run at once."""
        return self._slots

    @property
    def context_length(self) -> int:
        """Prompt and completion together, in tokens."""
        return self._context_length

    def check(self, sampling: SamplingParams) -> None:
        """Take everything."""

    async def compile(self, grammar: Grammar) -> None:
        """Refuse: a script says what it says."""
        del grammar
        raise GrammarError("the scripted engine cannot constrain its output")

    async def generate(
        self,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        take: Take,
        cache_salt: str,
        grammar: Grammar | None = None,
        resumed: int = 0,
    ) -> None:
        """Generate what the prompt's script says."""
        del cache_salt  # there is no cache
        self.health()
        if grammar is not None:
            await self.compile(grammar)
        left = min(sampling.max_tokens, self._context_length - len(token_ids))
        prompt = token_ids[: len(token_ids) - resumed]
        if not prompt or left < (0 if resumed else 1):
            raise EngineError("a generation needs a prompt that fits and max_tokens of at least 1")
        generation = _Generation(prompt, sampling, take, position=resumed, limit=resumed + left)
        if resumed and (finish := generation.finish_after(token_ids[-1])) is not None:
            take(StepOutput([], finish=finish))
            return
        self._waiting.append(generation)
        self._admit()
        if self._steps is None or self._steps.done():
            self._steps = asyncio.create_task(self._run(), name="scripted-engine")
        try:
            await generation.stream.over()
        finally:
            self._remove(generation)

    def stats(self) -> EngineStats:
        """Read the counters; there are no blocks."""
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_blocks_used=0,
            kv_blocks_total=0,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=0,
            completion_tokens=self._completion_tokens,
            preemptions=0,
            prefill_tokens=sum(
                each.prompt_tokens for each in (*self._waiting, *self._running) if not each.began
            ),
            context_tokens=sum(
                each.prompt_tokens + each.position for each in self._running if each.began
            ),
        )

    def health(self) -> None:
        """Return unless a script killed the engine or it was closed."""
        if self._death is not None:
            raise EngineDeadError(self._death)

    async def close(self) -> None:
        """Abort what runs."""
        self._die("the engine was closed")
        if self._steps is not None:
            self._steps.cancel()
            await asyncio.wait([self._steps])

    async def _run(self) -> None:
        """Step while there is anything to do, without drifting from the pace."""
        loop, pace = asyncio.get_running_loop(), self._seconds_per_token
        due = loop.time() + pace
        while self._running:
            now = loop.time()
            begun = [each for each in self._running if each.began]
            reading = [each for each in self._running if not each.began]
            if read := [each for each in reading if each.begins_at <= now]:
                self._step(read)
            elif begun and due <= now:
                due = max(due, now - pace) + pace
                self._step(begun)
                await asyncio.sleep(0)
            else:
                moments = [each.begins_at for each in reading]
                await self._admitted_within(min([*moments, due] if begun else moments) - now)

    async def _admitted_within(self, timeout_s: float) -> None:
        self._admitted.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._admitted.wait(), timeout_s)

    def _step(self, generations: Sequence[_Generation]) -> None:
        for generation in generations:
            generation.began = True
            if generation.position == generation.script.dies_at:
                self._die("a script killed the engine")
                return
            if generation.position == generation.script.fails_at:
                generation.stream.fail(EngineError("a script failed this request"))
                self._remove(generation)
                continue
            self._completion_tokens += 1
            if generation.advance():
                self._remove(generation)

    def _admit(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._waiting and len(self._running) < self._slots:
            generation = self._waiting.popleft()
            prefill = generation.prompt_tokens * self._seconds_per_prompt_token
            generation.begins_at = now + prefill
            self._prompt_tokens += generation.prompt_tokens
            self._running.append(generation)
            self._admitted.set()

    def _remove(self, generation: _Generation) -> None:
        if generation in self._running:
            self._running.remove(generation)
            self._admit()
        elif generation in self._waiting:
            self._waiting.remove(generation)

    def _die(self, reason: str) -> None:
        if self._death is None:
            self._death = reason
        for generation in [*self._running, *self._waiting]:
            generation.stream.fail(EngineDeadError(self._death))
        self._running.clear()
        self._waiting.clear()
