"""One object of JSON that may be a call."""

import pytest

from gpu_worker.dialect.json_call import JsonCall


def read(text, *, steps=1, **options):
    """Feed what follows the opening bracket; return the call, its pieces and the place reached."""
    call, at, pieces = JsonCall({"now"}, **options), 0, []
    while at < len(text) and not call.over:
        at = call.feed(text[: at + steps], at)
        pieces += call.take_pieces()
    return call, pieces, at


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('"name": "now", "arguments": {"a": 1}}', '{"a": 1}'),
        ('"parameters": {"a": 1}, "name": "now"}', '{"a": 1}'),
        ('"name":"now","parameters":"{\\"a\\": 1}"}', '{"a": 1}'),
        ('"name": "now", "parameters": null}', "{}"),
        ('"type": "function", "name": "now", "parameters": {}}', "{}"),
    ],
)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("steps", [1, 4, 1000])
def test_a_call_is_read_to_its_last_bracket(text, arguments, exact, steps):
    """Its name comes once and first; arguments are passed on as they are written."""
    call, pieces, at = read(text + " rest", steps=steps, exact=exact)
    assert call.done
    assert at == len(text)
    assert [piece.name for piece in pieces if piece.name] == [pieces[0].name] == ["now"]
    assert "".join(piece.arguments for piece in pieces) == arguments
    assert [piece.complete for piece in pieces].count(True) == 1


@pytest.mark.parametrize(
    ("text", "read_to"),
    [
        ('"name": "nope"', '"name": "nope"'),
        ('"name": [[', '"name": '),
        ('"name" "now"', '"name" '),
        ('"name": "now", "parameters": 3', '"name": "now", "parameters": '),
        (
            r'"parameters": "{\"a\": \"\ud800\"}", "name": "now"}',
            r'"parameters": "{\"a\": \"\ud800\"}"',
        ),
        ('"parameters": {}}', '"parameters": {}'),
        ("name", ""),
        ("}", ""),
    ],
)
@pytest.mark.parametrize("exact", [True, False])
def test_it_fails_where_it_shows(text, read_to, exact):
    """So that what is no call is not held back longer than it must."""
    call, pieces, at = read(text, exact=exact)
    assert call.failed
    assert not pieces
    assert text[:at] == read_to


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('"name": "now"}', "{}"),
        ('"id": [7, {}], "name": "now", "arguments": {"a": 1}}', '{"a": 1}'),
        ('"type": "tool", "name": "now"}', "{}"),
    ],
)
def test_only_a_marker_makes_a_call_of_any_form(text, arguments):
    """Without one, further keys or no arguments mean that the object is content."""
    call, pieces, _ = read(text)
    assert call.done
    assert "".join(piece.arguments for piece in pieces) == arguments
    call, pieces, _ = read(text, exact=True)
    assert call.failed
    assert not pieces


def test_keys_after_the_arguments_change_nothing():
    """The call has been told by then."""
    call, pieces, _ = read('"name": "now", "parameters": {}, "id": [1], "name": "x"}', exact=True)
    assert call.done
    assert "".join(piece.arguments for piece in pieces) == "{}"


def test_a_broken_end_ends_a_string_left_open():
    """What may be its beginning is held back, and passed on if it is not."""
    text = '"name": "now", "arguments": {"a": "b\nEN\nEND'
    call, pieces, at = read(text, broken_end="\nEND")
    assert call.broken
    assert at == len(text)
    assert "".join(piece.arguments for piece in pieces) == '{"a": "b\nEN'
    assert pieces[-1].complete
