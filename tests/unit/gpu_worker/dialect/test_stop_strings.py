"""Stop texts against a naive oracle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.dialect.stop_strings import StopStrings

letters = st.text(alphabet="abc", max_size=30)
stops = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4)


def oracle(text, stops):
    """Grow the text by one character at a time and look for a stop text at its end."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


def held(text, stops):
    """The longest end of the text that starts a stop text."""
    return max(
        (n for stop in stops for n in range(len(stop)) if n and text.endswith(stop[:n])), default=0
    )


@given(cut=st.lists(letters, max_size=10), stops=stops)
def test_any_cut_ends_at_the_same_place(cut, stops):
    """The text shown is the oracle's, for any cut, and no start of it is lost."""
    expected, matched = oracle("".join(cut), stops)
    matcher = StopStrings(stops)
    shown = "".join(matcher.feed(part) for part in cut)
    assert matched == matcher.matched
    assert expected == shown + matcher.flush()


@given(text=letters, stops=stops)
def test_holds_back_only_what_may_begin_a_stop(text, stops):
    """Before a match exactly the possible start of a stop text is missing."""
    if oracle(text, stops)[1]:
        return
    assert text[: len(text) - held(text, stops)] == StopStrings(stops).feed(text)


@given(cut=st.lists(letters, max_size=10), stops=stops)
def test_emission_depends_on_the_text_alone(cut, stops):
    """Fed at once or in parts, the same is shown."""
    single, parts = StopStrings(stops), StopStrings(stops)
    assert single.feed("".join(cut)) == "".join(parts.feed(part) for part in cut)


@pytest.mark.parametrize(
    ("stops", "text", "shown"),
    [
        (["\n\n"], "one\ntwo\n\nthree", "one\ntwo"),
        (["abcd", "bc"], "xabcd", "xa"),
        (["abc", "bc"], "xabcd", "x"),
        (["🐱"], "a🐱b", "a"),
    ],
)
def test_first_complete_match_wins(stops, text, shown):
    """The stop text that is complete first ends the text; of two at one place the longest."""
    matcher = StopStrings(stops)
    assert shown == matcher.feed(text)
    assert matcher.feed("more") == matcher.flush() == ""


class Read(str):
    """A text that counts how much of it is looked at."""

    __slots__ = ("reads",)

    def __getitem__(self, place):
        self.reads += 1
        return super().__getitem__(place)


def test_a_stop_text_costs_as_much_as_is_generated():
    """Of a stop text of megabytes no more is looked at than the answer may match."""
    stop = Read("ab" * 1_000_000)
    stop.reads = 0
    assert StopStrings([stop]).feed("ab" * 10) == ""
    assert stop.reads < 200
