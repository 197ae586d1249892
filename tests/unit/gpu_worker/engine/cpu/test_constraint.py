"""Grammars are compiled for a vocabulary and followed token by token."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from gpu_worker.dialect.tokenizer import JsonTokenizer
from gpu_worker.engine.cpu import constraint
from gpu_worker.engine.cpu.constraint import CACHED_GRAMMARS, GrammarCompiler
from gpu_worker.engine.grammar import Free, GrammarError, Json, Literal, Repeat, Sequence

TOKENIZER = Path(__file__).parents[4] / "models/tiny/tokenizer.json"
VOCABULARY, EOS = 1056, 2  # wider than the tokenizer, as padded models are
LIMIT_S = 60


@pytest.fixture(scope="module")
def tokenizer():
    """The tiny model's."""
    return JsonTokenizer.from_file(TOKENIZER)


@pytest.fixture
async def compiler():
    """For the tiny model's vocabulary."""
    made = GrammarCompiler(TOKENIZER, vocabulary=VOCABULARY, eos_ids=(0, EOS))
    async with asyncio.timeout(LIMIT_S):
        yield made
    made.close()


def follow(start, tokens):
    """Advance over tokens, each of which must be allowed, and return where that leads."""
    state = start.copy()
    for token in tokens:
        assert token in state.allowed()
        state.advance(token)
    return state


async def test_end_is_allowed_where_the_grammar_may_end(compiler, tokenizer):
    """Every end of turn is allowed exactly when the text is complete."""
    start = await compiler.compile(Repeat(Literal("12"), 1, 2))
    ends = []
    for text in ("", "1", "12", "121"):
        allowed = follow(start, tokenizer.encode(text, special=False)).allowed()
        ends.append({0, EOS} & set(allowed.tolist()))
    assert ends == [set(), set(), {0, EOS}, set()]
    assert follow(start, tokenizer.encode("1212", special=False)).is_complete
    assert not follow(start, tokenizer.encode("12", special=False)).is_complete


async def test_ids_without_text_are_never_allowed(compiler):
    """Ids beyond the tokenizer's and special tokens are no free text."""
    allowed = (await compiler.compile(Free("x"))).allowed()
    assert allowed.max() < 1024
    assert not {0, 1, EOS} & set(allowed.tolist())


@pytest.mark.parametrize(
    "text",
    ['{"a":1,"b":[1,2]}', '{"a": 1, "b": [1, 2]}', '{\n  "a": 1,\n  "b": [\n    1,\n    2\n  ]\n}'],
)
async def test_whitespace_that_models_write(compiler, tokenizer, text: str):
    """JSON may be compact, spaced or indented."""
    schema = {
        "properties": {"a": {"type": "integer"}, "b": {"items": {"type": "integer"}}},
        "type": "object",
        "required": ["a", "b"],
    }
    start = await compiler.compile(Json(json.dumps(schema)))
    assert follow(start, tokenizer.encode(text, special=False)).is_complete


@pytest.mark.parametrize(
    "text", ["{ ", "{\n\n", " {", "{}\n", "{\n" + " " * 33, '{"a":  ', '{"a" ']
)
async def test_whitespace_is_bounded(compiler, tokenizer, text: str):
    """A model cannot go on with whitespace."""
    start = await compiler.compile(Json('{"type": "object"}'))
    with pytest.raises(AssertionError):
        follow(start, tokenizer.encode(text, special=False))


async def test_generations_do_not_share_their_place(compiler, tokenizer):
    """Each copy of a compiled grammar stands at the beginning."""
    start = await compiler.compile(Literal("abc"))
    follow(start, tokenizer.encode("abc", special=False))
    assert start.allowed().tolist() == start.copy().allowed().tolist()


async def test_equal_grammars_are_compiled_once(compiler):
    """The last grammars are kept, the least recently used is forgotten."""
    first = await compiler.compile(Sequence((Literal("a"), Free("b"))))
    assert await compiler.compile(Sequence((Literal("a"), Free("b")))) is first
    for number in range(CACHED_GRAMMARS):
        await compiler.compile(Literal(str(number)))
    assert await compiler.compile(Sequence((Literal("a"), Free("b")))) is not first


async def test_compilation_has_a_time_limit(compiler, monkeypatch):
    """A grammar that is not compiled in time is refused."""
    monkeypatch.setattr(constraint, "COMPILE_TIMEOUT_S", 0)
    with pytest.raises(GrammarError, match="simpler"):
        await compiler.compile(Literal("a"))


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        ('{"not": {}}', '"not"'),
        ('{"if": {"type": "string"}, "uniqueItems": true}', '"if"|"uniqueItems"'),
        ('{"type": "string", "pattern": "(?=a)b"}', "look-around"),
        ('{"type": "string", "pattern": "["}', "unclosed"),
        ('{"type": "string", "format": "nope"}', "nope"),
        ('{"type": "strin"}', "strin"),
        ('{"oneOf": [{"type": "string"}, {"const": "a"}]}', "oneOf"),
        ('{"$ref": "http://example.org/x"}', "example.org"),
        ('{"$ref": "#/nope"}', "nope"),
        ('{"$ref": "#"}', "no text"),
        ('{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}', "no text"),
        ('{"enum": []}', "empty"),
        ('{"minimum": 5, "maximum": 3, "type": "integer"}', "minimum"),
        ('{"x-guidance": {"lenient": true}, "uniqueItems": true}', "uniqueItems"),
        ('{"type": "string", "pattern": "%s"}' % ("(" * 1000 + "a" + ")" * 1000), "regex"),
        ("false", "false"),
        ("1", "object or boolean"),
    ],
)  # fmt: skip
async def test_refused_with_a_reason(compiler, schema: str, match: str):
    """What cannot be enforced is named, and never ignored."""
    with pytest.raises(GrammarError, match=match):
        await compiler.compile(Json(schema))


def chain(links: int, nesting: int) -> str:
    """Definitions that refer to one another in a row."""
    opened, closed = '{"items":' * nesting, "}" * nesting
    defs = [f'"{at}":{opened}{{"$ref":"#/$defs/{at + 1}"}}{closed}' for at in range(links)]
    return f'{{"$defs":{{{",".join(defs)},"{links}":{{}}}},"$ref":"#/$defs/0"}}'


def pattern(regex: str) -> str:
    """A text of that form."""
    return json.dumps({"type": "string", "pattern": regex})


HOSTILE = {
    "chain of references": chain(3000, 0),
    "deep chain of references": chain(140, 90),
    "doubling references": json.dumps(
        {
            "$defs": {
                f"{at}": {"allOf": [{"$ref": f"#/$defs/{at + 1}"}] * 2} if at < 60 else {}
                for at in range(61)
            },
            "$ref": "#/$defs/0",
        }
    ),
    "product of alternatives": json.dumps(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"{i}{j}": {"type": "string"}}} for j in range(9)]}
                for i in range(9)
            ]
        }
    ),
    "large enum": json.dumps({"enum": [f"value {at}" for at in range(5000)]}),
    "many properties": json.dumps({"properties": {f"p{at}": {} for at in range(2000)}}),
    "many items": '{"type": "array", "minItems": 1000000000}',
    "long text": '{"type": "string", "minLength": 1000000, "maxLength": 10000000}',
    "nested repetition": pattern("((a{1,50}){1,50}){1,50}"),
    "catastrophic backtracking": pattern("^(a+)+$"),
    "large automaton": pattern("(.*[a-m].{20}){4}"),
    "many groups": pattern("^(a?){200}a{200}$"),
    "deep alternatives": '{"anyOf":[' * 60 + "{}" + ',{"type":"null"}]}' * 60,
    "long range": json.dumps({"type": "integer", "minimum": 0, "maximum": int("9" * 300)}),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_schemas_end_in_time(compiler, name: str):
    """Whatever a schema does, it compiles or is refused, and can be followed or is given up."""
    with contextlib.suppress(GrammarError):
        state = (await compiler.compile(Json(HOSTILE[name]))).copy()
        for _ in range(100):
            if state.is_complete:
                break
            state.advance(int(state.allowed()[-1]))
