"""The headers that tell a client what is left of its limits."""

import pytest

from edge import rate_limits
from fastrun.v1.scheduler_pb2 import RateLimit


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (999, "999ms"),
        (1000, "1s"),
        (1500, "1.5s"),
        (8640, "8.64s"),
        (59_999, "59.999s"),
        (60_000, "1m0s"),
        (61_250, "1m1.25s"),
        (360_000, "6m0s"),
        (3_600_000, "1h0m0s"),
    ],
)
def test_durations(milliseconds, text):
    """Times are written as OpenAI writes them."""
    assert text == rate_limits.duration(milliseconds)


def test_only_limits_that_exist():
    """Of a limit that does not exist nothing is said."""
    assert rate_limits.headers(RateLimit()) == {}
    assert rate_limits.headers(
        RateLimit(limit_tokens=1000, remaining_tokens=0, reset_tokens_ms=59_000)
    ) == {
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "59s",
    }


def test_names():
    """Browsers are allowed to see each of them."""
    told = RateLimit(limit_requests=1, limit_tokens=1)
    assert set(rate_limits.headers(told)) == set(rate_limits.NAMES)
