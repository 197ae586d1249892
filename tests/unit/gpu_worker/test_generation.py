"""Tokens to text, however the engine hands them over."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.engine.scripted import ByteTokenizer
from gpu_worker.generation import OutputText

token_bytes = ByteTokenizer().token_bytes
texts = st.text(alphabet="ab🐱é", max_size=20)
stops = st.lists(st.text(alphabet="ab🐱é", min_size=1, max_size=3), max_size=4)


@given(text=texts, stops=stops, cuts=st.lists(st.integers(0, 80), max_size=10))
def test_text_and_tokens_do_not_depend_on_the_steps(text, stops, cuts):
    """One token a step or several: the same text, and the same tokens count."""
    ids = list(text.encode())
    places = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    steps = [ids[a:b] for a, b in itertools.pairwise(places)]
    results = []
    for parts in ([[one] for one in ids], steps):
        output, shown, taken = OutputText(token_bytes, stops), "", []
        for part in parts:
            more, consumed = output.feed(part)
            shown += more
            taken += consumed
            if output.stopped:
                break
        if not output.stopped:
            shown += output.flush()
        results.append((shown, taken, output.stopped))
    assert results[0] == results[1]
    if not results[0][2]:
        assert (text, ids) == results[0][:2]


def test_a_cut_character_at_the_end_is_shown_as_such():
    """The tail of the text is what a decoder makes of all bytes."""
    output = OutputText(token_bytes, ["zz"])
    assert output.feed([0xF0, 0x9F]) == ("", [0xF0, 0x9F])
    assert output.flush() == b"\xf0\x9f".decode("utf-8", "replace")
