"""What the simulated edges ask for."""

from collections.abc import Iterator
from random import Random

import msgspec

from fastrun.bench.scheduler.prefixes import Prefixes
from fastrun.v1.auth_pb2 import Limits
from fastrun.v1.scheduler_pb2 import Acquire

MODEL = "bench"
BLOCK_TOKENS = 256
ANSWER_TOKENS = 256
CONVERSATIONS = 5_000
"""That go on at the same time where prompts have beginnings in common."""
PER_MINUTE = 1 << 40
"""A limit that is counted against and never reached."""
_HASH_BITS = 64


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """What requests are like."""

    prefixes: Prefixes
    blocks: int
    """That a prompt has, if anything is told of it."""
    accounts: int
    limits: bool
    """Each account and each key has limits of all kinds."""


def acquires(mix: Mix, seed: int) -> Iterator[Acquire]:
    """Make up requests without end; those of one seed are always the same."""
    random = Random(seed)  # noqa: S311 - makes load, hides nothing
    limits = (
        Limits(
            requests_per_minute=PER_MINUTE,
            tokens_per_minute=PER_MINUTE,
            concurrent_requests=PER_MINUTE,
            tokens_per_month=PER_MINUTE,
        )
        if mix.limits
        else None
    )
    blocks = mix.blocks if mix.prefixes is not Prefixes.NONE else 0
    tokens = [BLOCK_TOKENS * (at + 1) for at in range(blocks)]
    prompt_tokens = BLOCK_TOKENS * (mix.blocks + 1)
    number = 0
    while True:
        number += 1
        account = random.randrange(mix.accounts)
        yield Acquire(
            request_id=f"{seed:x}-{number:x}",
            account_id=f"account-{account}",
            key_id=f"key-{account}-{number % 2}",
            model=MODEL,
            queue_timeout_ms=10_000,
            account_limits=limits,
            key_limits=limits,
            token_estimate=prompt_tokens + ANSWER_TOKENS,
            choices=1,
            prefix_hashes=_hashes(mix.prefixes, blocks, random),
            prefix_tokens=tokens,
            prompt_tokens=prompt_tokens,
        )


def _hashes(prefixes: Prefixes, blocks: int, random: Random) -> list[int]:
    """Return a hash for each block: three quarters of them of a conversation, the rest new."""
    old: list[int] = []
    if prefixes is Prefixes.SHARED:
        conversation = Random(random.randrange(CONVERSATIONS))  # noqa: S311 - as above
        old = [conversation.getrandbits(_HASH_BITS) for _ in range(blocks * 3 // 4)]
    return [*old, *(random.getrandbits(_HASH_BITS) for _ in range(blocks - len(old)))]
