"""Token ids to what is shown of them."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.dialect.answer import Answer
from gpu_worker.dialect.family.hermes import Hermes
from gpu_worker.dialect.parser import Parser
from gpu_worker.dialect.thinking import THINK_TAGS, Thinking
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.scripted import ByteTokenizer

token_bytes = ByteTokenizer().token_bytes
CALL = '<tool_call>\n{"name": "now", "arguments": {"a": "🐱"}}\n</tool_call>'
texts = st.lists(
    st.sampled_from(["a", "b", "🐱", "é", "<think>", "</think>", CALL, CALL[:30], "\n", "<"]),
    max_size=12,
).map("".join)
stops = st.lists(st.text(alphabet="ab🐱é", min_size=1, max_size=3), max_size=4)


def answer(stops=(), thinking=Thinking.MAYBE):
    """Return a new answer of a model that thinks and calls."""
    return Answer(
        token_bytes,
        Parser(
            markers=THINK_TAGS, thinking=thinking, calls=Hermes(), tools=[Tool("now")], stops=stops
        ),
    )


class Told:
    """Joins what is shown."""

    def __init__(self):
        self.content = self.reasoning = ""
        self.calls = []
        self.tokens = 0

    def add(self, shown):
        self.content += shown.content
        self.reasoning += shown.reasoning
        self.tokens += shown.token_count
        for piece in shown.calls:
            if piece.name:
                self.calls.append(piece.name)
            self.calls[-1] += piece.arguments

    def state(self):
        return self.content, self.reasoning, [*self.calls], self.tokens


@given(text=texts, broken=st.binary(max_size=2), stops=stops, cuts=st.lists(st.integers(0, 300)))
def test_what_is_shown_after_some_tokens_depends_on_those_alone(text, broken, stops, cuts):
    """Whatever the steps: after k tokens the same text, calls, and counts of tokens."""
    ids = [*text.encode(), *broken]
    one_by_one, told, states = answer(stops), Told(), []
    for number in range(len(ids) + 1):
        states.append((told.state(), one_by_one.reasoning_tokens, one_by_one.ended))
        if number < len(ids) and not one_by_one.ended:
            told.add(one_by_one.feed(ids[number : number + 1]))
    in_steps, told = answer(stops), Told()
    places = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    for begin, end in itertools.pairwise(places):
        if in_steps.ended:
            break
        told.add(in_steps.feed(ids[begin:end]))
        assert states[end] == (told.state(), in_steps.reasoning_tokens, in_steps.ended)


def test_tokens_of_a_thought_are_counted_with_its_markers():
    """From the first of the opening marker to the last of the closing one."""
    for text, thinking, count in [
        ("<think>ab</think>\n\nc", Thinking.MAYBE, len("<think>ab</think>")),
        ("ab</think>c", Thinking.OPEN, len("ab</think>")),
        ("ab", Thinking.OPEN, 2),
        ("<thin", Thinking.MAYBE, 0),
        ("<think>ab</think>", Thinking.NO, 0),
    ]:
        made = answer(thinking=thinking)
        made.feed(list(text.encode()))
        assert made.reasoning_tokens == count


def test_half_a_character_at_the_end():
    """What max_tokens cut in two is left out; what the model ended so is what a decoder makes."""
    for cut, tail in ((True, ""), (False, b"\xf0\x9f".decode("utf-8", "replace"))):
        made = answer(["zz"])
        assert made.feed([0xF0, 0x9F]).content == ""
        assert made.flush(cut=cut).content == tail


def test_tokens_after_the_end_do_not_count():
    """A stop text ends the answer with the token that completes it."""
    made = answer(["ST"])
    shown = made.feed(list(b"abSTcd"))
    assert (shown.content, shown.token_count, made.ended, made.called) == ("ab", 4, True, False)
