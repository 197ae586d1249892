"""Tools, thoughts, forced JSON, logprobs and raw prompts through the whole worker."""

import json
import math

import jsonschema
import pytest

from fastrun.v1.error_pb2 import ErrorReason
from fastrun.v1.generation_pb2 import (
    ChatMessage,
    FinishReason,
    GenerateRequest,
    ReasoningEffort,
    ResponseFormat,
    Role,
    Sampling,
    Tool,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
)
from fastrun.v1.worker_pb2 import GetInfoRequest

STOP = FinishReason.FINISH_REASON_STOP
LENGTH = FinishReason.FINISH_REASON_LENGTH
TOOL_CALLS = FinishReason.FINISH_REASON_TOOL_CALLS
LOW = ReasoningEffort.REASONING_EFFORT_LOW
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ALARM = {
    "type": "object",
    "properties": {
        "hour": {"type": "integer"},
        "label": {"type": "string"},
        "repeat": {"type": "boolean"},
    },
    "required": ["hour", "label", "repeat"],
}
WEATHER = Tool(
    name="get_weather",
    description="Get the weather in a city",
    parameters_json_schema=json.dumps(CITY),
)
SET_ALARM = Tool(
    name="set_alarm", description="Set an alarm", parameters_json_schema=json.dumps(ALARM)
)
REQUIRED = ToolChoice(mode=ToolChoiceMode.TOOL_CHOICE_MODE_REQUIRED)
WEATHER_NAMED = ToolChoice(mode=ToolChoiceMode.TOOL_CHOICE_MODE_NAMED, name="get_weather")


class Answer:
    """The events of one request, joined."""

    def __init__(self, events):
        self.kinds = [kind for kind, _ in events]
        self.content = self.reasoning = ""
        self.calls, self.ids, self.logprobs = [], [], []
        for kind, event in events:
            if kind == "delta":
                self._add(event)
        kind, self.last = events[-1]
        if kind == "finished":
            self.reason, self.usage = self.last.reason, self.last.usage

    def _add(self, delta):
        self.content += delta.content
        self.reasoning += delta.reasoning
        self.ids += delta.token_ids
        self.logprobs += delta.logprobs
        assert len({call.index for call in delta.tool_calls}) == len(delta.tool_calls)
        for call in delta.tool_calls:
            if call.name:
                assert call.index == len(self.calls)
                self.calls.append([call.name, "", call.id])
            else:
                assert not call.id
            self.calls[call.index][1] += call.arguments

    def arguments(self):
        """Return name and parsed arguments of each call."""
        return [(name, json.loads(text)) for name, text, _ in self.calls]


async def answered(stack, text, **fields):
    """Ask the tiny model and return its answer."""
    fields.setdefault("max_tokens", 200)
    edge = stack.edge()
    return Answer(await edge.end(edge.start(stack.ask(text, model="tiny", **fields))))


async def test_a_tool_is_called_unasked(tiny):
    """With tool_choice auto the model calls; no marker leaks, and all tokens are counted."""
    answer = await answered(tiny, "What is the weather in Bovaki?", tools=[WEATHER, SET_ALARM])
    assert answer.arguments() == [("get_weather", {"city": "Bovaki"})]
    assert (answer.content, answer.reasoning, answer.reason) == ("", "", TOOL_CALLS)
    assert len(answer.ids) == answer.usage.completion_tokens
    assert answer.usage.reasoning_tokens == 0


async def test_several_calls_have_indices_and_ids(tiny):
    """Two calls in one answer; one where only one may be made; the same ids when asked again."""
    question = "What is the weather in Bovaki and in Rome?"
    both = await answered(tiny, question, tools=[WEATHER])
    cities = [arguments["city"] for _, arguments in both.arguments()]
    assert cities == ["Bovaki", "Rome"]
    ids = [call_id for _, _, call_id in both.calls]
    assert len(set(ids)) == 2
    one = await answered(tiny, question, tools=[WEATHER], parallel_tool_calls=False)
    assert one.arguments() == both.arguments()[:1]
    assert one.reason == TOOL_CALLS
    assert one.calls[0][2] == ids[0]
    assert len(one.ids) == one.usage.completion_tokens < both.usage.completion_tokens


async def test_a_thought_is_told_apart(tiny):
    """Thinking on: reasoning, then content or a call, and its tokens counted; off: none."""
    on = await answered(tiny, "What is 7 + 12?", reasoning_effort=LOW)
    assert on.reasoning == "I need to add 7 and 12. 7 + 12 = 19."
    assert on.content == "The answer is 19."
    assert 0 < on.usage.reasoning_tokens < on.usage.completion_tokens
    off = await answered(tiny, "What is 7 + 12?")
    assert (off.reasoning, off.usage.reasoning_tokens) == ("", 0)
    assert off.content.startswith("The answer is ")
    called = await answered(
        tiny, "What is the weather in Rome?", tools=[WEATHER], reasoning_effort=LOW
    )
    assert called.reasoning == "I should call get_weather."
    assert called.arguments() == [("get_weather", {"city": "Rome"})]
    cut = await answered(tiny, "What is 7 + 12?", reasoning_effort=LOW, max_tokens=12)
    assert (cut.content, cut.reason, cut.usage.reasoning_tokens) == ("", LENGTH, 12)
    assert on.reasoning.startswith(cut.reasoning)


async def test_a_tools_result_is_answered(tiny):
    """A call and its result in the history lead to an answer in words."""
    request = tiny.ask("What is the weather in Tokyo?", model="tiny", tools=[WEATHER])
    call = ToolCall(id="call_1", name="get_weather", arguments='{"city": "Tokyo"}')
    request.messages.append(ChatMessage(role=Role.ROLE_ASSISTANT, tool_calls=[call]))
    request.messages.append(
        ChatMessage(role=Role.ROLE_TOOL, tool_call_id="call_1", content='{"result": 21}')
    )
    edge = tiny.edge()
    answer = Answer(await edge.end(edge.start(request)))
    assert (answer.content, answer.calls, answer.reason) == ("The result is 21.", [], STOP)


@pytest.mark.parametrize("effort", [ReasoningEffort.REASONING_EFFORT_NONE, LOW])
async def test_calls_can_be_forced(tiny, effort):
    """Required and named call a tool whatever was said, with valid arguments."""
    for choice in (REQUIRED, WEATHER_NAMED):
        answer = await answered(
            tiny,
            "Hello there.",
            tools=[WEATHER, SET_ALARM],
            tool_choice=choice,
            reasoning_effort=effort,
        )
        assert answer.reason == TOOL_CALLS
        assert answer.content == ""
        assert bool(answer.reasoning) == (effort == LOW)
        for name, arguments in answer.arguments():
            jsonschema.validate(arguments, CITY if name == "get_weather" else ALARM)
        if choice is WEATHER_NAMED:
            assert [name for name, _ in answer.arguments()] == ["get_weather"]


async def test_a_forced_call_that_is_cut_is_no_content(tiny):
    """With too few tokens the answer ends with length, and shows no marker."""
    for max_tokens in (1, 2, 5, 9):
        answer = await answered(
            tiny, "Hello", tools=[WEATHER], tool_choice=REQUIRED, max_tokens=max_tokens
        )
        assert (answer.content, answer.reason) == ("", LENGTH)


@pytest.mark.parametrize("effort", [ReasoningEffort.REASONING_EFFORT_NONE, LOW])
async def test_content_can_be_held_to_a_schema(tiny, effort):
    """The content is JSON of the schema; a thought before it is free."""
    schema = {"type": "object", "properties": {"answer": {"type": "integer", "maximum": 99}}}
    schema |= {"required": ["answer"], "additionalProperties": False}
    answer = await answered(
        tiny,
        "What is 7 + 12?",
        response_format=ResponseFormat(json_schema=json.dumps(schema)),
        reasoning_effort=effort,
    )
    assert answer.reason == STOP
    assert bool(answer.reasoning) == (effort == LOW)
    jsonschema.validate(json.loads(answer.content), schema)


async def test_a_schema_that_cannot_be_enforced_is_refused(tiny):
    """The keyword is named, nothing was accepted, and the lease comes back unused."""
    wanted = ResponseFormat(json_schema='{"not": {"type": "string"}}')
    answer = await answered(tiny, "Hello", response_format=wanted)
    assert answer.kinds == ["failed"]
    assert answer.last.error.reason == ErrorReason.ERROR_REASON_INVALID_REQUEST
    assert '"not"' in answer.last.error.message
    await tiny.scheduler.until(lambda s: s.freed)
    assert not tiny.scheduler.freed[0].HasField("usage")


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "Say hello in Japanese."},
        {"text": "Count from 17 to 40.", "stop": ["20"]},
        {"text": "What is 7 + 12?", "reasoning_effort": LOW},
        {"text": "What is the weather in Rome?", "tools": [WEATHER]},
        {"text": "Hello", "tools": [WEATHER], "tool_choice": WEATHER_NAMED},
    ],
)
async def test_every_token_has_its_logprobs(tiny, fields):
    """One entry for each token that is counted: finite, likeliest first, their bytes the text."""
    answer = await answered(tiny, top_logprobs=3, **fields)
    assert len(answer.logprobs) == len(answer.ids) == answer.usage.completion_tokens
    text = b"".join(entry.token for entry in answer.logprobs).decode()
    assert answer.content in text
    assert answer.reasoning in text
    for entry in answer.logprobs:
        values = [entry.logprob, *(top.logprob for top in entry.top)]
        assert all(map(math.isfinite, values))
        assert len(entry.top) == 3
        assert values[1:] == sorted(values[1:], reverse=True)
    plain = await answered(tiny, **fields)
    assert plain.logprobs == []
    assert (plain.content, plain.reasoning, plain.ids) == (
        answer.content,
        answer.reasoning,
        answer.ids,
    )


async def test_a_raw_prompt_is_continued(tiny):
    """No template: the text goes on; an empty one is refused, as this model has no first token."""
    edge = tiny.edge()
    sampling = Sampling(temperature=0, max_tokens=50)

    async def continued(text):
        request = GenerateRequest(
            model="tiny", lease=tiny.scheduler.lease(), prompt=text, sampling=sampling
        )
        return Answer(await edge.end(edge.start(request)))

    assert (await continued("The three primary colors are")).content == " red, yellow and blue."
    empty = await continued("")
    assert "prompt is empty" in empty.last.error.message


async def test_the_card_tells_what_a_model_can_do(tiny):
    """Edges learn from it what a request may ask."""
    card = (await tiny.stub.GetInfo(GetInfoRequest())).model
    assert set(card.features) == {"tools", "reasoning", "structured_output", "logprobs"}


async def test_generate_tells_the_same_events(tiny):
    """What tools see of one request is what an edge sees of it."""
    call = tiny.stub.Generate(
        tiny.ask("What is the weather in Rome?", model="tiny", tools=[WEATHER], top_logprobs=0)
    )
    events = [event async for event in call]
    kinds = [event.WhichOneof("event") for event in events]
    answer = Answer(
        [(kind, getattr(event, kind)) for kind, event in zip(kinds, events, strict=True)]
    )
    assert answer.arguments() == [("get_weather", {"city": "Rome"})]
    assert len(answer.logprobs) == answer.usage.completion_tokens


async def test_calls_are_read_byte_by_byte(stack):
    """The scripted engine's tokens are single bytes: characters and markers arrive cut anywhere."""
    text = 'Moment 🐱\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "京都"}}\n</tool_call>'
    edge = stack.edge()
    answer = Answer(await edge.end(edge.start(stack.ask(f"[[text={text}]]", tools=[WEATHER]))))
    assert answer.content == "Moment 🐱"
    assert answer.arguments() == [("get_weather", {"city": "京都"})]
    assert answer.usage.completion_tokens == len(text.encode()) + 1
