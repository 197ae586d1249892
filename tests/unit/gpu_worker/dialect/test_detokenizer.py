"""Text out of tokens, however they are cut."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.dialect.detokenizer import Detokenizer


def pieces(data, cuts):
    """Cut bytes at the given places."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


texts = st.one_of(st.text(max_size=40).map(str.encode), st.binary(max_size=40))


@given(data=texts, cuts=st.lists(st.integers(0, 99), max_size=40))
def test_any_cut_gives_the_whole_text(data, cuts):
    """All that is emitted, with the tail, equals decoding all bytes at once."""
    tokens = pieces(data, cuts)
    detokenizer = Detokenizer(tokens.__getitem__)
    text = "".join(detokenizer.feed(number) for number in range(len(tokens)))
    assert data.decode("utf-8", "replace") == text + detokenizer.flush()


def test_a_cut_character_waits():
    """The first bytes of a character show nothing until the last one is there."""
    tokens = [b"\xf0\x9f", b"\x90", b"\xb1!"]
    detokenizer = Detokenizer(tokens.__getitem__)
    assert [detokenizer.feed(number) for number in range(3)] == ["", "", "🐱!"]
