"""What a client is told of its limits, in the headers that OpenAI's clients read."""

from fastrun.v1.scheduler_pb2 import RateLimit

NAMES = tuple(
    f"x-ratelimit-{figure}-{unit}"
    for unit in ("requests", "tokens")
    for figure in ("limit", "remaining", "reset")
)


def headers(rate_limit: RateLimit) -> dict[str, str]:
    """Write down how much is left of each limit there is, and how long until all of it is."""
    found: dict[str, str] = {}
    if rate_limit.HasField("limit_requests"):
        found["x-ratelimit-limit-requests"] = str(rate_limit.limit_requests)
        found["x-ratelimit-remaining-requests"] = str(rate_limit.remaining_requests)
        found["x-ratelimit-reset-requests"] = duration(rate_limit.reset_requests_ms)
    if rate_limit.HasField("limit_tokens"):
        found["x-ratelimit-limit-tokens"] = str(rate_limit.limit_tokens)
        found["x-ratelimit-remaining-tokens"] = str(rate_limit.remaining_tokens)
        found["x-ratelimit-reset-tokens"] = duration(rate_limit.reset_tokens_ms)
    return found


def duration(milliseconds: int) -> str:
    """Write a time as OpenAI does, which is Go's way: ``0s``, ``120ms``, ``1.5s``, ``6m0s``."""
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    # Up to three decimals, and none that say nothing.
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
