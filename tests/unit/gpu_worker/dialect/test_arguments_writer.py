"""Arguments become JSON as they come."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.dialect.argument_types import ArgumentType
from gpu_worker.dialect.arguments_writer import ArgumentsWriter
from gpu_worker.dialect.tools import Tool

PROPERTIES = {
    "text": {"type": "string"},
    "maybe": {"type": ["string", "null"]},
    "count": {"type": "integer"},
    "list": {"type": "array"},
}
PLACE = ArgumentType.of(Tool("f", parameters={"type": "object", "properties": PROPERTIES}))


def written(*arguments):
    """Return what each piece of some arguments brings; pieces of a value are in a list."""
    writer, pieces = ArgumentsWriter(PLACE), []
    for name, values in arguments:
        pieces += [writer.begin(name), *map(writer.add, values), writer.end()]
    return [*pieces, writer.close()]


@pytest.mark.parametrize(
    ("arguments", "pieces"),
    [
        ([], ["{}"]),
        ([("text", ['a"', "\n"])], ['{"text": "', 'a\\"', "\\n", '"', "}"]),
        ([("maybe", ["n", "ul", "l"])], ['{"maybe": ', "", "", "", "null", "}"]),
        ([("maybe", ["n", "ot", "!"])], ['{"maybe": ', "", '"not', "!", '"', "}"]),
        ([("maybe", [])], ['{"maybe": ', '""', "}"]),
        ([("count", ["1", "2"])], ['{"count": ', "", "", "12", "}"]),
        (
            [("text", ["a"]), ("other", ["[1", "]"])],
            ['{"text": "', "a", '"', ', "other": ', "", "", "[1]", "}"],
        ),
        ([("text", ["a"]), ("text", ["b"])], ['{"text": "', "a", '"', "", "", "", "}"]),
    ],
)
def test_pieces(arguments, pieces):
    """Texts are passed on as soon as they surely are texts, and each argument once."""
    assert written(*arguments) == pieces


@given(
    values=st.lists(
        st.tuples(
            st.sampled_from([*PROPERTIES, "other"]),
            st.lists(st.text(alphabet='a1 "\\{[]}nul\n', max_size=4), max_size=30),
        ),
        max_size=4,
    )
)
def test_all_pieces_are_the_arguments(values):
    """Together they are an object whose values are what the schema makes of the whole texts."""
    expected = {}
    for name, pieces in values:
        expected.setdefault(name, json.loads(PLACE.at(name).as_json("".join(pieces))))
    assert json.loads("".join(written(*values))) == expected
