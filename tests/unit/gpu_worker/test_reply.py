"""From tokens to what is told of them: deltas, usage, and why it ended."""

from fastrun.v1.generation_pb2 import FinishReason, GenerateRequest
from gpu_worker.dialect.family.hermes import Hermes
from gpu_worker.dialect.parser import Parser
from gpu_worker.dialect.thinking import THINK_TAGS, Thinking
from gpu_worker.dialect.tools import Tool
from gpu_worker.engine.protocol import Finish, SamplingParams, StepOutput
from gpu_worker.engine.scripted import TURN_END, ByteTokenizer
from gpu_worker.frames import Frames
from gpu_worker.prompt import Prompt
from gpu_worker.reply import Reply

CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


class Spoken:
    """A reply, and what is told of it."""

    def __init__(self, max_tokens=100, **options):
        self._frames = Frames(lambda: None, later=lambda *_: None)
        sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=(TURN_END,))
        prompt = Prompt([1, 2, 3], sampling, Parser(**options))
        self.reply = Reply(
            GenerateRequest(request_id="r"),
            prompt,
            self._frames.events(1),
            ByteTokenizer().token_bytes,
        )

    def take(self, text, *more, finish=None):
        """Take a text in one step."""
        self.reply.take(StepOutput([*text.encode(), *more], finish=finish))

    def told(self):
        """What has been told since the last time: content, and how many tokens."""
        frame = self._frames.take()
        deltas = [item.event.delta for item in frame.items] if frame else []
        return "".join(delta.content for delta in deltas), sum(
            len(delta.token_ids) for delta in deltas
        )


def test_a_step_is_told_and_counted():
    """Text and ids go out with the step, and the usage counts them."""
    spoken = Spoken()
    spoken.take("so")
    assert spoken.told() == ("so", 2)
    assert spoken.reply.reason is None
    spoken.take(" it is", TURN_END, finish=Finish.STOP)
    assert spoken.told() == (" it is", 7)
    assert spoken.reply.reason == FinishReason.FINISH_REASON_STOP
    assert (spoken.reply.usage.prompt_tokens, spoken.reply.usage.completion_tokens) == (3, 9)


def test_a_stop_text_ends_it_within_a_step():
    """What comes after it in the same step is neither told nor counted."""
    spoken = Spoken(stops=["END"])
    spoken.take("well ENDless", finish=Finish.LENGTH)
    assert spoken.told() == ("well ", 8)
    assert spoken.reply.reason == FinishReason.FINISH_REASON_STOP
    assert spoken.reply.usage.completion_tokens == 8


def test_what_was_held_back_until_the_end_is_told_once():
    """The start of a stop text that never came goes out with the last token, and not again."""
    first, second = Spoken(max_tokens=7, stops=["END"]), Spoken(max_tokens=7, stops=["END"])
    first.take("well EN", finish=Finish.LENGTH)
    assert first.told() == ("well EN", 7)
    second.reply.replay(list(b"well EN"))
    second.take("", finish=Finish.LENGTH)
    assert second.told() == ("", 0)
    assert second.reply.reason == first.reply.reason == FinishReason.FINISH_REASON_LENGTH


def test_a_call_is_why_a_turn_ends():
    """A turn that ends after a call ends for it; one that is cut off does not."""
    for finish, reason in (
        (Finish.STOP, FinishReason.FINISH_REASON_TOOL_CALLS),
        (Finish.LENGTH, FinishReason.FINISH_REASON_LENGTH),
    ):
        spoken = Spoken(calls=Hermes(), tools=[Tool("now")])
        spoken.take(CALL, finish=finish)
        assert spoken.reply.reason == reason


def test_thoughts_are_counted():
    """Tokens of a thought are completion and reasoning."""
    spoken = Spoken(markers=THINK_TAGS, thinking=Thinking.OPEN)
    spoken.take("hm</think>yes", TURN_END, finish=Finish.STOP)
    usage = spoken.reply.usage
    assert (usage.reasoning_tokens, usage.completion_tokens) == (10, 14)


def test_what_another_worker_told_is_not_told_again():
    """A replayed part is counted, and what follows goes on from there."""
    spoken = Spoken(stops=["END"])
    spoken.reply.replay(list(b"so E"))
    assert spoken.told() == ("", 0)
    spoken.take("ND")
    assert spoken.told() == ("", 2)
    assert spoken.reply.reason == FinishReason.FINISH_REASON_STOP
    assert spoken.reply.usage.completion_tokens == 6


def test_a_replayed_part_may_be_the_whole():
    """By a stop text, or as the engine says; and then nothing is told."""
    for spoken, finish, reason in (
        (Spoken(stops=["o"]), None, FinishReason.FINISH_REASON_STOP),
        (Spoken(), Finish.STOP, FinishReason.FINISH_REASON_STOP),
        (Spoken(), Finish.LENGTH, FinishReason.FINISH_REASON_LENGTH),
        (Spoken(), None, None),
    ):
        spoken.reply.replay(list(b"so"))
        if finish is not None:
            assert spoken.reply.reason is None
            spoken.take("", finish=finish)
        assert spoken.reply.reason == reason
        assert spoken.told() == ("", 0)
