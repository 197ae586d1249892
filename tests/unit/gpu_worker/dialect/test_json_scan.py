"""The end of a JSON value."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.dialect.json_scan import JsonScan

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\{}[],\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='a"\\{'), inner),
    max_leaves=6,
)


@given(value=values, rest=st.sampled_from(["}", " x", ",1", "]", '"']), step=st.integers(1, 7))
def test_a_value_ends_where_json_says(value, rest, step):
    """Any value, in pieces of any length, is followed to its last character and no further."""
    written = json.dumps(value)
    if not written.startswith(("{", "[", '"')) and rest == '"':
        rest = ","
    text, taken = written + rest, ""
    scan = JsonScan(text[0])
    for begin in range(0, len(text), step):
        part = text[begin : begin + step]
        taken += part[: scan.feed(part, 0)]
        if scan.done:
            break
    assert taken == written
