"""Grammars are compiled for a vocabulary and followed token by token."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from gpu_worker.dialect.tokenizer import JsonTokenizer
from gpu_worker.engine.cpu.constraint import Constraint
from gpu_worker.engine.cpu.grammar_compiler import GrammarCompiler
from gpu_worker.engine.grammar import Free, GrammarError, Json, Literal, Repeat, Sequence
from gpu_worker.engine.guidance.lark import lark
from gpu_worker.engine.guidance.vocabulary import Vocabulary

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


def follow(state, tokens):
    """Advance over tokens, each of which must be allowed, and return where that leads."""
    for token in tokens:
        assert token in state.allowed()
        state.advance(token)
    return state


async def test_end_is_allowed_where_the_grammar_may_end(compiler, tokenizer):
    """Every end of turn is allowed exactly when the text is complete."""
    ends, complete = [], []
    for text in ("", "1", "12", "121", "1212"):
        start = await compiler.begin(Repeat(Literal("12"), 1, 2))
        state = follow(start, tokenizer.encode(text, special=False))
        ends.append({0, EOS} & set(state.allowed().tolist()))
        complete.append(state.is_complete)
    assert ends == [set(), set(), {0, EOS}, set(), {0, EOS}]
    assert complete == [False, False, False, False, True]


async def test_ids_without_text_are_never_allowed(compiler):
    """Ids beyond the tokenizer's and special tokens are no free text."""
    allowed = (await compiler.begin(Free("x"))).allowed()
    assert allowed.max() < 1024
    assert not {0, 1, EOS} & set(allowed.tolist())


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("ab</b>.", True),
        ("é🐱é🐱</b>.", True),
        ("a</i</b>.", True),
        ("a</b>.", False),
        ("abcde</b>.", False),
        ("a<i>b</b>.", False),
        ("ab</b>x</b>.", False),
        (" [a</b>.", False),
        ("a[</b>.", True),
    ],
)
async def test_free_text_is_bounded(compiler, tokenizer, text: str, fits: bool):
    """Its characters are counted, what it must not contain is not allowed, and its end ends it."""
    free = Free("</b>", without=("<i>", "</i>"), not_first="[{", least=2, most=4)
    state = await compiler.begin(Sequence((free, Literal("."))))
    allowed = True
    for token in tokenizer.encode(text, special=False):
        allowed = token in state.allowed()
        if not allowed:
            break
        state.advance(token)
    assert (allowed and state.is_complete) is fits


def wander(state, steps: int) -> int:
    """Advance over some tokens until the grammar is given up; return how many it were."""
    for at in range(steps):
        try:
            allowed = state.allowed()
        except GrammarError:
            return at
        state.advance(int(allowed[at * 7919 % len(allowed)]))
    return steps


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
    start = await compiler.begin(Json(json.dumps(schema)))
    assert follow(start, tokenizer.encode(text, special=False)).is_complete


@pytest.mark.parametrize(
    "text", ["{ ", "{\n\n", " {", "{}\n", "{\n" + " " * 33, '{"a":  ', '{"a" ']
)
async def test_whitespace_is_bounded(compiler, tokenizer, text: str):
    """A model cannot go on with whitespace."""
    start = await compiler.begin(Json('{"type": "object"}'))
    with pytest.raises(AssertionError):
        follow(start, tokenizer.encode(text, special=False))


async def test_generations_do_not_share_their_place(compiler, tokenizer):
    """Each stands at the beginning, wherever the others are."""
    first, second = [await compiler.begin(Literal("abc")) for _ in range(2)]
    follow(first, tokenizer.encode("abc", special=False))
    third = await compiler.begin(Literal("abc"))
    assert second.allowed().tolist() == third.allowed().tolist() != first.allowed().tolist()


async def test_generations_do_not_share_their_limits(compiler):
    """One that has followed a grammar too far takes nothing from the next."""
    costly = Json(pattern("(.*[a-m].{20}){4}"))
    followed = [wander(await compiler.begin(costly), 500) for _ in range(2)]
    assert 0 < followed[0] == followed[1] < 500


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        ('{"not": {"type": "null"}}', '"not"'),
        ('{"if": {"type": "string"}, "uniqueItems": true}', '"if"|"uniqueItems"'),
        ('{"type": "string", "pattern": "(?=a)b"}', "looks around"),
        ('{"type": "string", "pattern": "["}', "not closed"),
        ('{"type": "string", "format": "nope"}', "nope"),
        ('{"type": "strin"}', "strin"),
        ('{"oneOf": [{"type": "string"}, {"const": "a"}]}', "oneOf"),
        ('{"$ref": "http://example.org/x"}', "example.org"),
        ('{"$ref": "#/nope"}', "nope"),
        ('{"$ref": "#"}', "recursion"),
        ('{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}', "recursion"),
        ('{"enum": []}', '"enum"'),
        ('{"minimum": 5, "maximum": 3, "type": "integer"}', "minimum"),
        ('{"x-guidance": {"lenient": true}, "uniqueItems": true}', "uniqueItems"),
        ('{"type": "string", "pattern": "%s"}' % ("(" * 1000 + "a" + ")" * 1000), "regex"),
        ("false", "no value"),
        ("1", "in place of a schema"),
    ],
)  # fmt: skip
async def test_refused_with_a_reason(compiler, schema: str, match: str):
    """What cannot be enforced is named, and never ignored."""
    with pytest.raises(GrammarError, match=match):
        await compiler.begin(Json(schema))


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
    "intersection of patterns": json.dumps(
        {"allOf": [{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(1, 24)]}
    ),
    "repeated alternatives": pattern("^(.{1,90}[aeiou]){1,600}.*[eao].{60}x$"),
    "overlapping windows": pattern("^.*[aeiou].{60}[aeiou].{40}[stn].*$"),
    "many groups": pattern("^(a?){200}a{200}$"),
    "deep alternatives": '{"anyOf":[' * 60 + "{}" + ',{"type":"null"}]}' * 60,
    "long range": json.dumps({"type": "integer", "minimum": 0, "maximum": int("9" * 300)}),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_schemas_end_in_time(compiler, name: str):
    """Whatever a schema does, it compiles or is refused, and can be followed or is given up."""
    with contextlib.suppress(GrammarError):
        state = await compiler.begin(Json(HOSTILE[name]))
        for _ in range(100):
            if state.is_complete:
                break
            state.advance(int(state.allowed()[-1]))


LONG = "The cat (Größe 2) said 猫🐱 twice. " * 400  # five times what one automaton holds
LONG_TEXT = Json(json.dumps({"type": "string", "maxLength": len(LONG)}))


async def test_long_text_under_a_bound(compiler, tokenizer):
    """A bound is kept to the character, however long the text is that it bounds."""
    state = await compiler.begin(LONG_TEXT)
    tokens = tokenizer.encode(json.dumps(LONG, ensure_ascii=False)[:-1], special=False)
    follow(state, tokens)
    (end,) = tokenizer.encode('"', special=False)
    assert state.allowed().tolist() == [end]
    state.advance(end)
    assert state.is_complete


async def test_long_text_that_was_generated_elsewhere(compiler, tokenizer):
    """What is only advanced over may be as long."""
    state = await compiler.begin(LONG_TEXT)
    for token in tokenizer.encode(json.dumps(LONG, ensure_ascii=False)[:-3], special=False):
        state.advance(token)
    assert 1 < len(state.allowed()) < VOCABULARY // 2


def test_automaton_that_cannot_be_renewed(tokenizer):
    """A grammar that takes long to compile is not compiled again, but given up with a reason."""
    vocabulary = Vocabulary.read(TOKENIZER, size=VOCABULARY, eos_ids=[EOS])
    state = Constraint(vocabulary.matcher(lark(LONG_TEXT, vocabulary.special_tokens)), VOCABULARY)
    tokens = tokenizer.encode(json.dumps(LONG, ensure_ascii=False), special=False)
    with pytest.raises(GrammarError, match="too many states"):
        follow(state, tokens)


# What fits, and what does not.
PATTERNS = {
    "^[[:alpha:]]$": ([":]", "[]"], ["q", "z]"]),
    "^[^a&&b]$": (["c"], ["a", "b", "&"]),
    "^[+--]$": (["+", ",", "-"], [".", "*"]),
    "^.$": (["a", "é", "🐱"], ["\r", "\u2028", "\n", ""]),
    r"^\d\D$": (["1a"], ["1٣", "٣a"]),
    r"^\w\W$": (["a-"], ["é-", "aé"]),
    r"^\s\S$": ([" x", "\tx"], ["\x85x", "\ufeffx", " \ufeff"]),
    r"^[^\s]$": (["a"], ["\u2028", "\x1c"]),
    r"^\p{Lu}\p{Ll}$": (["Éa"], ["éa"]),
    r"^(?<a>x)(?<a>y)$": (["xy"], ["x"]),
    r"^\ud83d\ude00$": (["😀"], ["😁"]),
    "^a$|^b$": (["a", "b"], ["ab", "a|b"]),
    "(^a|b)c": (["ac", "xbc"], ["xac"]),
    "^{x}$": (["{x}"], ["x"]),
    "": (["", "anything"], []),
    "a": (["xax"], ["", "b"]),
}


async def test_patterns_are_those_of_json_schema(compiler, tokenizer):
    """They mean what ECMA-262 says, whose dialect is not the library's."""
    for regex, (fit, misfits) in PATTERNS.items():
        for text in (*fit, *misfits):
            state = await compiler.begin(Json(pattern(regex)))
            tokens = tokenizer.encode(json.dumps(text, ensure_ascii=False), special=False)
            allowed = all(token in state.allowed() and not state.advance(token) for token in tokens)
            assert (allowed and state.is_complete) is (text in fit), (regex, text)
