"""What the edge tells the scheduler of limits, and what it tells the client."""

import pytest

from fastrun.v1.auth_pb2 import Limits
from fastrun.v1.error_pb2 import ErrorDetail, ErrorReason
from fastrun.v1.scheduler_pb2 import Granted, RateLimit, Rejected

LEFT = RateLimit(
    limit_requests=60,
    remaining_requests=59,
    reset_requests_ms=1000,
    limit_tokens=10_000,
    remaining_tokens=8000,
    reset_tokens_ms=60_000,
)
HEADERS = {
    "x-ratelimit-limit-requests": "60",
    "x-ratelimit-remaining-requests": "59",
    "x-ratelimit-reset-requests": "1s",
    "x-ratelimit-limit-tokens": "10000",
    "x-ratelimit-remaining-tokens": "8000",
    "x-ratelimit-reset-tokens": "1m0s",
}


def told(answer):
    return {name: value for name, value in answer.headers.items() if "ratelimit" in name}


def grant_with(edge, rate_limit):
    def grant(acquire):
        worker = edge.worker
        granted = Granted(
            request_id=acquire.request_id,
            lease_id=acquire.request_id,
            lease=b"lease",
            worker_id=worker.worker_id,
            instance_id=worker.instance_id,
            address=worker.address,
            rate_limit=rate_limit,
        )
        edge.scheduler.send(granted=granted)

    edge.scheduler.on_acquire = grant


async def test_acquire_says_what_the_caller_may_use(start, body):
    """The scheduler is told the limits and month of account and key, and what this may use."""
    async with start() as edge:
        key = edge.auth.issue(
            key_id="key_limited",
            account_limits=Limits(requests_per_minute=60),
            key_limits=Limits(tokens_per_month=1000),
            account_month_tokens=500,
            key_month_tokens=50,
        )
        answer = await edge.client.post(
            "/v1/chat/completions",
            json=body(max_tokens=20, n=3),
            headers={"authorization": f"Bearer {key}"},
        )
        assert answer.status_code == 200
        (acquire,) = edge.scheduler.acquires
        assert (acquire.account_id, acquire.key_id) == ("acc_1", "key_limited")
        assert acquire.account_limits == Limits(requests_per_minute=60)
        assert acquire.key_limits == Limits(tokens_per_month=1000)
        assert (acquire.account_month_tokens, acquire.key_month_tokens) == (500, 50)
        assert acquire.choices == 3
        assert 3 * 20 < acquire.token_estimate < 3 * 20 + 50


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("writer", ["push", "response"])
async def test_headers_of_answers(start, body, stream, writer):
    """Plain and streamed answers say what is left of each limit."""
    async with start(stream_writer=writer) as edge:
        grant_with(edge, LEFT)
        answer = await edge.client.post("/v1/chat/completions", json=body(stream=stream))
        assert answer.status_code == 200
        assert told(answer) == HEADERS


async def test_no_headers_without_limits(start, body):
    """Where there is no limit, nothing is said of one."""
    async with start() as edge:
        answer = await edge.client.post("/v1/chat/completions", json=body())
        assert answer.status_code == 200
        assert told(answer) == {}


async def test_limit_reached(start, body):
    """A limit that is reached is a 429 with its own message, the figures, and when it opens."""
    async with start() as edge:

        def reject(acquire):
            error = ErrorDetail(
                reason=ErrorReason.ERROR_REASON_LIMIT_REACHED,
                message="requests per minute limit of 60 reached",
                retry_after_ms=41_200,
            )
            rejected = Rejected(request_id=acquire.request_id, error=error, rate_limit=LEFT)
            edge.scheduler.send(rejected=rejected)

        edge.scheduler.on_acquire = reject
        for stream in (False, True):
            answer = await edge.client.post("/v1/chat/completions", json=body(stream=stream))
            assert answer.status_code == 429
            assert answer.headers["retry-after"] == "42"
            assert answer.json() == {
                "error": {
                    "message": "requests per minute limit of 60 reached",
                    "type": "rate_limit_error",
                    "code": 429,
                }
            }
            assert told(answer) == HEADERS
