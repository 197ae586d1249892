"""The lines of the usage spool."""

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.usage_lines import (
    Closed,
    Counts,
    Ending,
    Ledger,
    Open,
    Started,
    Status,
    Void,
    decode,
    encode,
)

REQUEST = Open(
    request_id="r1", account_id="a1", key_id="k1", model="m/ü\n", started_at=1.5, generations=(0,)
)
RECORD = Closed(
    request_id="r1",
    account_id="a1",
    key_id="k1",
    model="m",
    started_at=1.5,
    ending=Ending(status=Status.COMPLETED, finish="stop", first_token_ms=0, duration_ms=3),
    counts=Counts(prompt=0, completion=7),
)
LINES = [
    REQUEST,
    RECORD,
    Started(request_id="r1", generation=3, unsure=True),
    Void(request_id="r1"),
]


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_read_as_it_was_written(line):
    """What is written comes back, with 0 as 0 and absent as absent, and is one line."""
    data = encode(line)
    assert data.count(b"\n") == 1
    assert decode(data.rstrip(b"\n")) == line


@given(st.sampled_from(LINES), st.data())
def test_a_torn_line_is_told_from_a_whole_one(line, data):
    """No proper beginning of a line is a line."""
    whole = encode(line).rstrip(b"\n")
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert decode(whole[:cut]) is None


@given(st.sampled_from(LINES), st.data())
def test_a_spoiled_line_is_noticed(line, data):
    """One byte that is another makes it no line."""
    whole = bytearray(encode(line).rstrip(b"\n"))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    assert decode(bytes(whole)) is None


def test_a_line_of_another_version_is_passed_over():
    """A whole line that says what nobody knows is none, and no crash."""
    document = b'{"type":"dreamt","request_id":"r1"}'
    assert decode(b"%08x %b" % (crc32(document), document)) is None


def test_a_ledger_knows_what_is_open_and_which_of_it_was_started():
    """Further starts add up; a record or a void ends it, and only a record is handed out."""
    ledger = Ledger()
    assert ledger.take(REQUEST) is None
    assert ledger.take(Started(request_id="r1", generation=2)) is None
    assert ledger.take(Started(request_id="r1", generation=0, unsure=True)) is None
    assert ledger.open["r1"].generations == (0, 2)
    assert ledger.open["r1"].unsure
    assert ledger.take(RECORD) is RECORD
    assert not ledger.open


def test_a_ledger_takes_ends_without_beginnings():
    """What began in a file that is gone is no trouble."""
    ledger = Ledger()
    assert ledger.take(Void(request_id="r9")) is None
    assert ledger.take(Started(request_id="r9", generation=1)) is None
    assert ledger.take(RECORD) is RECORD
    assert not ledger.open
