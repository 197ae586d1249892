"""What clients do while an edge is measured."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence

import msgspec

# Prompts are nine of it, which is the length of a short chat.
SENTENCE = "Summarise the following passage for a busy reader in three sentences. "


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One load: connections that ask again as soon as they are answered."""

    name: str
    streamed: bool = True
    connections: int
    tokens: int
    """Of each answer."""
    tokens_per_s: float = 0.0
    """Of each stream; 0: as fast as they can be made."""
    ramp_s: float = 0.0
    """In which the connections begin, one after the other."""
    warm_s: float = 0.5
    window_s: float = 3.0
    """In which all is measured."""

    def body(self, model: str) -> bytes:
        """Return what each request asks for; see gpu_worker.engine.scripted for the command."""
        return json.dumps(
            {
                "model": model,
                "messages": [
                    {"role": "system", "content": "You are a concise assistant. [[clock=us]]"},
                    {"role": "user", "content": 9 * SENTENCE},
                ],
                "temperature": 0.7,
                "max_tokens": self.tokens,
                **({"stream": True} if self.streamed else {}),
            }
        ).encode()


ALL = (
    Scenario(name="pace64", connections=64, tokens=128, tokens_per_s=50, ramp_s=2.56),
    Scenario(name="pace256", connections=256, tokens=128, tokens_per_s=50, ramp_s=2.56),
    Scenario(name="st1", connections=1, tokens=16),
    Scenario(name="st64", connections=64, tokens=128),
    Scenario(name="st256", connections=256, tokens=128, warm_s=1.0),
    Scenario(name="ns1", streamed=False, connections=1, tokens=128),
    Scenario(name="ns64", streamed=False, connections=64, tokens=128),
    Scenario(
        name="open1000",
        connections=1000,
        tokens=4096,
        tokens_per_s=20,
        ramp_s=10.0,
        window_s=60.0,
    ),
)
"""Paced streams are what an engine does to an edge; the others show its limits.

* ``pace64``, ``pace256``: streams of 128 tokens, 50 tokens a second each;
* ``st64``, ``st256``: the same as fast as they can be made; ``st1``: streams of 16 tokens alone;
* ``ns1``, ``ns64``: answers of 128 tokens that are not streamed;
* ``open1000``: 1,000 streams that stay open for a minute.
"""

NAMES = tuple(each.name for each in ALL)


def chosen(names: Sequence[str], *, seconds: float | None) -> Iterator[Scenario]:
    """Return scenarios by name, in their own order; all of them without names.

    Args:
        names: of NAMES.
        seconds: what each is measured for, instead of its own window.
    """
    for each in ALL:
        if not names or each.name in names:
            yield each if seconds is None else msgspec.structs.replace(each, window_s=seconds)


def by_pace(scenarios: Iterable[Scenario]) -> Iterator[tuple[float, list[Scenario]]]:
    """Put those together that one stack can serve, since an engine has one pace."""
    ordered = sorted(scenarios, key=lambda each: each.tokens_per_s, reverse=True)
    for pace, group in itertools.groupby(ordered, key=lambda each: each.tokens_per_s):
        yield pace, list(group)
