"""Grammars are written in llguidance's language, or refused with a reason."""

import json

import pytest

from gpu_worker.engine.grammar import Choice, Free, GrammarError, Json, Literal, Repeat, Sequence
from gpu_worker.engine.guidance.lark import JSON_OPTIONS, MAX_SIZE, json_schema, lark, reason

SPECIAL = {"<|end|>": 7, "<tool>": 8}


def rules(grammar):
    """Return the rules in the order of their names, without these."""
    return [line.partition(":")[2].strip() for line in lark(grammar, SPECIAL).splitlines()]


def test_literal_is_a_json_string():
    """Whatever a literal holds, it is quoted and escaped to printable ASCII."""
    text = lark(Literal('a"b\\\n\x00é🐱'), SPECIAL)
    assert text == 'start: r0\nr0: "a\\"b\\\\\\n\\u0000\\u00e9\\ud83d\\udc31"'


def test_special_tokens_are_ids():
    """Special tokens in a literal stand for their ids."""
    assert rules(Literal("a<tool>b<|end|>"))[1] == '"a" <[8]> "b" <[7]>'


def test_nothing_is_an_empty_string():
    """Empty literals and sequences match nothing."""
    assert rules(Literal(""))[1] == rules(Sequence(()))[1] == '""'


def test_free_text_ends_at_its_first_end():
    """The end is a suffix, or the id of a special token."""
    assert lark(Free("</think>"), {}).splitlines()[1] == 'r0[suffix="</think>"]: /(?s:.*)/'
    assert rules(Free("<|end|>"))[1] == "/(?s:.*)/ <[7]>"


def test_free_text_has_a_length_and_no_unwanted_texts():
    """Only terminals can be what other texts are not; each has a name of its own."""
    assert rules(Free("<|end|>", least=2))[1] == "/(?s:.{2,})/ <[7]>"
    assert rules(Free("<|end|>", least=0, most=3))[1] == "/(?s:.{0,3})/ <[7]>"
    assert lark(Free("x", without=("a", '"\n'), most=9), {}).splitlines()[1:] == [
        'r0[suffix="x"]: T1',
        'T1: /(?s:.{0,9})/ & ~((/(?s:.*)/ "a" /(?s:.*)/) | (/(?s:.*)/ "\\"\\n" /(?s:.*)/))',
    ]
    assert lark(Free("x", not_first="[{"), {}).splitlines()[2] == (
        r'T1: /(?s:.*)/ & ~((/\s*/ "[" /(?s:.*)/) | (/\s*/ "{" /(?s:.*)/))'
    )
    with pytest.raises(GrammarError, match="3 to 2 characters"):
        lark(Free("x", least=3, most=2), {})


def test_text_around_the_special_token_that_ends_a_free_text():
    """What stands before the token is the last of the text, and what follows it is a literal."""
    assert lark(Free("</<|end|>a>"), SPECIAL).splitlines()[1:] == [
        'r0: T1 <[7]> "a>"',
        'T1: /(?s:.*)/ "</"',
    ]
    assert rules(Free("<|end|>a>"))[1] == '/(?s:.*)/ <[7]> "a>"'


@pytest.mark.parametrize("until", ["", "<tool><|end|>", "<|end|> <|end|>"])
def test_free_text_needs_one_end(until: str):
    """Nothing cannot be looked for, and neither can several special tokens."""
    with pytest.raises(GrammarError, match="free text"):
        lark(Free(until), SPECIAL)


def test_parts_are_rules():
    """Sequences, choices and repetitions refer to the rules of their parts."""
    a, b = Literal("a"), Literal("b")
    assert rules(Sequence((a, b))) == ["r0", "r1 r2", '"a"', '"b"']
    assert rules(Choice((a, b))) == ["r0", "r1 | r2", '"a"', '"b"']
    assert rules(Repeat(a, 1, 3)) == ["r0", "r1{1,3}", '"a"']
    assert rules(Repeat(Choice((a, Sequence((b, a)))), 0, None)) == [
        "r0",
        "r1{0,}",
        "r2 | r3",
        '"a"',
        "r4 r2",
        '"b"',
    ]


def test_a_part_that_stands_in_several_places_is_written_once():
    """Many arguments of one kind do not make a grammar large."""
    text, comma = Free("x"), Literal(",")
    assert rules(Sequence((text, comma, text, comma, text)))[:2] == ["r0", "r1 r2 r1 r2 r1"]


def test_schema_carries_our_options():
    """Nobody's schema chooses how strictly it is taken."""
    schema = json_schema('{"x-guidance": {"lenient": true}, "type": "object"}')
    assert json.loads(schema) == {"type": "object", "x-guidance": JSON_OPTIONS}
    assert json.loads(json_schema("true")) == {"x-guidance": JSON_OPTIONS}
    with pytest.raises(GrammarError, match="no value"):
        lark(Json("false"), {})


@pytest.mark.parametrize(
    ("grammar", "match"),
    [
        (Json('{"items":' * 120 + "{}" + "}" * 120), "nested"),
        (Literal("a" * MAX_SIZE), "131072 bytes and this takes 131.*: make them shorter"),
        (Choice(()), "option"),
        (Repeat(Literal("a"), 2, 1), "repeated"),
        (Repeat(Literal("a"), -1, 1), "repeated"),
        (Repeat(Literal("a"), 0, 10**9), "repeated"),
        (Repeat(Literal("a"), 10**9, None), "repeated"),
    ],
)
def test_too_much_is_refused(grammar, match: str):
    """What would take the process's memory or stack is refused by a look at it."""
    with pytest.raises(GrammarError, match=match):
        lark(grammar, SPECIAL)


def test_grammar_may_not_nest_without_end():
    """A grammar of many parts in one another is refused, not overflowed on."""
    grammar = Literal("a")
    for _ in range(50):
        grammar = Sequence((grammar,))
    with pytest.raises(GrammarError, match="deep"):
        lark(grammar, {})


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "1(8): regex parse error:\n    (\n    ^\nerror: unclosed group\n   1 | start",
            "the output cannot be held to this grammar: regex parse error: unclosed group",
        ),
        (
            "1(8): regex parse error:\n    (?=a)\n    ^^^\nerror: look-around is not supported",
            (
                r"a pattern of the JSON Schema looks around, as (?=...), \b or a ^ within it do, "
                "which cannot be enforced here: say it otherwise"
            ),
        ),
        (
            "2(3): failed to compile JSON schema: oneOf constraints are not supported. Enable this",
            'the JSON Schema uses "oneOf" with alternatives that may fit at once: use "anyOf"',
        ),
        (
            "2(3): failed to compile JSON schema: Unsatisfiable schema: incompatible types\n 1 | a",
            "no value fits the JSON Schema: incompatible types",
        ),
        ("NoExtensionBias\n<state>", "the output cannot be held to this grammar: no text fits it"),
        ("", "the output cannot be held to this grammar: unknown reason"),
    ],
)
def test_reasons_are_short(message: str, expected: str):
    """The library's message is cut down to what helps, without what it quotes."""
    assert reason(message) == expected
    assert len(reason("at 1(8): " + "x" * 5000)) < 300
