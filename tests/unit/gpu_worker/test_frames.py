"""Pending events become frames: in order, merged, nothing lost."""

from hypothesis import given
from hypothesis import strategies as st

from fastrun.v1.error_pb2 import ErrorDetail
from fastrun.v1.generation_pb2 import FinishReason, TokenLogprob, ToolCallDelta, Usage
from gpu_worker.frames import ACCEPTED_S, GATHER_S, Frames


def never(seconds, call):
    """Take what nothing here waits for."""
    assert seconds == ACCEPTED_S, f"{call} after {seconds} s"


def kinds(frame):
    """Return stream id and kind of each item."""
    return [(item.stream_id, item.event.WhichOneof("event")) for item in frame.items]


def test_all_that_is_pending_goes_into_one_frame():
    """Events keep their order within a stream; deltas are merged."""
    frames = Frames(lambda: None, later=never)
    one, two = frames.events(1), frames.events(2)
    one.accepted(5, resumable=True)
    two.accepted(6, resumable=False)
    one.delta("a", [1])
    two.failed(ErrorDetail(message="no"))
    one.delta("b", [2, 3])
    one.finished(FinishReason.FINISH_REASON_STOP, Usage(completion_tokens=3))
    frame = frames.take()
    assert kinds(frame) == [
        (1, "accepted"),
        (1, "delta"),
        (1, "finished"),
        (2, "accepted"),
        (2, "failed"),
    ]
    delta = frame.items[1].event.delta
    assert (delta.content, list(delta.token_ids)) == ("ab", [1, 2, 3])
    assert frame.items[0].event.accepted.prompt_tokens == 5
    assert frame.items[2].event.finished.usage.completion_tokens == 3
    assert frame.items[4].event.failed.error.message == "no"
    assert frames.take() is None


def test_the_writer_is_woken_once_for_all_that_moved():
    """However much gathers until the writer takes it, one wake is enough."""
    wakes = []
    frames = Frames(lambda: wakes.append(1), later=never)
    streams = [frames.events(n) for n in range(1, 65)]
    for _ in range(3):
        for stream in streams:
            stream.delta("x", [1])
    assert len(wakes) == 1
    assert len(frames.take().items) == 64
    streams[0].delta("y", [2])
    assert len(wakes) == 2


def test_accepted_waits_for_the_first_delta():
    """That a request was accepted goes with its first delta, as one wake and one frame."""
    wakes, timers = [], []
    frames = Frames(lambda: wakes.append(1), later=lambda *timer: timers.append(timer))
    events = frames.events(1)
    events.accepted(5, resumable=True)
    assert not wakes
    events.delta("a", [1])
    assert len(wakes) == 1
    assert kinds(frames.take()) == [(1, "accepted"), (1, "delta")]
    for _, call in timers:
        call()
    assert len(wakes) == 1
    assert frames.take() is None


def test_accepted_does_not_wait_for_long():
    """Where prefill takes its time, all that were accepted meanwhile are told so by one timer."""
    wakes, timers = [], []
    frames = Frames(lambda: wakes.append(1), later=lambda *timer: timers.append(timer))
    for stream_id in (1, 2):
        frames.events(stream_id).accepted(5, resumable=True)
    [(seconds, call)] = timers
    assert seconds == ACCEPTED_S
    call()
    assert len(wakes) == 1
    assert kinds(frames.take()) == [(1, "accepted"), (2, "accepted")]


def test_tokens_without_text_are_told():
    """Ids of tokens whose text is held back travel in a delta without content."""
    frames = Frames(lambda: None, later=never)
    frames.events(1).delta("", [7])
    delta = frames.take().items[0].event.delta
    assert (delta.content, list(delta.token_ids)) == ("", [7])


def test_calls_thoughts_and_logprobs_are_merged_as_well():
    """Pieces of one call become one piece, which keeps the call's name and id."""
    frames = Frames(lambda: None, later=never)
    events = frames.events(1)
    events.delta("", [1], reasoning="a", logprobs=[TokenLogprob(token=b"a", logprob=-1)])
    events.delta("", [2], reasoning="b", calls=[ToolCallDelta(index=0, id="x", name="f")])
    events.delta("", [3], calls=[ToolCallDelta(index=0, arguments="{")])
    more = [ToolCallDelta(index=0, arguments="}"), ToolCallDelta(index=1, id="y", name="g")]
    events.delta("", [4], calls=more, logprobs=[TokenLogprob(token=b"b", logprob=-2)])
    delta = frames.take().items[0].event.delta
    assert delta.reasoning == "ab"
    assert [(call.index, call.id, call.name, call.arguments) for call in delta.tool_calls] == [
        (0, "x", "f", "{}"),
        (1, "y", "g", ""),
    ]
    assert [entry.token for entry in delta.logprobs] == [b"a", b"b"]


def test_ping_is_an_item_of_stream_0():
    """A Ping goes with what is pending, and alone when nothing is."""
    frames = Frames(lambda: None, later=never)
    frames.ping()
    assert kinds(frames.take()) == [(0, None)]
    frames.events(1).delta("x", [1])
    frames.ping()
    assert kinds(frames.take()) == [(0, None), (1, "delta")]


@given(
    actions=st.lists(
        st.one_of(st.none(), st.tuples(st.integers(1, 3), st.text(max_size=3))), max_size=40
    )
)
def test_any_moment_of_taking_gives_the_same_streams(actions):
    """Whenever the writer takes, each stream's text and ids are whole and in order."""
    frames = Frames(lambda: None, later=never)
    events = {n: frames.events(n) for n in (1, 2, 3)}
    sent = {n: ("", []) for n in events}
    got = {n: ("", []) for n in events}

    def take():
        for item in ((frame := frames.take()) and frame.items) or ():
            delta, (text, ids) = item.event.delta, got[item.stream_id]
            got[item.stream_id] = (text + delta.content, ids + list(delta.token_ids))

    for number, action in enumerate(actions):
        if action is None:
            take()
            continue
        stream_id, text = action
        events[stream_id].delta(text, [number])
        sent[stream_id] = (sent[stream_id][0] + text, sent[stream_id][1] + [number])
    take()
    assert sent == got


def test_what_nobody_reads_along_is_gathered():
    """After its first delta a gathering request waits with the others, and all speak at once."""
    wakes, due = [], []

    def later(seconds, call):
        if seconds == GATHER_S:
            due.append(call)

    frames = Frames(lambda: wakes.append(1), later=later)
    one, two, read_along = (frames.events(n, gathers=n != 3) for n in (1, 2, 3))
    for events in (one, two, read_along):
        events.accepted(5, resumable=True)
        events.delta("a", [1])
    assert len(frames.take().items) == 6
    for events in (one, two, one):
        events.delta("b", [2])
    assert (frames.take(), len(due)) == (None, 1)
    read_along.delta("b", [2])
    assert kinds(frames.take()) == [(3, "delta")]

    due.pop()()
    frame = frames.take()
    assert [item.event.delta.content for item in frame.items] == ["bb", "b"]
    assert len(wakes) == 3
    one.delta("c", [3])
    assert len(due) == 1


def test_the_end_takes_along_what_was_gathered():
    """A gathering request that ends says all at once, and nothing more when its time comes."""
    due = []
    frames = Frames(lambda: None, later=lambda seconds, call: due.append(call))
    events = frames.events(1, gathers=True)
    events.delta("a", [1])
    frames.take()
    events.delta("b", [2])
    events.finished(FinishReason.FINISH_REASON_STOP, Usage(completion_tokens=2))
    assert kinds(frames.take()) == [(1, "delta"), (1, "finished")]
    due.pop()()
    assert frames.take() is None


def test_what_cannot_be_sent_is_its_own_streams_fault():
    """A text or a number that no message takes ends that request, and all others are told of."""
    for wrong in ({"content": "\ud800", "token_ids": [1]}, {"content": "a", "token_ids": [-1]}):
        frames = Frames(lambda: None, later=never)
        one, two, three = (frames.events(number) for number in (1, 2, 3))
        two.on_fault = lambda error, events=two: events.failed(ErrorDetail(message=repr(error)))
        one.delta("a", [1])
        two.accepted(5, resumable=True)
        two.delta(**wrong)
        two.finished(FinishReason.FINISH_REASON_STOP, Usage())
        three.delta("b", [2])
        told = [(1, "delta"), (2, "accepted"), (2, "failed"), (3, "delta")]
        assert kinds(frames.take()) == told
        assert frames.take() is None
