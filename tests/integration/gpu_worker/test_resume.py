"""A request that another worker had begun goes on here, and nothing is told twice."""

import json

import pytest

from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import (
    FinishReason,
    ReasoningEffort,
    ResponseFormat,
    Sampling,
    Tool,
    ToolChoice,
    ToolChoiceMode,
)

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool(
    name="get_weather",
    description="Get the weather in a city",
    parameters_json_schema=json.dumps(CITY),
)
LOW = ReasoningEffort.REASONING_EFFORT_LOW
ANSWER = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
BOTH = "What is the weather in Bovaki and in Rome?"
CASES = {
    "plain": ("What is 7 + 12?", {}),
    "thought": ("What is 7 + 12?", {"reasoning_effort": LOW, "top_logprobs": 2}),
    "stop": ("What is 7 + 12?", {"reasoning_effort": LOW, "stop": ["er is 1"]}),
    "calls": (BOTH, {"tools": [WEATHER], "reasoning_effort": LOW}),
    "one call": (BOTH, {"tools": [WEATHER], "parallel_tool_calls": False}),
    "forced": (
        "Hello there.",
        {
            "tools": [WEATHER],
            "tool_choice": ToolChoice(mode=ToolChoiceMode.TOOL_CHOICE_MODE_REQUIRED),
            "sampling": Sampling(temperature=1.0, seed=5, max_tokens=200),
        },
    ),
    "schema": (
        "What is 7 + 12?",
        {
            "response_format": ResponseFormat(json_schema=json.dumps(ANSWER)),
            "reasoning_effort": LOW,
        },
    ),
    # Of which the end is held back until it is known that no stop text follows.
    "held": (
        "What is 7 + 12?",
        {
            "response_format": ResponseFormat(json_schema=json.dumps(ANSWER)),
            "reasoning_effort": LOW,
            "stop": ["}!"],
        },
    ),
    "length": ("What is 7 + 12?", {"reasoning_effort": LOW, "max_tokens": 9}),
    "emoji": (
        "Repeat after me: 🐱 é 你好 🐶",
        {"sampling": Sampling(temperature=0.7, frequency_penalty=0.5, max_tokens=60)},
    ),
}


class Told:
    """What deltas have told, in the order of telling."""

    def __init__(self, deltas=()):
        self.content = self.reasoning = ""
        self.calls = {}
        self.ids = []
        self.logprobs = []
        for delta in deltas:
            self.content += delta.content
            self.reasoning += delta.reasoning
            self.ids += delta.token_ids
            self.logprobs += delta.logprobs
            for call in delta.tool_calls:
                known = self.calls.setdefault(call.index, ["", "", ""])
                known[0] += call.id
                known[1] += call.name
                known[2] += call.arguments

    def state(self):
        tokens = [one.token for one in self.logprobs]
        return self.content, self.reasoning, self.calls, self.ids, tokens

    def likelihoods(self):
        # Not to the last bit: a kernel's sums depend on how many tokens it takes at once.
        return pytest.approx([one.logprob for one in self.logprobs], abs=1e-4)


def deltas_of(events):
    """Return the deltas among a request's events."""
    return [event for kind, event in events if kind == "delta"]


@pytest.mark.parametrize("case", CASES)
async def test_told_before_and_after_is_the_whole(tiny, case):
    """Wherever the first worker died: what it told and what the second tells is one answer."""
    text, fields = CASES[case]
    edge = tiny.edge()

    async def events(**more):
        others = {name: value for name, value in fields.items() if name != "sampling"}
        asked = tiny.ask(text, model="tiny", **{"max_tokens": 200, **others, **more})
        asked.sampling.MergeFrom(fields.get("sampling", Sampling()))
        return await edge.end(edge.start(asked))

    whole = await events()
    assert whole[0][1].resumable
    told, finished = deltas_of(whole), whole[-1][1]
    complete = Told(told)
    for count in {1, 2, len(told) // 3, len(told) // 2, len(told) - 1, len(told)} - {0}:
        before = told[:count]
        rest = await events(resume_token_ids=Told(before).ids)
        both = Told([*before, *deltas_of(rest)])
        assert both.state() == complete.state()
        assert [one.logprob for one in both.logprobs] == complete.likelihoods()
        assert rest[-1][1].reason == finished.reason
        assert rest[-1][1].usage.completion_tokens == finished.usage.completion_tokens
        assert rest[-1][1].usage.reasoning_tokens == finished.usage.reasoning_tokens
        assert rest[-1][1].usage.prompt_tokens == finished.usage.prompt_tokens


async def test_nothing_follows_an_answer_that_had_ended(tiny):
    """The worker died between its last token and the word of it: the answer only ends."""
    edge = tiny.edge()
    whole = await edge.end(edge.start(tiny.ask("What is 7 + 12?", model="tiny")))
    asked = tiny.ask("What is 7 + 12?", model="tiny", resume_token_ids=Told(deltas_of(whole)).ids)
    rest = await edge.end(edge.start(asked))
    assert [kind for kind, _ in rest] == ["accepted", "finished"]
    assert rest[-1][1].reason == FinishReason.FINISH_REASON_STOP


async def test_ids_that_are_no_tokens_harm_nobody(tiny):
    """They fail the request that brings them."""
    edge = tiny.edge()
    asked = tiny.ask("Hello", model="tiny", resume_token_ids=[2**31])
    rest = await edge.end(edge.start(asked))
    assert rest[-1][0] == "failed"
    assert rest[-1][1].error.reason == ErrorReason.ERROR_REASON_ENGINE_FAILED
    assert (await edge.end(edge.start(tiny.ask("Hello", model="tiny"))))[-1][0] == "finished"


async def test_an_answer_that_is_complete_at_its_limit(tiny):
    """It ends as it would have: for its grammar, and not for max_tokens."""
    edge = tiny.edge()
    text, fields = CASES["schema"]
    whole = await edge.end(edge.start(tiny.ask(text, model="tiny", max_tokens=200, **fields)))
    ids = Told(deltas_of(whole)).ids
    assert whole[-1][1].reason == FinishReason.FINISH_REASON_STOP
    for resumed in ([], ids[:-1], ids):
        asked = tiny.ask(
            text, model="tiny", max_tokens=len(ids), resume_token_ids=resumed, **fields
        )
        ended = (await edge.end(edge.start(asked)))[-1][1]
        assert ended.reason == FinishReason.FINISH_REASON_STOP
        assert ended.usage.completion_tokens == len(ids)
