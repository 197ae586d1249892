"""One request: what is taken of it, and when it is aborted."""

from types import SimpleNamespace

import pytest

from gpu_worker.engine.protocol import EngineError, Finish, SamplingParams, StepOutput
from gpu_worker.engine.tensorrt_llm.request import Request


class Result:
    """As the library's, with one output."""

    def __init__(self):
        self.aborts = 0
        self.finished = False
        self.cached_tokens = 3
        self.outputs = [
            SimpleNamespace(token_ids=[], logprobs=[], finish_reason=None, stop_reason=None)
        ]

    def abort(self):
        self.aborts += 1

    def grow(self, *token_ids, finish=None):
        self.outputs[0].token_ids.extend(token_ids)
        self.outputs[0].finish_reason = finish
        self.finished = finish is not None


@pytest.fixture
def told():
    """What has been handed over."""
    return []


@pytest.fixture
async def request_(told):
    made = Request(
        [5, 6, 7],
        SamplingParams(max_tokens=9, stop_token_ids=(2,)),
        told.append,
        cache_salt="s",
        guide=None,
        resumed=1,
    )
    made.result = Result()
    return made


async def test_the_first_step_tells_what_was_cached(request_, told):
    """Of the prompt; and what a step brought is told at once, be it several tokens."""
    assert not request_.take()
    request_.result.grow(8)
    assert request_.take()
    request_.result.grow(9, 2, finish="stop")
    assert not request_.take()
    assert told == [
        StepOutput([8], cached_tokens=3),
        StepOutput([9, 2], finish=Finish.STOP, cached_tokens=3),
    ]
    assert (request_.prompt_tokens, request_.told, request_.ended) == (3, 3, True)


async def test_an_end_may_come_without_a_token(request_, told):
    """It is told all the same."""
    request_.result.grow(8)
    request_.take()
    request_.result.grow(finish="length")
    request_.take()
    assert told[-1] == StepOutput([], finish=Finish.LENGTH, cached_tokens=3)


async def test_it_is_aborted_once(request_):
    """The library keeps what it is told to abort."""
    request_.abort()
    request_.abort()
    assert request_.result.aborts == 1
    request_.result.grow(finish="cancelled")
    assert not request_.take()
    assert request_.ended


async def test_what_has_ended_is_not_aborted(request_):
    """The library would never forget it."""
    request_.result.grow(8, 2, finish="stop")
    request_.abort()  # not read yet, but the library knows
    request_.take()
    request_.abort()
    assert request_.result.aborts == 0


async def test_what_the_engine_does_not_have_is_not_aborted(request_):
    """It waits here."""
    request_.result = None
    request_.abort()


async def test_a_cancellation_that_nobody_asked_for_is_a_failure(request_):
    """It is no answer, and another worker may do better."""
    request_.result.grow(finish="cancelled")
    with pytest.raises(EngineError, match="cancelled"):
        request_.take()
