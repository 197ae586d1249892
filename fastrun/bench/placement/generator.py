"""Made-up conversations: prompts that grow turn by turn, after instructions that many share."""

import itertools
import math
from dataclasses import dataclass
from random import Random

from fastrun.bench.placement.trace import BLOCK_TOKENS, Accounts, Request, in_order, mixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """What they are like; lengths are log-normal, in tokens, by their median and sigma."""

    requests: int = 12_000
    accounts: int = 16
    """Their shares of the conversations fall as 1, 1/2, 1/3 and so on."""
    prompts_per_account: int = 4
    """System prompts, each shared by a quarter of the account's conversations."""
    system_tokens: tuple[int, int] = (512, 6144)
    """Their shortest and longest; any length between is as likely."""
    more_turns: float = 0.75
    """How likely a turn is followed by another one: four turns on average."""
    first_tokens: tuple[float, float] = (2000, 1.2)
    """The first thing that a person says, often with a document."""
    next_tokens: tuple[float, float] = (200, 1.0)
    output_tokens: tuple[float, float] = (300, 0.7)
    most_output_tokens: int = 2000
    window_tokens: int = 131_072
    """A conversation that grows longer ends."""
    think_s: float = 60.0
    """Between an answer and the next turn, on average; exponential."""
    token_s: float = 0.03
    """For each token of an answer before that."""
    span_s: float = 3600.0
    """All requests arrive within it, at the same rate from beginning to end."""
    before_s: float = 1200.0
    """Conversations begin at any time of the span and so long before it, as likely."""


@dataclass(slots=True)
class _Conversation:
    account: int
    system: int
    """Which system prompt."""
    system_tokens: int
    identity: int

    def blocks(self, tokens: int) -> tuple[int, ...]:
        """Return the hashes of the full blocks of so many tokens."""
        shared = self.system_tokens // BLOCK_TOKENS
        return tuple(
            mixed(self.account, self.system, at)
            if at < shared
            else mixed(self.account, self.system, at, self.identity)
            for at in range(tokens // BLOCK_TOKENS)
        )


def generate(shape: Conversations, seed: int) -> list[Request]:
    """Make up requests, in the order of arrival; the same for the same shape and seed."""
    random = Random(seed)  # noqa: S311 - chance, not secrets
    owners = Accounts(shape.accounts, seed)
    requests: list[Request] = []
    for identity in itertools.count():
        conversation = _conversation(shape, owners, identity, random)
        requests += [
            turn
            for turn in _turns(shape, conversation, random)
            if 0 <= turn.arrives_s < shape.span_s
        ]
        if len(requests) >= shape.requests:
            break
    return in_order(requests[: shape.requests])


def _conversation(
    shape: Conversations, owners: Accounts, identity: int, random: Random
) -> _Conversation:
    account = owners.of(identity)
    system = random.randrange(shape.prompts_per_account)
    least, most = shape.system_tokens
    return _Conversation(
        account=account,
        system=system,
        # The same for all that share it.
        system_tokens=least + mixed(account, system) % (most - least + 1),
        identity=identity,
    )


def _turns(shape: Conversations, conversation: _Conversation, random: Random) -> list[Request]:
    now = random.uniform(-shape.before_s, shape.span_s)
    prompt = conversation.system_tokens + _length(shape.first_tokens, random)
    turns: list[Request] = []
    while prompt < shape.window_tokens:
        output = min(_length(shape.output_tokens, random), shape.most_output_tokens)
        turns.append(
            Request(
                number=0,
                account=conversation.account,
                arrives_s=now,
                prompt_tokens=prompt,
                output_tokens=output,
                blocks=conversation.blocks(prompt),
            )
        )
        if random.random() >= shape.more_turns:
            break
        now += output * shape.token_s + random.expovariate(1 / shape.think_s)
        prompt += output + _length(shape.next_tokens, random)
    return turns


def _length(median_and_sigma: tuple[float, float], random: Random) -> int:
    median, sigma = median_and_sigma
    return 1 + int(random.lognormvariate(math.log(median), sigma))
