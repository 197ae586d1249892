"""What every engine is: token ids in, token ids out, one bounded set of slots."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from gpu_worker.engine.grammar import Grammar


class Finish(Enum):
    """Why a generation ended by itself."""

    STOP = "stop"
    LENGTH = "length"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose tokens; every field is set, nothing is left to an engine's default.

    Random numbers depend on (seed, position of the token in the generation) only, so that a request
    that is resumed elsewhere continues identically.
    """

    max_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0  # 0 keeps the best token only
    top_k: int = 0  # 0 is off
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and completion; 0 is treated as off
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()  # the engine ends after one of these and includes it
    logprobs: int | None = None  # how many alternatives per token; None reports nothing


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Natural logarithms of the probabilities before temperature and penalties; always finite."""

    chosen: float
    top: list[tuple[int, float]]  # (token id, logprob), likeliest first


class StepOutput(msgspec.Struct, frozen=True):
    """What one or several engine steps added to a generation."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None  # one for each token id, if asked for
    finish: Finish | None = None  # set on the last output and on no other
    cached_tokens: int = 0  # prompt tokens that came from the prefix cache; exact


# Gets what was made; True: it has enough, and the engine may let go. Called in the event loop,
# where all others wait for it.
Take = Callable[[StepOutput], bool]


class EngineStats(msgspec.Struct, frozen=True):
    """Counters of an engine now; totals count since its start."""

    running: int
    waiting: int  # accepted, prefill not begun
    kv_blocks_used: int
    kv_blocks_total: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    preemptions: int
    prefill_tokens: int = 0  # of prompts, waiting ones too, and not computed yet
    context_tokens: int = 0  # of prompts and completions that run, and computed


class UnsupportedError(Exception):
    """No engine of this kind can do what a request asks for; the message names the parameter."""


class EngineError(Exception):
    """The engine failed this request; another worker may do better."""


class EngineDeadError(EngineError):
    """The engine cannot run anything any more; its process has to be replaced."""


class Engine(Protocol):
    """A model that is loaded and generates.

    Every method is called from one event loop; the engine's own work runs in threads or processes
    that do not hold that loop up.
    """

    @property
    def name(self) -> str:
        """Such as ``cpu``, ``scripted`` or ``tensorrt-llm``."""

    @property
    def slots(self) -> int:
        """How many generations may run at once."""

    @property
    def context_length(self) -> int:
        """Prompt and completion together, in tokens."""

    @property
    def resumable(self) -> bool:
        """Whether ``generate`` takes ``resumed``."""

    @property
    def resumes_grammars(self) -> bool:
        """Whether it does also with a grammar."""

    @property
    def gpus(self) -> int:
        """How many of the machine's NVIDIA GPUs it computes on."""

    @property
    def grows(self) -> bool:
        """Whether it takes ever more memory over weeks, for reasons that are not ours."""

    def check(self, sampling: SamplingParams) -> None:
        """Look at what a request asks for, before it is accepted; cheap.

        Raises:
            UnsupportedError: this engine would not do it.
        """

    async def compile(self, grammar: Grammar) -> None:
        """Check that generations can be held to a grammar, and keep it ready for them.

        For refusing a request before it is accepted: a ``generate`` with an equal grammar soon
        after does not compile it again. Nothing is held for it that has to be given back.

        Raises:
            GrammarError: this engine cannot hold a generation to it; names what it cannot do.
            EngineError: it could not find out now; another worker may do better.
        """

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
        """Generate until a stop token, max_tokens, the grammar's end, or until ``take`` has enough.

        Each output goes to ``take`` as it is made, and the last one has its finish, unless ``take``
        had enough before. When this returns or raises, ``take`` is not called any more and the
        engine holds nothing of the request. Cancelling aborts. Prefix-cache blocks are shared only
        between requests of equal cache_salt.

        With a grammar, the completion is text that the grammar allows, or the beginning of one if
        it ends with ``Finish.LENGTH``. A stop token comes only where the grammar may end; where
        nothing else could follow, the generation ends with ``Finish.STOP`` and no further token.

        The last ``resumed`` token_ids are not prompt but what an engine like this one generated
        for the same request before it was lost: the generation goes on after them as that one would
        have, and makes only what is new. max_tokens counts that, and may be 0 here. If they were
        the whole of it, there is one output without tokens, with the finish that it had.

        Raises:
            UnsupportedError: as for ``check``, before anything is scheduled.
            GrammarError: as for ``compile``, before anything is scheduled; or in mid-stream, if
                it turned out too costly to follow, on this engine and every other.
            EngineError: this request failed.
            EngineDeadError: the engine failed as a whole.
        """

    def stats(self) -> EngineStats:
        """Read the counters; cheap."""

    def health(self) -> None:
        """Return if the engine makes progress.

        Raises:
            EngineDeadError: it does not, with the reason.
        """

    async def close(self) -> None:
        """Abort what runs and free all memory."""
