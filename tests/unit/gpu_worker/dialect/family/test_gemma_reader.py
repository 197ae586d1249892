"""Gemma's calls, read in all the forms that its models write."""

import json

import pytest

from gpu_worker.dialect.family.gemma_reader import (
    BARE_OPENING,
    CLOSING,
    DELIMITER,
    OPENING,
    GemmaReader,
)
from gpu_worker.dialect.tools import Tool

Q = DELIMITER
TOOLS = [
    Tool(
        "f",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "zip": {"type": "string"},
                "days": {"type": "integer"},
                "price": {"type": "number"},
                "hourly": {"type": "boolean"},
                "maybe": {"type": ["integer", "null"]},
                "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "sizes": {"type": "array", "items": {"type": "integer"}},
                "opt": {"type": "object", "properties": {"code": {"type": "string"}}},
            },
        },
    ),
    Tool("ns.g-1"),
]


def read(text, opening=OPENING, *, size=1):
    """Return calls, the text that is none, and what follows, reading in pieces of a size."""
    reader, calls, rest, pieces = GemmaReader(opening, TOOLS), [], "", []
    for begin in range(0, len(text), size):
        if reader.over:
            rest += text[begin:]
            break
        made, rest = reader.feed(text[begin : begin + size])
        pieces += made
    pieces += reader.end()
    for piece in pieces:
        if piece.name:
            calls.append([piece.name, "", False])
        calls[-1][1] += piece.arguments
        calls[-1][2] |= piece.complete
    return [(name, json.loads(said)) for name, said, done in calls if done], reader.text, rest


def arguments(text):
    """Return the arguments that one call of ``f`` has, however it is cut."""
    made = [read(f"call:f{text}", size=size) for size in (1, 2, 7, 1000)]
    assert made.count(made[0]) == len(made)
    ((name, said),), shown, rest = made[0]
    assert (name, shown, rest) == ("f", "", "")
    return said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", {}),
        ("{ }", {}),
        (f"{{city:{Q}Oslo{Q}}}", {"city": "Oslo"}),
        (f"{{city:{Q}{Q}}}", {"city": ""}),
        (f'{{city:{Q}a "b", {{c}}:\n[d]\\n{Q},days:3}}', {"city": 'a "b", {c}:\n[d]\\n', "days": 3}),
        (f"{{city:{Q}a < b <| c é🐱{Q}}}", {"city": "a < b <| c é🐱"}),
        ("{days:-3,price:1.5e-07,hourly:false}", {"days": -3, "price": 1.5e-7, "hourly": False}),
        ("{hourly:True,maybe:None}", {"hourly": True, "maybe": None}),
        ("{maybe:null}", {"maybe": None}),
        ("{zip:01234}", {"zip": "01234"}),
        ("{zip:12,either:12}", {"zip": "12", "either": 12}),
        (f"{{either:{Q}12{Q},days:{Q}3{Q}}}", {"either": "12", "days": 3}),
        (f"{{tags:[{Q}a{Q},{Q}b,c{Q}],sizes:[1,2]}}", {"tags": ["a", "b,c"], "sizes": [1, 2]}),
        ("{tags:[],opt:{}}", {"tags": [], "opt": {}}),
        ("{opt:{code:007,more:{n:[1,[2],{}]}}}", {"opt": {"code": "007", "more": {"n": [1, [2], {}]}}}),
        (f"{{{Q}city{Q}:{Q}Oslo{Q}, days : 3\n}}", {"city": "Oslo", "days": 3}),
        (f"{{new_key-1.x:1,é:{Q}a{Q}}}", {"new_key-1.x": 1, "é": "a"}),
    ],
)  # fmt: skip
def test_arguments(text, expected):
    """What the notation says is what comes out as JSON, typed by the schema."""
    assert arguments(text + CLOSING) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # vllm#51284: in containers, texts as JSON or Python writes them.
        ('{tags:["x"]}', {"tags": ["x"]}),
        ("{tags:['x', 'it''s'],days:3}", {"tags": ["x", "it''s"], "days": 3}),
        ('{opt:{"code": "fast"}}', {"opt": {"code": "fast"}}),
        ('{"city": "a\\"b\\n\\u00e9\\ud83d\\udc31", "days": 3}', {"city": 'a"b\né🐱', "days": 3}),
        ("{'city': 'it\\'s \\d', 'days': 3}", {"city": "it's \\d", "days": 3}),
        ('{"city:,": "a", }', {"city:,": "a"}),
        ('{city:"He said "hi" to me",days:1}', {"city": 'He said "hi" to me', "days": 1}),
        ('{city:"\\ud83d",zip:"\\udc31x\\u12"}', {"city": "\ufffd", "zip": "\ufffdx\\u12"}),
        ('{city:"\\ud83d\\u0041\\ud83d\\ud83d\\udc31"}', {"city": "\ufffdA\ufffd🐱"}),
        # sglang#39240: a text without its first delimiter.
        (f"{{city:weather in Tokyo{Q}}}", {"city": "weather in Tokyo"}),
        (f"{{city:Paris, France{Q},days:5}}", {"city": "Paris, France", "days": 5}),
        (f"{{city:Paris, zip: x{Q}}}", {"city": "Paris", "zip": "x"}),
        (f"{{tags:[a b{Q},c{Q}]}}", {"tags": ["a b", "c"]}),
        # ollama#15374: without any, or a quote on one side.
        ("{city:Oslo, Norway,days:3}", {"city": "Oslo, Norway", "days": 3}),
        ('{city:Oslo, "days": 3}', {"city": "Oslo", "days": 3}),
        (f"{{city:Oslo, {Q}days{Q}:3}}", {"city": "Oslo", "days": 3}),
        ("{city:Bergen, see: here,}", {"city": "Bergen, see: here"}),
        ("{zip:1, 2 and 3,days:3}", {"zip": "1, 2 and 3", "days": 3}),
        (f"{{city:'Oslo{Q},days:3}}", {"city": "Oslo", "days": 3}),
        (f'{{city:"Oslo"{Q},days:3}}', {"city": "Oslo", "days": 3}),
        ("{city:a[0],tags:[x,y]}", {"city": "a[0]", "tags": ["x", "y"]}),
        # google-ai-edge/LiteRT-LM#2418: without its last delimiter.
        (f"{{city:{Q}Oslo}}", {"city": "Oslo"}),
        (f'{{city:{Q}{{"a": {{}}}}', {"city": '{"a": {}}'}),
        (f'{{city:{Q}{{"a": {{}}}}}}', {"city": '{"a": {}}'}),
        (f"{{opt:{{code:{Q}x}} }}", {"opt": {"code": "x"}}),
        # omlx#1886: keyword arguments.
        ("(city='Oslo', days=3)", {"city": "Oslo", "days": 3}),
        (f"(city={Q}a=b{Q}, opt={{code: 'x'}}, tags=['a'])",
         {"city": "a=b", "opt": {"code": "x"}, "tags": ["a"]}),
        # Brackets too few, or the wrong ones.
        ("{sizes:[1,2}", {"sizes": [1, 2]}),
        ("{opt:{code:x", {"opt": {"code": "x"}}),
        ("{sizes:[1 ", {"sizes": [1]}),
        ("{days:3}}]", {"days": 3}),
        ("{days:3 city:x}", {"days": "3 city:x"}),
        (f"{{city:{Q}a{Q} days:3}}", {"city": "a", "days": 3}),
        # A text where the schema has one, whatever it looks like; more where it has more.
        ('{city:{a:"b"}}', {"city": '{"a": "b"}'}),
        (f'{{tags:{Q}["a", "b"]{Q}}}', {"tags": ["a", "b"]}),
        # Values and keys that are missing.
        ("{city:,days:,opt:}", {"city": "", "days": None, "opt": None}),
        ("{city:}", {"city": ""}),
        ("{Oslo}", {}),
        ("{Oslo,days:3}", {"days": 3}),
        ("{city:x,", {"city": "x"}),
        ("{city:x, y", {"city": "x, y"}),
        (f"{{{Q}city", {}),
        (f"{{city:{Q}{OPENING}{Q}}}", {"city": OPENING}),
        (f'{{city:"{OPENING}"}}', {"city": OPENING}),
    ],
)  # fmt: skip
def test_what_models_write_instead(text, expected):
    """Forms that models are known to write are read as what they mean."""
    assert arguments(text + CLOSING) == expected


@pytest.mark.parametrize("value", ["tru", "108.", "-", "<", '<|"', "1e5x"])
def test_bare_values_wait_until_they_are_complete(value):
    """VG-TP and vllm#38946: nothing of them is told that may become something else."""
    reader = GemmaReader(OPENING, TOOLS)
    pieces, _ = reader.feed(f"call:f{{price:{value}")
    assert "".join(piece.arguments for piece in pieces) == '{"price": '


def test_texts_are_passed_on_as_they_come():
    """A long text is not kept until its end, nor is one in quotes."""
    for opening, closing in [(Q, Q), ('"', '"')]:
        reader = GemmaReader(OPENING, TOOLS)
        told = [reader.feed(f"call:f{{city:{opening}")[0]]
        told += [reader.feed(word)[0] for word in ("Os", 'lo, "', "no\n", "r ")]
        told += [reader.feed(f"th{closing},days:1}}")[0]]
        assert [(piece.name, piece.arguments) for piece in told[0]] == [
            ("f", ""),
            ("", '{"city": "'),
        ]
        assert all(pieces for pieces in told[1:4])
        said = json.loads("".join(piece.arguments for pieces in told for piece in pieces))
        assert said == {"city": 'Oslo, "no\nr th', "days": 1}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("call:f{", "f"),
        (" call: f {", "f"),
        (":f{", "f"),
        ("call:default_api:f{", "f"),
        ("call:ns.g-1{", "ns.g-1"),
        ("call:f(", "f"),
    ],
)
def test_names(text, name):
    """The name of a known function begins a call, also in a namespace and without ``call``."""
    assert read(text) == ([(name, {})], "", "")


@pytest.mark.parametrize(
    ("text", "shown", "rest"),
    [
        ("call:nope{a:1}", "call:nope", "{a:1}"),
        (f"call:nope{CLOSING}", "call:nope", CLOSING),
        (f"call:{OPENING}call:f{{}}", "call:", f"{OPENING}call:f{{}}"),
        (" is a marker", " ", "is a marker"),
        ("`", "", "`"),
        ("call:<", "call:<", ""),
        ("called", "call", "ed"),
        ("call:f f{", "call:f ", "f{"),
        ("call:f, g", "call:f", ", g"),
        ("call:", "call:", ""),
        (f"call:f{Q}x", "call:f", f"{Q}x"),
        ("call:" + "x" * 300, "call:" + "x" * 256, "x" * 44),
    ],
)
def test_what_is_no_call_is_text(text, shown, rest):
    """Nothing of it is lost but the markers, and it is given up where that is clear."""
    for size in (1, 3, 1000):
        assert read(text, size=size) == ([], shown, rest)


def test_a_call_without_its_marker():
    """After a thought, models are seen to begin with the word alone; it is text if it is none."""
    assert read("f{days:3}", BARE_OPENING) == ([("f", {"days": 3})], "", "")
    assert read("me later", BARE_OPENING) == ([], "call:me ", "later")


@pytest.mark.parametrize(
    ("after", "rest"),
    [
        (f"{CLOSING}x", "x"),
        (f"}} {CLOSING}\nx", "\nx"),
        ("\nx", "x"),
        (OPENING, OPENING),
        (f"{Q}{CLOSING}", ""),
        ("call:f{}", "call:f{}"),
        ("<a", "<a"),
    ],
)
def test_what_follows_a_call(after, rest):
    """Its end marker may be missing, and a bracket or a delimiter too many."""
    for size in (1, 1000):
        assert read("call:f{days:3}" + after, size=size) == ([("f", {"days": 3})], "", rest)


def test_a_marker_that_has_only_begun_is_text():
    """Nothing is lost where the answer ends in what may be one."""
    assert read("call:f{days:3}<|") == ([("f", {"days": 3})], "<|", "")
    assert read(f"call:f{{city:{Q}<|") == ([("f", {"city": "<|"})], "", "")


def test_the_next_call_ends_one_that_is_unfinished():
    """What is open is closed, and the marker is left for the next call."""
    made = read(f"call:f{{tags:[{Q}a{Q}{OPENING}call:f{{}}")
    assert made == ([("f", {"tags": ["a"]})], "", f"{OPENING}call:f{{}}")


@pytest.mark.parametrize("marker", [CLOSING, DELIMITER])
def test_other_markers_show_nothing(marker):
    """They open no call, and what follows them is left as it is."""
    reader = GemmaReader(marker, TOOLS)
    assert (reader.over, reader.text, reader.feed("x"), reader.end()) == (True, "", ([], "x"), [])


def test_a_name_comes_once_and_an_end_as_well():
    """However a call is cut, one piece has its name and one says that it is complete."""
    reader, pieces = GemmaReader(OPENING, TOOLS), []
    for character in f"call:f{{days:3,tags:[{Q}x{Q}]}}{CLOSING}":
        pieces += reader.feed(character)[0]
    pieces += reader.end()
    assert [piece.name for piece in pieces if piece.name] == ["f"]
    assert [piece.complete for piece in pieces].count(True) == 1
    assert pieces[-1].complete
