"""What it costs to take an answer apart, token by token, for each family of models."""

import statistics
import time
from collections.abc import Sequence

import msgspec

from gpu_worker.dialect.answer import Answer
from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.families import FAMILIES
from gpu_worker.dialect.thinking import Thinking
from gpu_worker.dialect.tools import Tool

TOKENS = 20_000
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
# About four characters each, as vocabularies have them.
TEXT = "the quick brown fox, jumps over - a lazy dog;\n and then: it sleeps (at last)."
WORDS = [TEXT[at : at + 4].encode() for at in range(0, len(TEXT), 4)]
TOOLS = [Tool("get_weather", "Weather", {"type": "object", "properties": {"city": {}}})]
STOPS = ["\n\nHuman:", "<stop>"]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds for each token of plain content, one token at a time."""

    family: str
    plain_us: float
    with_tools_us: float
    with_tools_and_stops_us: float


def measure(*, repeat: int = 5) -> list[Cost]:
    """Return the cost in each family; the median of several runs."""
    costs = []
    for name in FAMILIES:
        runs = [
            [_run(name, tools, stops) for _ in range(repeat)]
            for tools, stops in (([], []), (TOOLS, []), (TOOLS, STOPS))
        ]
        plain, with_tools, with_both = (statistics.median(each) for each in runs)
        costs.append(
            Cost(
                family=name,
                plain_us=plain,
                with_tools_us=with_tools,
                with_tools_and_stops_us=with_both,
            )
        )
    return costs


def _run(family: str, tools: Sequence[Tool], stops: Sequence[str]) -> float:
    profile = FAMILIES[family].profile(ChatTemplate(TEMPLATE))
    parser = profile.parser(thinking=Thinking.MAYBE, tools=tools, most_calls=None, stops=stops)
    answer = Answer(WORDS.__getitem__, parser)
    ids = [number % len(WORDS) for number in range(TOKENS)]
    began = time.process_time()
    for token_id in ids:
        answer.feed((token_id,))
    return (time.process_time() - began) / TOKENS * 1e6
