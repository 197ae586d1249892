"""How pieces become events for a client that keeps up, and for one that does not."""

import json

import pytest

from edge.errors import Refusal
from edge.formats import ChatFormat
from edge.openai_schema import ChatCompletionRequest, Message
from edge.reply import StreamedReply
from fastrun.v1.generation_pb2 import Delta, Finished, FinishReason, Usage


class Exchange:
    """As much of an exchange as a reply needs."""

    def note_delta(self):
        pass

    def refuse(self, refusal):
        return refusal


class Stream:
    """A client that can be told to stop reading."""

    def __init__(self, on_writable):
        self.on_writable = on_writable
        self.is_congested = False
        self.writes = []
        self.was_cut = False
        self.closed = None

    def write(self, data):
        self.writes.append(data)

    async def end(self, data, *, close=False):
        self.writes.append(data)
        self.closed = close
        return self

    def cut(self):
        self.was_cut = True

    def texts(self):
        """The deltas of each write."""
        return [
            [
                json.loads(event.removeprefix("data: "))["choices"][0]["delta"]
                for event in write.decode().strip().split("\n\n")
                if "choices" in event
            ]
            for write in self.writes
        ]


ROLE = {"role": "assistant", "content": ""}


def streamed(choices):
    asked = ChatCompletionRequest(model="m", messages=[Message("user", "hi")])
    form = ChatFormat("r", asked)
    return StreamedReply(Exchange(), Stream, form, choices, gathered_limit_bytes=100)


@pytest.fixture
def reply():
    return streamed(1)


async def finish(reply, index=0):
    reply.on_finished(index, Finished(reason=FinishReason.FINISH_REASON_STOP))
    await reply.finish(Usage())


async def test_keeps_up(reply):
    """Each piece is one write; the role comes with the first, held-back text makes none."""
    for text in ("a", "", "b"):
        reply.on_delta(0, Delta(content=text))
    await finish(reply)
    assert reply._stream.texts() == [[ROLE, {"content": "a"}], [{"content": "b"}], [{}]]
    assert reply._stream.closed is False


async def test_early_begin(reply):
    """The role can come alone, once."""
    reply.begin(0)
    reply.begin(0)
    reply.on_delta(0, Delta(content="a"))
    assert reply._stream.texts() == [[ROLE], [{"content": "a"}]]


async def test_slow_client(reply):
    """While it does not read pieces are gathered; when it does they come as one, in order."""
    reply.on_delta(0, Delta(content="a"))
    reply._stream.is_congested = True
    for text in "bcd":
        reply.on_delta(0, Delta(content=text))
    reply._stream.is_congested = False
    reply.on_delta(0, Delta(content="e"))
    reply._stream.on_writable()
    reply.on_delta(0, Delta(content="f"))
    assert reply._stream.texts() == [
        [ROLE, {"content": "a"}],
        [{"content": "bcde"}],
        [{"content": "f"}],
    ]


async def test_end_while_slow(reply):
    """What was gathered goes before the last events."""
    reply.on_delta(0, Delta(content="a"))
    reply._stream.is_congested = True
    reply.on_delta(0, Delta(content="b"))
    await finish(reply)
    assert reply._stream.texts()[-1] == [{"content": "b"}, {}]


async def test_too_much(reply):
    """Over the limit of gathered bytes the client is cut off."""
    reply._stream.is_congested = True
    reply.on_delta(0, Delta(content="ä" * 49))
    assert not reply._stream.was_cut
    reply.on_delta(0, Delta(content="a"))
    assert reply._stream.was_cut


async def test_no_text_at_all(reply):
    """An empty answer has its role and its end."""
    await finish(reply)
    assert reply._stream.texts() == [[ROLE, {}]]


async def test_failure_before_anything_was_sent(reply):
    """It is a real status."""
    refusal = Refusal(502, "gone")
    assert await reply.fail(refusal) is refusal
    assert reply._stream.writes == []


async def test_failure_after(reply):
    """It is the last event, after what was gathered, without [DONE]; the connection ends."""
    reply.on_delta(0, Delta(content="a"))
    reply._stream.is_congested = True
    reply.on_delta(0, Delta(content="b"))
    await reply.fail(Refusal(502, "gone"))
    last = reply._stream.writes[-1]
    assert b'"b"' in last
    assert last.endswith(
        b'data: {"error":{"message":"gone","type":"upstream_error","code":502}}\n\n'
    )
    assert reply._stream.closed is True


async def test_choices():
    """Each choice has its own first chunk and its own last one, sent when it ends."""
    reply = streamed(2)
    reply.on_delta(1, Delta(content="b"))
    reply.on_delta(0, Delta(content="a"))
    reply.on_finished(1, Finished(reason=FinishReason.FINISH_REASON_LENGTH))
    assert reply._stream.texts() == [[ROLE, {"content": "b"}], [ROLE, {"content": "a"}], [{}]]
    assert b'"index":1' in reply._stream.writes[2]
    assert b'"length"' in reply._stream.writes[2]
    await finish(reply, 0)
    assert reply._stream.texts()[3:] == [[{}]]
    assert reply._stream.writes[-1].endswith(b"data: [DONE]\n\n")


async def test_choices_of_a_slow_client():
    """What is gathered for several choices comes at once, each with its own merged text."""
    reply = streamed(3)
    reply._stream.is_congested = True
    for index, text in ((0, "a"), (1, "x"), (0, "b"), (1, "y")):
        reply.on_delta(index, Delta(content=text))
    reply.on_finished(1, Finished(reason=FinishReason.FINISH_REASON_STOP))
    assert reply._stream.writes == []
    reply._stream.is_congested = False
    reply._stream.on_writable()
    assert reply._stream.texts() == [[ROLE, {"content": "ab"}, ROLE, {"content": "xy"}, {}]]


async def test_failure_of_one_choice():
    """It ends the stream; a choice that never began does not begin now."""
    reply = streamed(2)
    reply.on_delta(0, Delta(content="a"))
    await reply.fail(Refusal(502, "gone"))
    assert reply._stream.texts() == [[ROLE, {"content": "a"}], []]
