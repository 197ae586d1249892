"""Generations of a real model keep to their grammar, whatever its weights would rather say."""

import asyncio
import json

import jsonschema
import pytest
from engine_outputs import outputs_of

from gpu_worker.dialect.tokenizer import JsonTokenizer
from gpu_worker.engine.cpu.loading import load_cpu_engine
from gpu_worker.engine.grammar import Choice, Free, GrammarError, Json, Literal, Repeat, Sequence
from gpu_worker.engine.protocol import Finish, SamplingParams

LIMIT_S = 60
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 10}},
    "required": ["city"],
    "additionalProperties": False,
}
CALL = Sequence(
    (
        Literal('<tool_call>\n{"name": "get_weather", "arguments": '),
        Json(json.dumps(WEATHER)),
        Literal("}\n</tool_call>"),
    )
)


class Subject:
    """The tiny model in its engine, told to keep to grammars."""

    def __init__(self, engine, model):
        self.engine = engine
        self.tokenizer = JsonTokenizer.from_file(model.tokenizer)
        self.eos_ids = model.eos_ids

    def generate(self, grammar, text="Count from 17 to 40.", max_tokens=400, resumed=(), **fields):
        chat = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=self.eos_ids, **fields)
        prompt = self.tokenizer.encode(chat, special=True)
        return outputs_of(
            self.engine,
            [*prompt, *resumed],
            sampling,
            cache_salt="",
            grammar=grammar,
            resumed=len(resumed),
        )

    async def outputs(self, grammar, **fields):
        return [output async for output in self.generate(grammar, **fields)]

    async def answer(self, grammar, **fields):
        """Return the text without the end of the turn, and how it ended."""
        outputs = await self.outputs(grammar, **fields)
        tokens = [token for output in outputs for token in output.token_ids]
        text = b"".join(self.tokenizer.token_bytes(token) for token in tokens)
        return text.decode(errors="replace"), outputs[-1].finish


@pytest.fixture
async def subject(tiny):
    """An engine with four slots."""
    engine = await asyncio.to_thread(load_cpu_engine, tiny, slots=4)
    async with asyncio.timeout(LIMIT_S):
        yield Subject(engine, tiny)
        await engine.close()


@pytest.mark.parametrize("temperature", [0, 1, 2])
async def test_json_schema(subject, temperature):
    """What is generated is valid, at any temperature."""
    answers = await asyncio.gather(
        *(
            subject.answer(Json(json.dumps(PERSON)), temperature=temperature, seed=seed)
            for seed in range(10)
        )
    )
    for text, finish in answers:
        jsonschema.validate(json.loads(text), PERSON)
        assert finish is Finish.STOP


async def test_json_object(subject):
    """Any object is allowed and nothing else; one that is cut has begun as an object."""
    answers = await asyncio.gather(
        *(subject.answer(Json('{"type": "object"}'), seed=seed) for seed in range(12))
    )
    finished = [text for text, finish in answers if finish is Finish.STOP]
    assert finished
    assert all(isinstance(json.loads(text), dict) for text in finished)
    assert all(text.startswith("{") for text, _ in answers)


async def test_literal_ends_without_a_further_token(subject):
    """Where nothing may follow, the last token of the text is the last token."""
    outputs = await subject.outputs(Literal('héllo 🐱 "\\\n\x01'), temperature=0)
    tokens = [token for output in outputs for token in output.token_ids]
    text = b"".join(map(subject.tokenizer.token_bytes, tokens)).decode()
    assert text == 'héllo 🐱 "\\\n\x01'
    assert not set(tokens) & set(subject.eos_ids)
    assert outputs[-1].finish is Finish.STOP


async def test_tool_call(subject):
    """A call is forced into a family's own format."""
    text, finish = await subject.answer(CALL)
    call = json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    jsonschema.validate(call["arguments"], WEATHER)
    assert (call["name"], finish) == ("get_weather", Finish.STOP)


async def test_several_calls(subject):
    """As many calls as the grammar demands at least, and no more than it allows."""
    calls = Sequence((CALL, Repeat(Sequence((Literal("\n"), CALL)), 1, 2)))
    counts = set()
    for seed in range(8):
        text, finish = await subject.answer(calls, seed=seed)
        assert finish is Finish.STOP
        assert text.count("<tool_call>") == text.count("</tool_call>")
        counts.add(text.count("<tool_call>"))
    assert counts <= {2, 3}


async def test_reasoning_comes_first(subject):
    """Free text goes on to its first end, and what follows is constrained."""
    grammar = Sequence((Free("</think>"), Literal("\n\n"), Json(json.dumps(WEATHER))))
    text, finish = await subject.answer(grammar, text="What is 7 + 12?", temperature=0)
    if finish is Finish.LENGTH:
        pytest.fail(f"the tiny model did not stop thinking: {text!r}")
    _, answer = text.split("</think>")
    jsonschema.validate(json.loads(answer), WEATHER)


async def test_choice(subject):
    """One of the options is said."""
    options = Choice((Literal("yes"), Literal("no"), Json('{"type": "integer", "maximum": 9}')))
    for seed in range(6):
        text, finish = await subject.answer(options, seed=seed, temperature=2)
        assert finish is Finish.STOP
        assert text in {"yes", "no"} or int(text) <= 9


async def test_special_tokens_match_by_their_id(subject):
    """A special token in a literal is that token, and free text ends at the first one."""
    grammar = Sequence((Literal("a<|im_start|>b"), Free("<|im_start|>"), Literal("c")))
    outputs = await subject.outputs(grammar, temperature=2, max_tokens=2000)
    tokens = [token for output in outputs for token in output.token_ids]
    start = subject.tokenizer.special_tokens["<|im_start|>"]
    if outputs[-1].finish is Finish.STOP:
        assert tokens.count(start) == 2
    assert tokens[1] == start


async def test_mixed_batch_equals_alone(subject):
    """Constrained and free generations beside each other change nothing about one another."""
    cases = [
        (grammar, {"seed": at, "temperature": (at % 3) / 2, "logprobs": at % 2 or None})
        for at, grammar in enumerate([None, Json(json.dumps(PERSON)), CALL, Literal("hi")] * 2)
    ]
    fields = {"max_tokens": 40, "frequency_penalty": 0.5}
    alone = [await subject.answer(grammar, **case, **fields) for grammar, case in cases]
    together = await asyncio.gather(
        *(subject.answer(grammar, **case, **fields) for grammar, case in cases)
    )
    assert alone == together


async def test_logprobs_are_of_the_model(subject):
    """What is reported is what the model gave the token, however unlikely, and finite."""
    outputs = await subject.outputs(Literal("zzz"), logprobs=2)
    entries = [entry for output in outputs for entry in output.logprobs]
    assert all(-9999 <= entry.chosen <= 0 for entry in entries)
    assert any(entry.chosen < entry.top[-1][1] for entry in entries)


async def test_preempted_generations_keep_their_place(tiny):
    """A generation that is preempted and computed again stands where it stood in its grammar."""
    engine = await asyncio.to_thread(load_cpu_engine, tiny, slots=4, kv_cache_bytes=1 << 19)
    subject = Subject(engine, tiny)
    grammar = Json(json.dumps({"type": "array", "items": PERSON, "minItems": 4, "maxItems": 4}))
    async with asyncio.timeout(LIMIT_S):
        answers = await asyncio.gather(
            *(subject.answer(grammar, seed=seed, max_tokens=1000) for seed in range(4))
        )
        preemptions = engine.stats().preemptions
        await engine.close()
    assert preemptions > 0
    for text, finish in answers:
        if finish is Finish.STOP:
            assert len(json.loads(text)) == 4


async def test_resumed_generation_keeps_its_place(subject):
    """What was generated elsewhere is followed in the grammar before it goes on."""
    outputs = await subject.outputs(CALL, seed=3)
    tokens = [token for output in outputs for token in output.token_ids]
    for done in (1, len(tokens) // 2, len(tokens) - 1):
        rest = await subject.outputs(CALL, seed=3, resumed=tokens[:done])
        assert [token for output in rest for token in output.token_ids] == tokens[done:]
        assert rest[-1].finish is Finish.STOP


async def test_abort_in_the_middle(subject):
    """A constrained generation that is closed holds nothing, and the grammar serves the next."""
    grammar = Json('{"type": "array", "items": {"type": "integer"}, "minItems": 1000}')
    stream = subject.generate(grammar, max_tokens=3000)
    await anext(stream)
    await stream.aclose()
    stats = subject.engine.stats()
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)
    text, finish = await subject.answer(grammar, max_tokens=20)
    assert text.startswith("[")
    assert finish is Finish.LENGTH


async def test_refused_before_anything_is_scheduled(subject):
    """A grammar that cannot be compiled is an error that says why, and counts no token."""
    grammar = Json('{"type": "array", "uniqueItems": true}')
    with pytest.raises(GrammarError, match="uniqueItems"):
        await subject.engine.compile(grammar)
    with pytest.raises(GrammarError, match="uniqueItems"):
        await subject.outputs(grammar)
    assert subject.engine.stats().prompt_tokens == 0


async def test_grammar_that_becomes_too_costly(subject):
    """A grammar whose automaton grows too large fails its own generation and no other."""
    costly = Json(json.dumps({"type": "string", "pattern": "(.*[a-m].{20}){4}"}))
    beside = asyncio.create_task(subject.answer(Json(json.dumps(PERSON))))
    with pytest.raises(GrammarError, match="too many"):
        await subject.answer(costly, max_tokens=500)
    text, finish = await beside
    jsonschema.validate(json.loads(text), PERSON)
    assert finish is Finish.STOP
    assert subject.engine.stats().running == 0


async def test_grammar_that_never_finishes_compiling(subject):
    """It is refused, every time, and generations go on beside it and after it."""
    patterns = [{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(1, 24)]
    endless = Json(json.dumps({"allOf": patterns}))
    beside = asyncio.create_task(subject.answer(Json(json.dumps(PERSON))))
    for _ in range(2):
        with pytest.raises(GrammarError, match="make it simpler"):
            await subject.engine.compile(endless)
        with pytest.raises(GrammarError, match="make it simpler"):
            await subject.outputs(endless)
    for text, finish in (await beside, await subject.answer(Json(json.dumps(PERSON)), seed=1)):
        jsonschema.validate(json.loads(text), PERSON)
        assert finish is Finish.STOP
