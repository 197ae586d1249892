"""Gemma's calls, held to the tools' schemas in its own notation."""

import json
from pathlib import Path

import jsonschema
import llguidance
import pytest
from grammar_texts import GrammarTexts
from hypothesis import given, settings
from hypothesis import strategies as st
from transcripts import Transcripts

from gpu_worker.dialect import families
from gpu_worker.dialect.chat_template import ChatTemplate
from gpu_worker.dialect.family.gemma import GemmaCalls
from gpu_worker.dialect.thinking import Thinking
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.grammar import GrammarError
from gpu_worker.engine.guidance.lark import lark

TEMPLATE = Path(__file__).parents[4] / "templates" / "gemma-4-31b-it.jinja"
GEMMA = families.find(ChatTemplate(TEMPLATE.read_text(encoding="utf-8")))
Q = '<|"|>'
NOW = Tool("now")
ENDS = (Q, '"', "}", "]")


def tool(properties, *, required=(), **fields):
    """Return a tool with these properties."""
    schema = {"type": "object", "properties": properties, "required": list(required), **fields}
    return Tool("f", parameters=schema)


def grammar(*tools, several=False):
    """Return what calls of tools are held to."""
    return GemmaCalls().grammar(tools, several=several)


def texts(*tools, several=False):
    """Return the texts that calls of tools are held to."""
    return GrammarTexts(grammar(*tools, several=several), ends=ENDS)


def call(arguments, name="f"):
    """Write a call."""
    return f"<|tool_call>call:{name}{arguments}<tool_call|>"


def test_one_call_or_several_and_nothing_else():
    """Several stand beside one another; a tool without arguments has none."""
    one, many = texts(NOW), texts(NOW, tool({"a": {"type": "null"}}), several=True)
    assert one.allow(call("{}", "now"))
    assert not one.allow(call("{}", "now") * 2)
    assert not one.allow(call("{a:1}", "now"))
    assert many.allow(call("{}", "now") + call("{a:null}") + call("{}"))
    assert not many.allow("")
    assert not many.allow(call("{}", "now") + "\n" + call("{}", "now"))
    assert not many.allow("Sure. " + call("{}", "now"))


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        ({"type": "string"}, [f"{Q}{Q}", f'{Q}a "b"\n{{}}, <|é🐱{Q}'], ["a", '"a"', f"{Q}a", "1"]),
        ({"type": "string"}, [], [f"{Q}<tool_call|>{Q}", f"{Q}<|tool_call>{Q}"]),
        ({"type": "string", "minLength": 2, "maxLength": 3.0}, [f"{Q}ab{Q}", f"{Q}é🐱c{Q}"],
         [f"{Q}a{Q}", f"{Q}abcd{Q}"]),
        ({"type": "integer", "minimum": 3}, ["3", "40"], ["2", "3.5", f"{Q}3{Q}", " 3"]),
        ({"type": "number"}, ["-3.5e10"], ["3.", "NaN"]),
        ({"type": "boolean"}, ["true", "false"], ["True", f"{Q}true{Q}"]),
        ({"type": "null"}, ["null"], ["None"]),
        ({"type": ["string", "null"]}, [f"{Q}null{Q}", "null"], ["1"]),
        ({"enum": ["a", "ab", 1, None, False]}, [f"{Q}a{Q}", f"{Q}ab{Q}", "1", "null", "false"],
         ["a", f"{Q}b{Q}", "true", f"{Q}1{Q}"]),
        ({"enum": ["a", 1], "type": "string"}, [f"{Q}a{Q}"], ["1"]),
        ({"const": 'x"y'}, [f'{Q}x"y{Q}'], [f"{Q}x{Q}"]),
        ({"anyOf": [{"type": "integer"}, {"type": "string", "title": "t"}], "description": "d"},
         ["12", f"{Q}12{Q}"], ["true"]),
        ({"oneOf": [{"const": "a"}, {"type": "integer"}]}, [f"{Q}a{Q}", "1"], [f"{Q}b{Q}"]),
        ({"allOf": [{"type": "boolean"}], "default": True}, ["true"], ["1"]),
        ({"$ref": "#/$defs/unit"}, [f"{Q}c{Q}"], [f"{Q}k{Q}"]),
        ({"type": "array", "items": {"type": "integer"}}, ["[]", "[1]", "[1,2,3]"],
         ["[1,]", f"[{Q}1{Q}]", "[1, 2]"]),
        ({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
         [f"[{Q}a{Q}]", f"[{Q}a{Q},{Q}b{Q}]"], ["[]", f"[{Q}a{Q},{Q}b{Q},{Q}c{Q}]", "[a]"]),
        ({"type": "array"}, ["[]", f"[{Q}a{Q},1,null,{{}}]"], ["[", "{}"]),
        ({"type": "object", "properties": {"b": {"type": "integer"}, "A": {"type": "integer"}}},
         ["{}", "{A:1}", "{b:1}", "{A:1,b:2}"], ["{b:1,A:2}", "{,b:1}", "{A:1,}", "{c:1}"]),
        ({"properties": {"a": {}, "b": {"const": 1}, "c": {"const": 2}, "d": False}, "required": ["b"]},
         ["{b:1}", f"{{a:{Q}x{Q},b:1,c:2}}", "{b:1,c:2}"], ["{}", "{c:2}", "{a:1}", "{b:1,d:1}"]),
        ({"type": "object", "properties": {"o": {"properties": {"x": {"type": "null"}}}}},
         ["{o:{x:null}}", "{o:{}}"], ["{o:null}"]),
        ({"type": "object", "additionalProperties": False}, ["{}"], ["{a:1}"]),
        ({}, [f"{Q}a{Q}", "1", "[]", '{"a": "b"}'], ["a", "{a:1}"]),
        (True, [f"{Q}a{Q}", "null"], ["a"]),
    ],
)  # fmt: skip
def test_values_are_typed(schema, allowed, refused):
    """Each type in the notation that the template writes, and no other."""
    held = texts(tool({"v": schema}, required=["v"], **{"$defs": {"unit": {"enum": ["c", "f"]}}}))
    for text in allowed:
        assert held.allow(call(f"{{v:{text}}}")), text
    for text in refused:
        assert not held.allow(call(f"{{v:{text}}}")), text


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        ({"type": "string", "pattern": "^[a-c]+$"}, '"abc"', '"d"'),
        ({"type": "string", "format": "date"}, '"2026-11-29"', '"today"'),
        ({"type": "object"}, '{"a": {"b": [1, "x"]}}', "[]"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"a": 1}', '{"a": "1"}'),
        ({"type": "object", "properties": {"a b": {"type": "integer"}}}, '{"a b": 1}', '{"a b": ""}'),
        ({"$ref": "#/$defs/tree"}, '{next:{"next": {"next": {}}}}', '{next:{"last": {}}}'),
        ({"enum": [["a"], {"b": 1}]}, '["a"]', '["b"]'),
        ({"enum": [f"a{Q}b"]}, json.dumps(f"a{Q}b"), f"{Q}a{Q}"),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
         '[1, "a"]', '["a", 1]'),
        ({"type": "array", "maxItems": 0}, "[]", "[1]"),
    ],
)  # fmt: skip
def test_what_the_notation_has_no_means_for_is_json(schema, allowed, refused):
    """The rest of the call is as it always is."""
    tree = {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}},
            "additionalProperties": False}  # fmt: skip
    held = texts(
        tool({"v": schema, "z": {"const": "y"}}, required=["v", "z"], **{"$defs": {"tree": tree}})
    )
    assert held.allow(call(f"{{v:{allowed},z:{Q}y{Q}}}"))
    assert not held.allow(call(f"{{v:{refused},z:{Q}y{Q}}}"))


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": False}, '{"a": 1}'),
        ({"properties": {"a": {"$ref": "#/properties/b"}, "b": {"$ref": "#"}}}, '{"a": {"b": {}}}'),
        ({"properties": {f"p{at}": {"anyOf": [{"const": n} for n in range(20)]} for at in range(30)}},
         '{"p3": 3}'),
    ],
)  # fmt: skip
def test_arguments_may_be_json_as_a_whole(parameters, text):
    """If their schema has other keywords, refers to itself, or is large."""
    assert texts(Tool("f", parameters={"type": "object", **parameters})).allow(call(text))


@pytest.mark.parametrize(
    ("keyword", "schema"),
    [
        ("not", {"not": {"type": "string"}}),
        ("uniqueItems", {"type": "array", "uniqueItems": True}),
        ("if", {"if": {"type": "string"}, "then": {"const": "a"}}),
    ],
)
def test_what_cannot_be_enforced_is_named(keyword, schema):
    """No keyword is ignored, wherever it stands."""
    for parameters in ({"properties": {"v": {"type": "array", "items": schema}}}, schema):
        with pytest.raises((GrammarError, AssertionError), match=keyword):
            texts(Tool("f", parameters={**parameters, "type": "object"}))


schemas = st.recursive(
    st.sampled_from(
        [
            {"type": "string"},
            {"type": "string", "maxLength": 4},
            {"type": "string", "format": "date"},
            {"type": "integer"},
            {"type": "number", "minimum": 0},
            {"type": ["boolean", "null"]},
            {"enum": ["a", 'b"', 2, None]},
            {"$ref": "#/$defs/tree"},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, inner),
        st.builds(lambda parts: {"anyOf": parts}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(
            lambda declared, count: {
                "type": "object",
                "properties": declared,
                "required": sorted(declared)[:count],
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from(["a", "B", "c-1", "d.e", "é"]), inner, max_size=3),
            st.integers(0, 2),
        ),
    ),
    max_leaves=4,
)  # fmt: skip
TREE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}, "n": {"type": "string"}}}


@given(
    declared=st.dictionaries(st.sampled_from("abcd"), schemas, max_size=3), seed=st.integers(0, 99)
)
@settings(max_examples=25)
def test_what_the_grammar_allows_is_read_as_a_valid_call(declared, seed):
    """Texts that follow the grammar at random are calls with arguments that the schema allows."""
    made = tool(declared, required=sorted(declared)[:1], **{"$defs": {"tree": TREE}})
    held = texts(made, NOW, several=True)
    told = Transcripts(GEMMA, [made, NOW]).read(held.random(seed), thinking=Thinking.NO)
    content, reasoning, calls = told.values()
    assert content == reasoning == ""
    assert calls
    for name, arguments in calls:
        schema = made.arguments_schema() if name == "f" else {"maxProperties": 0}
        jsonschema.validate(arguments, schema)


def test_a_thought_may_come_first():
    """Where the model has been asked to think; else the call is all that there is."""
    for thinking, thinks, allowed, refused in [
        (Thinking.MAYBE, True, ["<|channel>thought\nx<channel|>", ""], ["x<channel|>"]),
        (Thinking.OPEN, True, ["x<channel|>"], ["", "<channel|>x"]),
        (Thinking.NO, False, [""], ["<|channel>thought\n<channel|>"]),
        (Thinking.MAYBE, False, [""], ["<|channel>thought\n<channel|>"]),
    ]:
        held = GrammarTexts(
            GEMMA.grammar(
                thinking=thinking,
                thinks=thinks,
                schema=None,
                tools=[NOW],
                forced=True,
                several=False,
            )
        )
        for text in allowed:
            assert held.allow(text + call("{}", "now"))
        for text in refused:
            assert not held.allow(text + call("{}", "now"))


class Words:
    """Every byte is a token, and so is each of Gemma's markers, by its own id."""

    bos_token_id = None
    eos_token_id = 256

    def __init__(self):
        self.special_tokens = {marker: 257 + at for at, marker in enumerate(sorted(GEMMA.markers))}
        self.special_token_ids = list(self.special_tokens.values())
        self.tokens = [bytes([at]) for at in range(256)] + [b"<eos>"]
        self.tokens += [marker.encode() for marker in self.special_tokens]

    def __call__(self, text):
        return list(text.encode())


def test_markers_are_matched_as_control_tokens():
    """Where they are special tokens of the vocabulary, no text spells them."""
    words = Words()
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(words))
    text = lark(grammar(tool({"v": {"type": "string"}}, required=["v"])), words.special_tokens)
    begin, end, quote = (words.special_tokens[each] for each in ("<|tool_call>", "<tool_call|>", Q))
    ids = [begin, *b"call:f{v:", quote, *b"a<b", quote, *b"}", end]
    for tokens, expected in [
        (ids, True),
        ([*b"<|tool_call>", *ids[1:]], False),
        ([begin, *b"call:f{v:", quote, *Q.encode(), quote, *b"}", end], False),
    ]:
        matcher = llguidance.LLMatcher(tokenizer, text)
        accepted = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
        assert accepted is expected
        assert not matcher.is_error()


def test_many_arguments_are_no_large_grammar():
    """A tool with as many as tools have is held to them in its own notation."""
    declared = {f"argument_{at}": {"type": "string", "description": "x" * 99} for at in range(60)}
    text = lark(grammar(tool(declared)), {})
    assert len(text) < 30_000
    assert texts(tool(declared)).allow(call(f"{{argument_7:{Q}a{Q},argument_9:{Q}b{Q}}}"))
