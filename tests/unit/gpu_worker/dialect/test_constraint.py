"""What an answer is held to."""

from gpu_worker.dialect.constraint import after_thought, constraint
from gpu_worker.dialect.family.hermes import Hermes
from gpu_worker.dialect.thinking import THINK_TAGS, Thinking
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.grammar import Choice, Free, Json, Literal, Sequence

HERMES = Hermes()
TOOLS = [Tool("now")]


def made(schema=None, tools=(), *, forced=False, several=True):
    """Return the constraint."""
    return constraint(schema=schema, calls=HERMES, tools=tools, forced=forced, several=several)


def test_what_is_asked_is_what_is_held_to():
    """Nothing, JSON, calls; where both are possible, one or the other."""
    calls = HERMES.grammar(TOOLS, several=True)
    assert made() is None
    assert made(tools=TOOLS) is None
    assert made("{}") == Json("{}")
    assert made(tools=TOOLS, forced=True) == calls
    assert made("{}", TOOLS, forced=True, several=False) == HERMES.grammar(TOOLS, several=False)
    assert made("{}", TOOLS) == Choice((calls, Json("{}")))


def test_a_thought_comes_first_and_is_free():
    """The model opens its thought, or the prompt has, or there is none."""
    answer = Json("{}")
    rest = (Free("</think>"), Literal("\n\n"), answer)
    for thinking, expected in [
        (Thinking.NO, answer),
        (Thinking.OPEN, Sequence(rest)),
        (Thinking.MAYBE, Choice((Sequence((Literal("<think>"), *rest)), answer))),
    ]:
        assert after_thought(answer, thoughts=THINK_TAGS, thinking=thinking) == expected
    assert after_thought(answer, thoughts=None, thinking=Thinking.MAYBE) == answer
