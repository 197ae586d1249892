"""From bytes to one JSON object."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.errors import Refusal
from edge.json_body import MOST_CONTAINERS, parse_object


def parse(body):
    return parse_object(body, depth_limit=10)


def refused(body):
    with pytest.raises(Refusal) as caught:
        parse(body)
    assert caught.value.status == 400
    return caught.value.message


def test_objects():
    """Space around, a byte order mark, escapes and double keys are fine; the last key counts."""
    assert parse(b' \r\n{"a": 1}\n ') == {"a": 1}
    assert parse(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}
    assert parse(b'{"\\u0061": "\\ud83d\\ude00"}') == {"a": "😀"}
    assert parse(b'{"a": 1, "a": 2}') == {"a": 2}


@pytest.mark.parametrize("body", [b"", b"  \n", b"\xef\xbb\xbf"])
def test_empty(body):
    """An empty body is told apart from a broken one."""
    assert refused(body) == "the body is empty: send a JSON object"


@pytest.mark.parametrize("body", [b"[]", b"null", b"1", b'"a"', b"true"])
def test_not_an_object(body):
    """Any other JSON value is refused."""
    assert refused(body) == "the body must be a JSON object"


@pytest.mark.parametrize(
    "body",
    [
        b"hello",
        b"{",
        b'{"a": 1,}',
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'{"a": "\\ud800"}',
        b'{"a": "\\udc00"}',
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "x\ny"}',
        b'{"a": 1} x',
        b'{/* c */"a": 1}',
        b"{\x00}",
        '{"a": 1}'.encode("utf-16"),
    ],
)
def test_not_json(body):
    """What RFC 8259 forbids is refused, and nothing of it is repeated."""
    message = refused(body)
    assert message.startswith("the body is not valid JSON: ")
    assert "hello" not in message


@pytest.mark.parametrize("text", [r'"\ud800"', r'"\uDBFFa"', r'"\ud83d\n"', r'"\udc00"'])
def test_half_a_character(text):
    """One half of a surrogate pair is named, where the parser may speak of a body cut short."""
    assert "surrogate pair" in refused(b'{"a": %b}' % text.encode())
    assert "truncated" in refused(b'{"a": ')


@given(
    st.recursive(
        st.text(st.sampled_from('[]{}"\\\\ aé\n')) | st.integers() | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.sampled_from('[{"\\\\')), inner),
        max_leaves=30,
    ),
    st.booleans(),
)
def test_depth_is_that_of_the_value(value, ascii_only):
    """Brackets, quotes and backslashes within strings count for nothing."""
    body = json.dumps({"a": value}, ensure_ascii=ascii_only).encode()
    depth = depth_of(value) + 1
    assert parse_object(body, depth_limit=depth) == {"a": value}
    with pytest.raises(Refusal, match=f"deeper than {depth - 1} levels"):
        parse_object(body, depth_limit=depth - 1)


def depth_of(value):
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth_of, inner), default=0)


@pytest.mark.parametrize("filler", [b'\\"', b"\\\\", b'"', b'"[', b"\\", b'"\\', b"[]", b'""'])
@pytest.mark.parametrize("opening", [b"", b'"'])
def test_no_body_is_slow(filler, opening):
    """Megabytes of quotes and backslashes are gone through once, or this test never ends."""
    body = b'{"a":[' + b"[]," * 20 + opening + filler * 1_000_000
    with pytest.raises(Refusal):
        parse(body)


@pytest.mark.parametrize("depth", [1, 9, 10, 11, 12, 100, 50_000])
@pytest.mark.parametrize(("left", "right"), [("[", "]"), ('{"a":', "}")])
def test_depth(depth, left, right):
    """Nesting counts from the outermost object, and over the limit it is refused."""
    body = ('{"x":' + left * (depth - 1) + "1" + right * (depth - 1) + "}").encode()
    if depth > 10:
        assert refused(body) == "the body is nested deeper than 10 levels"
    else:
        parse(body)


def test_brackets_in_strings_do_not_nest():
    """Only brackets outside of strings count, whatever is escaped in them."""
    text = '[{"' * 50 + "\\" + '"' + "[" * 50
    parse(json.dumps({"a": text, "b": [text]}).encode())
    refused(json.dumps({"a": [[[[[[[[[[text]]]]]]]]]]}).encode())


def test_many_but_shallow():
    """Ten thousand messages are not deep."""
    parse(json.dumps({"messages": [{"role": "user", "content": "[[[["}] * 10_000}).encode())


def test_nothing_but_brackets():
    """So many arrays that parsing them would hold up others are refused."""
    body = b'{"a": [' + b",".join([b"[]"] * MOST_CONTAINERS) + b"]}"
    assert refused(body) == "the body holds more than 100000 arrays and objects"
