"""The shape of a plain answer."""

import orjson
import pytest

from edge.answer import Answer
from edge.formats import ChatFormat
from edge.request_rules import decode_chat
from fastrun.v1.generation_pb2 import Delta, FinishReason, ToolCallDelta, Usage

REQUEST = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def called(*arguments):
    """Return an answer that made one call with each of these arguments."""
    answer = Answer()
    for index, text in enumerate(arguments):
        piece = ToolCallDelta(index=index, id=f"call_{index}", name="f", arguments=text)
        answer.add(Delta(tool_calls=[piece]))
    return answer


@pytest.mark.parametrize(
    ("arguments", "reason", "kept"),
    [
        (['{"a": 1}', '{"a"'], FinishReason.FINISH_REASON_LENGTH, ['{"a": 1}']),
        (['{"a"'], FinishReason.FINISH_REASON_LENGTH, None),
        (['{"a": 1}'], FinishReason.FINISH_REASON_LENGTH, ['{"a": 1}']),
        (['{"a": 1}', '{"a": 2}'], FinishReason.FINISH_REASON_TOOL_CALLS, ['{"a": 1}', '{"a": 2}']),
    ],
)
def test_a_call_cut_off_by_max_tokens_is_left_out(arguments, reason, kept):
    """A plain answer holds whole calls only."""
    chat = decode_chat(orjson.dumps(REQUEST), depth_limit=64)
    document = ChatFormat("r", chat).document([called(*arguments)], [reason], Usage())
    message = orjson.loads(document)["choices"][0]["message"]
    calls = message.get("tool_calls")
    assert (calls and [call["function"]["arguments"] for call in calls]) == kept
    assert message["content"] == (None if kept else "")
