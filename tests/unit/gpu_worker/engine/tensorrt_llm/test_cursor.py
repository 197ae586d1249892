"""What is new in an output that grows in place, and at times shrinks."""

from types import SimpleNamespace

import pytest

from gpu_worker.engine.protocol import EngineError, Finish, TokenLogprobs
from gpu_worker.engine.tensorrt_llm.cursor import UNKNOWN_LOGPROB, Cursor

END, TURN_END = 2, 106


def output(token_ids, finish=None, stop=None, logprobs=()):
    return SimpleNamespace(
        token_ids=token_ids, finish_reason=finish, stop_reason=stop, logprobs=list(logprobs)
    )


def test_tells_each_token_once():
    """What was told before is not told again, however many came in a step."""
    cursor = Cursor([END], logprobs=None)
    assert cursor.take(output([5])).token_ids == [5]
    assert cursor.take(output([5])).token_ids == []
    piece = cursor.take(output([5, 6, 7], "length"))
    assert (piece.token_ids, piece.finish, cursor.told) == ([6, 7], Finish.LENGTH, 3)


@pytest.mark.parametrize(
    ("told", "last", "stop", "expected"),
    [
        ([5], [5, END], None, [END]),  # it is there
        ([5], [5], None, [END]),  # the end token is left out, and given as no reason
        ([5], [5], TURN_END, [TURN_END]),  # a stop token is left out
        ([5, TURN_END], [5], TURN_END, []),  # it was told, and is cut off
        ([5, END], [5, END], None, []),
        ([], [], None, [END]),  # it was all there was
        ([5], [5], "text", [END]),  # nothing that we asked for
    ],
)
def test_the_token_that_ended_it_is_told_once(told, last, stop, expected):
    """Versions leave it out, put it in or take it back: it is told once."""
    cursor = Cursor([END, TURN_END], logprobs=None)
    cursor.take(output(told))
    piece = cursor.take(output(last, "stop", stop))
    assert (piece.token_ids, piece.finish) == (expected, Finish.STOP)


def test_without_stop_tokens_none_is_made_up():
    """Nothing is added to an output that no token ended."""
    piece = Cursor([], logprobs=None).take(output([5], "stop"))
    assert piece.token_ids == [5]


def test_an_end_that_is_no_answer_is_an_error():
    """A time limit of the engine is no length, and an unknown reason no stop."""
    for reason in ("timeout", "something new"):
        with pytest.raises(EngineError, match=reason):
            Cursor([END], logprobs=None).take(output([5], reason))
    assert Cursor([END], logprobs=None).take(output([5], "cancelled")).cancelled


def logprob(value):
    return SimpleNamespace(logprob=value, rank=0)


def test_logprobs_are_sorted_and_cut_to_what_was_asked():
    """The sampled token comes beside the likeliest ones, in any order."""
    entries = [{9: logprob(-3.0), 5: logprob(-0.5), 7: logprob(-1.0)}]
    piece = Cursor([END], logprobs=2).take(output([9], logprobs=entries))
    assert piece.logprobs == [TokenLogprobs(-3.0, [(5, -0.5), (7, -1.0)])]
    piece = Cursor([END], logprobs=0).take(output([9], logprobs=entries))
    assert piece.logprobs == [TokenLogprobs(-3.0, [])]


def test_gaps_in_logprobs_are_filled():
    """Each token has its entry, whatever the library leaves out, and every value is finite."""
    entries = [{7: logprob(float("-inf"))}, -0.25, None]
    piece = Cursor([END], logprobs=1).take(output([5, 6, 7, 8], logprobs=entries))
    assert piece.logprobs == [
        TokenLogprobs(UNKNOWN_LOGPROB, [(7, UNKNOWN_LOGPROB)]),
        TokenLogprobs(-0.25, []),
        TokenLogprobs(UNKNOWN_LOGPROB, []),
        TokenLogprobs(UNKNOWN_LOGPROB, []),
    ]


def test_logprobs_that_outlive_their_token_are_no_trouble():
    """When a stop token is cut off, its logprob stays; the token put back has it."""
    cursor = Cursor([END], logprobs=1)
    entries = [{5: logprob(-0.5)}, {END: logprob(-0.1)}]
    cursor.take(output([5], logprobs=entries[:1]))
    piece = cursor.take(output([5], "stop", logprobs=entries))
    assert piece.token_ids == [END]
    assert piece.logprobs == [TokenLogprobs(-0.1, [(END, -0.1)])]


def test_logprobs_come_only_when_asked_for():
    """The library has them for other reasons, too."""
    piece = Cursor([END], logprobs=None).take(output([5], logprobs=[-0.25]))
    assert piece.logprobs == []
