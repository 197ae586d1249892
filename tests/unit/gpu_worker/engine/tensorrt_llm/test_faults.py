"""Whose fault an exception is."""

import asyncio

import pytest

from gpu_worker.engine.grammar import GrammarError
from gpu_worker.engine.protocol import EngineDeadError, EngineError, UnsupportedError
from gpu_worker.engine.tensorrt_llm.faults import sort


class RequestError(RuntimeError):
    """As the library's."""


TOO_LONG = RequestError(
    "The sum of prompt length (9), query length (0) should not exceed max_num_tokens (4)"
)


@pytest.mark.parametrize(
    ("error", "submitting", "kind"),
    [
        (ValueError("require top_k >= 0"), True, UnsupportedError),
        (TypeError("unexpected"), True, UnsupportedError),
        (NotImplementedError("n"), True, UnsupportedError),
        (ValueError("unpickling"), False, EngineDeadError),
        (TypeError("bug"), False, EngineDeadError),
        (RequestError("out of blocks"), False, EngineError),
        (RequestError("out of blocks"), True, EngineError),
        (TOO_LONG, True, UnsupportedError),
        (RequestError("default_max_tokens (-3) must be greater than 0"), False, UnsupportedError),
        (RequestError("Guided decoding error: no such rule"), False, GrammarError),
        (RuntimeError("LLM is shutting down"), True, EngineDeadError),
        (RuntimeError("CUDA error"), False, EngineDeadError),
        (OSError("pipe"), False, EngineDeadError),
        (asyncio.CancelledError(), False, EngineDeadError),
    ],
)
def test_faults_are_sorted(error, submitting, kind):
    """What is not known to be one request's alone is the end of the engine."""
    assert type(sort(error, submitting=submitting, request_error=RequestError)) is kind


def test_messages_are_short():
    """Traces that come along are left out."""
    fault = sort(
        RuntimeError("first\n" + "second" * 999), submitting=False, request_error=RequestError
    )
    assert str(fault) == "the engine failed with RuntimeError: first"
    long = sort(RequestError("x" * 999), submitting=False, request_error=RequestError)
    assert len(str(long)) < 300
